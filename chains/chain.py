"""`Chain`: layers one after another, and all calls of a network. Functions of `chains.network` do the work."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import numpy as np

from chains.backends import Backend, Cupy, named
from chains.backends import backend as find_backend
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series
from chains.layers.stepwise import carries
from chains.losses import Loss
from chains.network import calls, derivatives
from chains.network.bound import Bound, bound
from chains.network.network import Network, init, init_many
from chains.network.stepping import Stepping, step
from chains.network.summary import program_of, summary, table
from chains.objectives.ensemble_objective import EnsembleObjective, objective_of
from chains.objectives.objective import Objective
from chains.optimizers import Optimizer
from chains.params import Layout
from chains.penalties import Penalty
from chains.program.program import Program
from chains.support import arguments, streams
from chains.support.caching import lazy
from chains.support.checks import check_shape, whole, with_hints
from chains.support.memory import memory_named
from chains.support.messages import as_html, counted, listed

RENAMED = {"freeze": "with_frozen", "train_only": "with_trained"}  # names that read as if they changed a network
Net = TypeVar("Net", bound="Chain")


class Chain(Series):
    """A network: layers one after another. It holds no parameters; every call takes them as one flat vector.

    A network with running statistics (`BatchNorm`) has a second vector, the state, passed as `state`. In the mode "train", a
    call of the network, `value_and_grad` and `train` update it in place; no other call changes it.

    Parameters
    ----------
    *layers : Layer
        The layers, each of which takes the output of the one before.
    input_shape : tuple of int, optional
        The shape of one sample, without the batch; needed if the first layer does not fix it.
    backend : str, backends.Cupy or backends.Backend
        "auto", "native", "numpy" or "cupy"; a `backends.Cupy` with the settings of the last; a library and its device, such as
        "torch:cuda"; the name of a registered backend; or a backend itself.

    Raises
    ------
    TypeError, ValueError
        For layers that do not fit together, and backends that are not known or not available.

    Examples
    --------
    >>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
    >>> p = net.init(seed=0)
    >>> y = net(x, p)  # x: (batch, 784), y: (batch, 10)
    """

    def __init__(self, *layers: Layer, input_shape: SampleShape | None = None, backend: str | Cupy | Backend = "auto") -> None:
        super().__init__(*layers)
        self._given_shape = None if input_shape is None else check_shape("input_shape", input_shape)
        self._input_shape = super().fixed_input() if self._given_shape is None else self._given_shape
        self._frozen_names: frozenset[str] = frozenset()
        self.backend = backend
        find_backend(backend)  # one that is not known is refused here
        if self._input_shape is not None:
            self._network  # noqa: B018 - and so are layers that do not fit

    @lazy
    def _network(self) -> Network:
        """The declared layers, and the programs that are kept. Raises ValueError if the shape of the input is unknown."""
        if self._input_shape is None and not self.layers:
            raise ValueError("`input_shape` is needed: a chain without layers does not fix the shape of its input")
        if self._input_shape is None:
            raise ValueError(f"`input_shape` is needed: {self!r} begins with a layer that does not fix the shape of its input")
        return Network(self, self._input_shape, find_backend(self.backend))

    @lazy
    def _stepping(self) -> Stepping:
        return Stepping(self._network)

    # Calls

    def __call__(
        self,
        x: Any,
        p: Any,
        *,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The outputs at a batch of inputs.

        Parameters
        ----------
        x : array, shape (batch, *input_shape)
            The inputs. They are converted to the type of `p`: 1e300 becomes infinite where `p` is float32, as in NumPy.
            `value_and_grad(check_finite=True)`, `net.objective` and `train` refuse such numbers.
        p : array, shape (n_params,) or (members, n_params)
            The parameters. Their type is that of the computation. For an ensemble, each row belongs to one network; `x` is then
            shared by all, or (members, batch, *input_shape), and `state` is (members, n_state).
        lengths : array, shape (batch,), optional
            The number of steps of each sample of a recurrent network, or of times of each trajectory of an `ODE`. Later entries
            must be finite; they are not used.
        state : array, shape (n_state,), optional
            The state of a network that has one: read in the mode "eval", updated in place in the mode "train".
        mode : str
            "eval" or "train". In "train", dropout is on and batch normalisation uses the statistics of the batch.
        seed : int
            The seed of dropout's random numbers. Each member of an ensemble has its own, see `member_seeds`.
        out : array, shape (batch, *output_shape), optional
            Filled instead of a fresh array. With `p` on a GPU, `x` and `out` may be NumPy arrays; large ones are copied in
            pieces.

        Returns
        -------
        array, shape (batch, *output_shape) or (members, batch, *output_shape)
            The outputs.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        """
        return calls.forward(self._network, x, p, lengths, state, mode, seed, out)

    def value_and_grad(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        *,
        weights: Any = None,
        lengths: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        mode: str = "train",
        seed: int = 0,
        out: np.ndarray | None = None,
        check_finite: bool = False,
        comm: Any = None,
    ) -> tuple[float, np.ndarray]:
        """The loss, plus the penalty, and its gradient with respect to the parameters.

        Parameters
        ----------
        p : array, shape (n_params,) or (members, n_params)
            The parameters, as in a call of the network. For an ensemble, data are shared by all members, or have an axis of
            members in front.
        x : array, shape (batch, *input_shape)
            The inputs.
        t : array
            The targets, in the shape that the loss takes.
        loss : Loss
            The loss that compares outputs with targets.
        weights : array, shape (batch,), or that of `t` or what broadcasts to it, optional
            Factors of the samples' losses, or of the terms that the loss sums or averages: any finite numbers. The denominators
            do not depend on them: `MSELoss` is ``sum(weights * (y - t) ** 2) / y.size``. A target of weight 0 may be NaN.
        lengths : array, shape (batch,), optional
            As in a call of the network.
        penalty : Penalty, optional
            Added to the loss.
        state, mode, seed
            As in a call of the network. The mode is "train" by default.
        out : array, shape (n_params,), optional
            Filled with the gradient instead of a fresh array.
        check_finite : bool
            Whether to read the data once and refuse an infinity or NaN. Targets of weight 0 are not checked.
        comm : mpi4py.MPI.Intracomm, optional
            The processes that share the work. Each passes its own samples, at least one; the other arguments are the same.
            Value and gradient are those of all samples, with the same bits on each process.

        Returns
        -------
        value : float, or array, shape (members,)
            The mean of the samples' losses, plus the penalty.
        gradient : array, shape (n_params,) or (members, n_params)
            Its derivative with respect to `p`, zero where parameters are frozen.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        """
        return calls.value_and_grad(
            self._network, p, x, t, loss, weights, lengths, penalty, state, mode, seed, out, check_finite, comm
        )

    def loss(
        self, p: Any, x: Any, t: Any, loss: Loss, *, weights: Any = None, lengths: Any = None,
        penalty: Penalty | None = None, state: Any = None,
    ) -> float:  # fmt: skip
        """The loss, plus the penalty, in the mode "eval".

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of one network.
        x, t, loss, weights, lengths, penalty, state
            As in `value_and_grad`; the state is read.

        Returns
        -------
        float
            The mean of the samples' losses, plus the penalty.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        return calls.loss(self._network, p, x, t, loss, weights, lengths, penalty, state)

    def vjp(
        self,
        p: Any,
        x: Any,
        dy: Any,
        *,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        out: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pull a cotangent of the outputs back to the parameters and the inputs: a vector-Jacobian product.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of one network.
        x
            As in a call of the network.
        dy : array, shape (batch, *output_shape)
            The cotangent.
        lengths, state, mode, seed
            As in a call of the network. The state is never changed.
        out : pair of arrays, optional
            Filled instead of fresh arrays.

        Returns
        -------
        dp : array, shape (n_params,)
            The gradient of ``sum(dy * net(x, p))`` with respect to the parameters.
        dx : array, shape (batch, *input_shape)
            The gradient with respect to the inputs; zero for ids.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        """
        return calls.vjp(self._network, p, x, dy, lengths, state, mode, seed, out)

    def objective(
        self,
        x: Any,
        t: Any,
        loss: Loss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        comm: Any = None,
    ) -> Objective | EnsembleObjective:
        """The loss on this data as a function of the parameters alone, for SciPy's optimisers and the like.

        ``objective(p)`` returns a float and a fresh float64 gradient, computed in float64 whatever the type of `p`:
        ``minimize(objective, p, jac=True, method="BFGS")``.

        Parameters
        ----------
        x, t, loss, penalty, weights, lengths
            As in `value_and_grad`. Members of an ensemble may have separate inputs, targets and weights, along a first axis: x
            (members, samples, ...). The result is then a function of (members, n_params), for `chains.minimize`.
        state : array, shape (n_state,), optional
            As in `value_and_grad`. It is copied and never changed: the same `p` always gives the same value.
        mode, seed
            As in a call of the network.
        comm : mpi4py.MPI.Intracomm, optional
            As in `value_and_grad`. All processes make the same calls of the objective, with the same `p`.

        Returns
        -------
        Objective or EnsembleObjective
            The function.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        return objective_of(self._network, self, x, t, loss, penalty, weights, lengths, state, mode, seed, comm)

    def bound(self, p: Any, *, state: Any = None) -> Bound:
        """The network with these parameters as a function of one sample, for solvers of other packages.

        >>> f = net.bound(p)
        >>> solution = solve_ivp(lambda t, y: f(y), (0, 10), start)

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters. They are copied; their type is that of the computation.
        state : array, shape (n_state,), optional
            The state of a network that has one. It is copied.

        Returns
        -------
        Bound
            ``f(x)`` and ``f.vjp(x, dy)`` take arrays without a batch axis; ``f.c_function()`` is the function for C.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and for parameters on a GPU.
        """
        return bound(self, p, state)

    def step(
        self, x: Any, p: Any, carried: Any = None, *, out: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The output at one step of a sequence, and the states that are carried to the next step.

        Parameters
        ----------
        x : array, shape (batch, *input_shape[1:])
            The inputs of a step.
        p : array, shape (n_params,)
            The parameters, whose type is that of the computation.
        carried : array, shape (batch, n_carried), optional
            The `carried` of the previous step; None for the first step, which begins with the layers' initial states.
        out : pair of arrays, optional
            Filled with the output and the new `carried`; neither may be an argument.

        Returns
        -------
        y : array
            The output: that of the network for the sequence up to this step.
        carried : array, shape (batch, n_carried)
            What recurrent layers and causal convolutions carry to the next step: states, and inputs of earlier steps.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and for networks that need more than one step at a time, such as those with
            bidirectional layers. Nothing is written then.
        """
        return step(self._network, self._stepping, x, p, carried, out)

    @property
    def n_carried(self) -> int:
        """The number of values that a sample carries from step to step."""
        return self._stepping.n_carried if carries(self._network.declaration) else 0

    # Further derivatives

    @with_hints
    def derivatives(
        self, p: Any, x: Any, order: int = 2, directions: Any = None, *, full: bool = False, state: Any = None, out: Any = None
    ) -> tuple[np.ndarray, ...]:
        """The outputs and their exact derivatives with respect to the inputs.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters, whose type is that of the computation.
        x : array, shape (batch, *input_shape)
            The points.
        order : int
            The highest order, from 1 to 4.
        directions : array, optional
            Derivatives along these directions, shape (directions, *input_shape), or (batch, directions, *input_shape) for
            separate directions at each point. By default along each input.
        full : bool
            Whether second derivatives are full matrices; for order 2, without `directions`.
        state : array, optional
            As in a call of the network.
        out : tuple of arrays, optional
            Filled instead of fresh arrays.

        Returns
        -------
        tuple of arrays
            ``(u, du, d2u, ...)``: u of shape (batch, *output_shape); the others (batch, *output_shape, *input_shape), or
            (batch, *output_shape, directions) with `directions`: ``d2u[..., i]`` is the second derivative by input i. With
            `full`, d2u is (batch, *output_shape, *input_shape, *input_shape).

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        NotImplementedError
            For layers without a rule for derivatives, such as max pools of overlapping windows.
        """
        return derivatives.derivatives(self._network, p, x, order, directions, full, state, out)

    @with_hints
    def laplacian(self, p: Any, x: Any, *, state: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The sum of the second derivatives by each input, shape (batch, *output_shape).

        Parameters
        ----------
        p, x, state
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.
        """
        return derivatives.laplacian(self._network, p, x, state, out)

    @with_hints
    def input_jacobian(self, p: Any, x: Any, *, state: Any = None, out: np.ndarray | None = None) -> np.ndarray:
        """The derivatives of the outputs with respect to the inputs, (batch, *output_shape, *input_shape), in the
        cheaper of both directions.

        Parameters
        ----------
        p, x, state
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.
        """
        return derivatives.input_jacobian(self._network, p, x, state, out)

    @with_hints
    def jacobian(
        self, p: Any, x: Any, *, lengths: Any = None, direction: str = "auto", state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """The derivatives of each sample's outputs with respect to the parameters, (batch, *output_shape, n_params).

        They are zero for frozen parameters.

        Parameters
        ----------
        p, x
            As of `derivatives`.
        lengths : array, shape (batch,), optional
            As of `value_and_grad`.
        direction : str
            "forward" computes the tangents of all parameters in one pass, in lanes; "reverse" pulls each output of a sample
            back. "auto" takes the cheaper one: forward if there are at least as many outputs as trained
            parameters, and for an `ODE` if there are at most five parameters for each output (two, for more than 7 samples
            of at most 8 outputs).
        state : array, shape (n_state,), optional
            As of `derivatives`.
        out : array, optional
            Filled instead of a fresh one.

        Raises
        ------
        NotImplementedError
            For "forward", if a layer has no tangents: `SteadyState`, and an `ODE` with `adjoint`.
        """
        return derivatives.jacobian(self._network, p, x, lengths, direction, state, out)

    def hvp(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        v: Any,
        *,
        weights: Any = None,
        lengths: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The product of the loss's Hessian matrix at `p` with a vector, shape (n_params,), exact.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of one network.
        x, t, loss
            As of `value_and_grad`, in the mode "eval".
        v : array, shape (n_params,)
            The vector. The matrix is zero for frozen parameters.
        weights, lengths, penalty, state
            As of `value_and_grad`.
        out : array, shape (n_params,), optional
            Filled instead of a fresh one.
        """
        return derivatives.hvp(self._network, p, x, t, loss, v, weights, lengths, penalty, state, out)

    def gauss_newton(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        v: Any,
        *,
        weights: Any = None,
        lengths: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The product of the Gauss-Newton matrix with a vector.

        The matrix is the Hessian of the loss with the network linearised. If the loss is convex in the outputs, no eigenvalue
        is negative.

        Parameters
        ----------
        p, x, t, loss, v, weights, lengths, penalty, state, out
            As of `hvp`; the penalty is left out.
        """
        return derivatives.gauss_newton(self._network, p, x, t, loss, v, weights, lengths, state, out)

    @with_hints
    def sample_gradients(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        *,
        weights: Any = None,
        lengths: Any = None,
        state: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The gradient of each sample's own loss, shape (batch, n_params): their mean is the gradient of `value_and_grad`.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of one network.
        x, t, loss, weights, lengths, state
            As of `value_and_grad`, in the mode "eval".
        out : array, shape (batch, n_params), optional
            Filled instead of a fresh one.
        """
        return derivatives.sample_gradients(self._network, p, x, t, loss, weights, lengths, state, out)

    # Vectors and their names

    @overload
    def init(
        self, seed: int | np.random.Generator = 0, dtype: Any = np.float32, *, device: Literal["cpu"] = "cpu"
    ) -> np.ndarray: ...

    @overload
    def init(self, seed: int | np.random.Generator = 0, dtype: Any = np.float32, *, device: str) -> Any: ...

    def init(self, seed: int | np.random.Generator = 0, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """A fresh parameter vector, filled by the layers' initializers.

        Parameters
        ----------
        seed : int or Generator
            A whole number from 0 up to 2**64, exclusive, or NumPy's generator. The same seed gives the same numbers.
        dtype : type
            float32 or float64.
        device : str
            "cpu" for a NumPy array, or "cuda" for a CuPy array: calls with it run on the GPU.

        Returns
        -------
        array, shape (n_params,)
            The parameters.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and if there is no GPU.
        """
        return init(self._network, seed, dtype, device)

    @overload
    def init_many(self, n: int, seed: int = 0, dtype: Any = np.float32, *, device: Literal["cpu"] = "cpu") -> np.ndarray: ...

    @overload
    def init_many(self, n: int, seed: int = 0, dtype: Any = np.float32, *, device: str) -> Any: ...

    def init_many(self, n: int, seed: int = 0, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """The parameters of several networks, for an ensemble.

        Parameters
        ----------
        n : int
            How many networks.
        seed : int
            Row k is ``net.init(chains.member_seeds(n, seed)[k])``. A larger `n` adds networks and keeps the others.
        dtype, device
            As of `init`.

        Returns
        -------
        array, shape (n, n_params)
            The parameters, a row for each network.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        return init_many(self._network, n, seed, dtype, device)

    @overload
    def init_state(self, dtype: Any = np.float32, *, device: Literal["cpu"] = "cpu") -> np.ndarray: ...

    @overload
    def init_state(self, dtype: Any = np.float32, *, device: str) -> Any: ...

    def init_state(self, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """A fresh state vector, shape (n_state,): running means of 0 and variances of 1.

        Parameters
        ----------
        dtype, device
            As of `init`; the type is that of the parameters.
        """
        state = self.state_layout.init(streams.generator("state", 0), arguments.check_dtype(dtype))
        return memory_named(device).contiguous(state)

    def views(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters by name: arrays in their shapes, which share the memory of the vector.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.

        Returns
        -------
        dict of array
            An unknown name raises a KeyError that lists the known ones.

        Raises
        ------
        TypeError, ValueError
            For a vector that does not fit.
        """
        return self.layout.views(arguments.check_params(p, self.n_params))

    def values(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters by name as layers see them: a parameter with bounds has its value, not the number that is stored for
        it.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.

        Returns
        -------
        dict of array
            Fresh arrays. To change a parameter, write to an array of `views`.

        Raises
        ------
        TypeError, ValueError
            For a vector that does not fit.
        """
        return self.layout.values(arguments.check_params(p, self.n_params))

    def state_views(self, state: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the state by name, which share the memory of the vector.

        Parameters
        ----------
        state : array, shape (n_state,)
            The state.
        """
        return self.state_layout.views(arguments.check_state(state, self.n_state, None, False, {}))

    @property
    def input_shape(self) -> SampleShape:
        """The shape of one input sample."""
        return self._network.input_shape

    @property
    def output_shape(self) -> SampleShape:
        """The shape of one output sample."""
        return self._network.output_shape

    @property
    def n_params(self) -> int:
        """The length of the flat parameter vector."""
        return self._network.layout.size

    @property
    def layout(self) -> Layout:
        """The slices of the flat vector: a sequence of entries with name, start, stop and shape."""
        return self._network.layout

    @property
    def n_state(self) -> int:
        """The length of the state vector; 0 for most networks."""
        return self._network.state_layout.size

    @property
    def state_layout(self) -> Layout:
        """The slices of the state vector, such as "0.running_mean"."""
        return self._network.state_layout

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that are not trained."""
        return self._network.frozen

    # Other networks

    def with_frozen(self, *patterns: str) -> Self:
        """This network with further parameters frozen: their gradient is zero, and no step moves them.

        The network itself stays as it is: ``net = net.with_frozen("0.*")``.

        Parameters
        ----------
        *patterns : str
            Shell-style patterns of parameter names: ``net.with_frozen("0.*", "*.bias")``.

        Raises
        ------
        ValueError
            For a pattern that matches nothing.
        """
        return self._with_frozen(self.frozen | self.layout.names(*patterns))

    def with_trained(self, *patterns: str) -> Self:
        """This network with all parameters frozen but those that match: ``net.with_trained("2.*")``.

        Parameters
        ----------
        *patterns : str
            As of `with_frozen`.
        """
        return self._with_frozen(frozenset(entry.name for entry in self.layout) - self.layout.names(*patterns))

    def _with_frozen(self, frozen: frozenset[str]) -> Self:
        twin = copy.copy(self)
        twin._frozen_names = frozen
        return twin

    @overload
    def __getitem__(self, at: int) -> Layer: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> Layer | Self:
        """A layer; for a slice, the network of these layers. Frozen parameters stay frozen.

        Parameters and state are in the order of the layers, so a part of the network takes a slice of the vectors: ``features =
        net[:-1]`` takes ``p[:features.n_params]`` and ``state[:features.n_state]``, and ``net[-1:]`` the rest. Raises
        IndexError where there is no such layer, TypeError for a name, and ValueError for a slice with a step.
        """
        return part(self, at) if isinstance(at, slice) else layer_at(self, at)

    # Descriptions

    def program(
        self,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        *,
        penalty: Penalty | None = None,
        target_shape: SampleShape | None = None,
        dtype: Any = np.float32,
        mode: str = "train",
        parallel: bool = False,
    ) -> Program:
        """The recorded operations of a forward pass; with a loss, of a gradient; with an optimiser too, of a training step.

        Print it to read them.

        Parameters
        ----------
        loss : Loss, optional
            Compares the outputs with the targets.
        optimizer : Optimizer, optional
            How parameters move along the gradient; with a `loss` only.
        penalty : Penalty, optional
            Added to the loss.
        target_shape : tuple of int, optional
            The shape of one sample's target, by default that of the output.
        dtype : dtype
            The type of the computation, float32 or float64.
        mode : str
            "train" or "eval".
        parallel : bool
            Whether the program is for processes that share the work, as with `comm`; with a `loss` only.

        Returns
        -------
        Program
            The operations and their buffers.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, such as an optimiser without a loss.
        """
        return program_of(self._network, loss, optimizer, penalty, target_shape, dtype, mode, parallel)

    def summary(self, p: Any = None) -> str:
        """A table of the layers. With the backend "auto", it ends with the reasons why NumPy runs a program, if it does.

        Parameters
        ----------
        p : array, shape (n_params,), optional
            Parameters. Those with bounds are printed twice: their values, and the numbers that are stored.
        """
        return summary(self._network, p)

    def _repr_html_(self) -> str:
        """For notebooks: the table of the layers, if the shape of the input is known."""
        return as_html(repr(self) if self._input_shape is None else table(self._network))

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def __repr__(self) -> str:
        arguments = [*map(repr, self.layers)]
        if self._given_shape is not None and super().fixed_input() is None:
            arguments.append(f"input_shape={self._given_shape}")
        names = sorted(self._frozen_names, key=[entry.name for entry in self.layout].index) if self._frozen_names else []
        frozen = f".with_frozen({listed(map(repr, names))})" if names else ""
        return f"{type(self).__name__}({', '.join(arguments)}){frozen}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in RENAMED:
                raise AttributeError(
                    f"a network has no `{name}`: `net.{RENAMED[name]}(...)` returns another network, as in "
                    f"net = net.{RENAMED[name]}(...)"
                )
            return object.__getattribute__(self, name)  # which raises the error again

    # As a layer of another network

    def fixed_input(self) -> SampleShape | None:
        return self._input_shape

    def declare(self, d: Declaration) -> None:
        if self._given_shape not in (None, d.input):
            raise ValueError(f"`input_shape` (={self._given_shape}) of this chain is not the shape of its input, {d.input}")
        super().declare(d)
        for name in self._frozen_names:
            d.freeze(name)

    # Copies

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in super().__getstate__().items() if name not in ("_network", "_stepping")}
        return kept | {"backend": named(self.backend)}  # a registered backend is found again by its name


def layer_at(net: Chain, at: Any) -> Layer:
    """A layer by its number."""
    if whole(at, -math.inf) is None:
        raise TypeError(
            f"`{at!r}` is not a layer index: this network has {counted(len(net.layers), 'layer')}, numbered from 0; "
            f"the names in net.views(p) are {listed(entry.name for entry in net.layout)}"
        )
    if not -len(net.layers) <= at < len(net.layers):
        raise IndexError(f"there is no layer {at}: this network has {counted(len(net.layers), 'layer')}, numbered from 0")
    return net.layers[at]


def part(net: Net, at: slice) -> Net:
    """The network of some layers."""
    start, stop, step = at.indices(len(net.layers))
    if step != 1:
        raise ValueError(f"`{at}` must have a step of 1, so that the layers follow one another, got {step}")
    declaration = net._network.declaration
    made = copy.copy(net)
    made.layers = net.layers[start:stop]
    made._given_shape = made._input_shape = [*(child.input for child in declaration.children), declaration.output_shape][start]
    frozen = [name.split(".", 1) for name in net.frozen]
    made._frozen_names = frozenset(f"{int(k) - start}.{name}" for k, name in frozen if start <= int(k) < stop)
    return made
