"""The loss on fixed data as a function of the flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from mmap import mmap
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.backends.base import Fitter
from chains.losses import SeriesLoss
from chains.minimize.minimize import minimize as minimize_in_place
from chains.minimize.rows import CompiledFits
from chains.network import executables, jacobian_direction
from chains.network.call import Call, check_data, check_numbers, shared_arrays, state_of
from chains.network.network import Network
from chains.objectives.fits import fitter_of, normal_equations_of, started
from chains.objectives.free import FreeObjective
from chains.objectives.on_data import OnData
from chains.objectives.second_order import SecondOrder
from chains.objectives.trained_arguments import minimize_trained
from chains.support import arguments
from chains.support.arrays import as_array, as_numpy
from chains.support.memory import HOST, memory_of, on_host
from chains.support.messages import counted


def objective(call: Call, *, check_finite: bool = True) -> Objective:
    """The loss on this data as a function of the parameters alone; see `Chain.objective`."""
    network, processes = call.network, call.processes
    call.training = arguments.check_mode(call.mode)
    check_data(call)
    in_memory = not any(MappedFile.of(array, array.dtype) for array in call.data.values())  # files may be too long to be read
    if check_finite and in_memory:
        check_numbers(call, call.dtype)
    call.data = arguments.to_device_of(call.data["x"], call.data)
    executable = executables.gradient_of(call, pure=True)
    known = state_of(call, executable.program, call.data)
    extra = {name: memory_of(a).array(memory_of(a).contiguous(a, np.float64)) for name, a in known.items()}
    extra |= shared_arrays(call, executable, len(call.data["x"]))
    settings = {name: getattr(call, name) for name in ("loss", "penalty", "mode", "seed")}
    remake = partial(call.net.objective, **settings, comm=None if processes is None else processes.given)
    second = SecondOrder(network, call.loss, call.penalty) if processes is None else None
    return Objective(executable, call.data, network, extra, remake, second)


class Objective:
    """``objective(p)`` returns ``(value, gradient)``: a float and a fresh float64 vector. Made by `Chain.objective`.

    Rows of parameters, such as those of `Chain.init_many`, give a value and a gradient for each row.

    The data are copied in float64, except read-only `np.memmap` arrays of float64, which stay in their files. Calls from
    several threads are safe; each uses separate arrays.
    """

    def __init__(
        self,
        executable: Executable,
        data: Mapping[str, np.ndarray],
        network: Network,
        extra: Mapping[str, np.ndarray],
        remake: Callable[..., Objective],  # of (x, t, weights=, lengths=, state=)
        second: SecondOrder | None,
    ) -> None:
        program = executable.program
        kinds = {name: program.buffers[name].dtype if name in program.buffers else program.dtype for name in data}
        self.n_params, self._trained = network.n_params, network.trainable
        self.batch = len(data["x"])
        self._place = memory_of(data["x"])
        own = {
            name: array if MappedFile.of(array, kinds[name]) else self._place.array(self._place.contiguous(array, kinds[name]))
            for name, array in data.items()
        }
        self._data = own | dict(extra)
        self._remake = remake
        self._second = second
        self._gradient = OnData(executable, self._data, self.n_params, {"g": (self.n_params,)})
        self._quick = self._gradient.quick

    def __call__(self, p: Any) -> tuple[Any, np.ndarray]:
        """The value and the gradient, in the memory of `p`.

        Rows of parameters give the values (members,), a NumPy array, and the gradients (members, n_params). Each row has the
        bits that it has alone.

        Data on a GPU stay there: for a NumPy array, as SciPy's optimisers pass it, only `p` and the gradient are copied.

        Parameters
        ----------
        p : array, shape (n_params,) or (members, n_params)
            The parameters.

        Raises
        ------
        ValueError
            For another shape.
        """
        found: tuple[float, np.ndarray] | None = self._quick(p, None)
        if found is not None:
            return found
        if type(p) is not np.ndarray or p.dtype.kind not in "fiub":
            p = as_array("p", p)
        if p.ndim == 2 and p.shape[1] == self.n_params:
            return self._of_rows(p)
        if p.shape != (self.n_params,):
            raise ValueError(
                f"`p` has shape {p.shape}, but the network has {counted(self.n_params, 'parameter')}, "
                f"shape ({self.n_params},), or (members, {self.n_params}) for many networks"
            )
        result: tuple[float, Any] = self._gradient(p)
        self._quick = self._gradient.quick
        return result

    def minimize(self, p: Any, method: str = "BFGS", *, progress: bool | None = None, **options: Any) -> Any:
        """``scipy.optimize.minimize`` of the objective, from `p`, converted to float64 first.

        For a vector on a GPU, it is `chains.minimize` with its options, which leaves the vector there ("BFGS" and "L-BFGS").
        SciPy 1.17's TNC, SLSQP and Newton-CG fail, the last one silently, if they start from a float32 vector.

        SciPy gets the trained parameters alone, so that frozen ones keep their bits with every method. Arguments and `x` of the
        result are of all parameters, but arrays in `options` and other arrays of the result are of the trained ones.

        If the value or the gradient is infinite or NaN, for example because an `ODE` fails, SciPy gets a large value instead,
        from which its line searches step back. Without bounds and constraints, the result is then the lowest finite point of
        all calls.

        Parameters
        ----------
        p : array, shape (n_params,)
            The starting point.
        method : str
            A method of SciPy.
        progress : bool, optional
            Whether to show a bar that counts evaluations. None shows one on terminals and in notebooks after half a second,
            True lines of text elsewhere.
        **options
            SciPy's own keyword arguments, such as ``tol=1e-8`` or ``options={"maxiter": 50}``; others raise TypeError.

        Returns
        -------
        scipy.optimize.OptimizeResult
            SciPy's result. If there were such points, `message` has their number, and `success` is False if the lowest point is
            not the last one of SciPy.
        """
        if memory_of(p) is not HOST:
            return minimize_in_place(self, p, method, progress=progress, **options)
        return minimize_trained(self, p, method, progress, options)

    def value(self, p: Any) -> Any:
        """The value alone; for rows, the values.

        Parameters
        ----------
        p : array, shape (n_params,) or (members, n_params)
            The parameters.
        """
        return self(p)[0]

    def gradient(self, p: Any) -> np.ndarray:
        """The gradient alone, fresh.

        Parameters
        ----------
        p : array, shape (n_params,) or (members, n_params)
            The parameters.
        """
        return self(p)[1]

    def hessp(self, p: Any, v: Any) -> np.ndarray:
        """The Hessian matrix times a vector, shape (n_params,), for SciPy's Newton-CG, trust-ncg and trust-krylov.

        Parameters
        ----------
        p, v : array, shape (n_params,)
            The parameters and the vector.
        """
        return self.second_order.hessian_product(self._vector("p", p), self._data, self._vector("v", v))

    def residuals(self, p: Any) -> np.ndarray:
        """The residuals for `scipy.optimize.least_squares`: half the sum of their squares is the value.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.

        Returns
        -------
        array, shape (batch * outputs,)
            The residuals; those of steps after a sample's length are zero. For a `ResidualProblem` (points * equations,), where
            `equations` is the largest number of equations of a term. Terms with fewer equations have zeros instead.

        Raises
        ------
        ValueError
            Unless the loss is a mean of squares, without a penalty or negative weights.
        """
        return self.second_order.residuals(self._vector("p", p), self._data)

    def jacobian(self, p: Any) -> np.ndarray:
        """The derivatives of the residuals with respect to the parameters, shape (len(residuals), n_params).

        Raises as `residuals` does.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.
        """
        return self.second_order.jacobian(self._vector("p", p), self._data)

    def normal_equations(self, p: Any) -> tuple[float, np.ndarray, np.ndarray]:
        """The value r'r / 2, J'r and J'J for the residuals r and their Jacobian J, computed in blocks of samples.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters.
        """
        compiled = self._normal_equations
        if compiled is None:
            return self.second_order.normal_equations(self._vector("p", p), self._data)
        found: tuple[float, np.ndarray, np.ndarray] = compiled.quick(p, None, None) or compiled(self._vector("p", p))
        return found

    @property
    def jacobian_direction(self) -> str:
        """How `jacobian` and `normal_equations` are computed: "forward", by tangents of all parameters, or in "reverse".

        Forward is chosen where it is cheaper: see `Chain.jacobian`.
        """
        if self._second is None or isinstance(self._second.loss, SeriesLoss):
            return jacobian_direction.REVERSE
        return jacobian_direction.cheaper(self._second.network, self.batch)

    def compiled_fits(self, p: np.ndarray, low: np.ndarray, high: np.ndarray, gtol: float, ftol: float) -> CompiledFits | None:
        """Levenberg-Marquardt from rows of parameters in machine code, for `chains.minimize`; None if it cannot be compiled."""
        return started(self._fitter, p, low, high, gtol, ftol)

    @cached_property
    def _fitter(self) -> Fitter | None:
        return fitter_of(self.second_order, self._data, ()) if self._place is HOST else None

    @cached_property
    def _normal_equations(self) -> OnData | None:
        return normal_equations_of(self.second_order, self._data) if self._place is HOST else None

    @property
    def free(self) -> FreeObjective:
        """The objective as a function of the parameters that are not frozen; a new one, with frozen numbers of its own."""
        return FreeObjective(self, self._trained)

    @property
    def state(self) -> dict[str, Any]:
        """The network's state by its name, if there is one."""
        return {name: self._data[name] for name in ("state",) if name in self._data}

    @property
    def second_order(self) -> SecondOrder:
        """The residuals and their derivatives. Raises TypeError for an objective without residuals."""
        if self._second is None:
            raise TypeError("an objective with `comm` has values and gradients, but no residuals and no second derivatives")
        return self._second

    def _vector(self, name: str, given: Any) -> np.ndarray:
        vector = np.asarray(as_numpy(name, given), np.float64, order="C")
        if vector.shape != (self.n_params,):
            parameters = counted(self.n_params, "parameter")
            raise ValueError(f"`{name}` has shape {vector.shape}, but the network has {parameters}, shape ({self.n_params},)")
        return vector

    def _of_rows(self, p: Any) -> tuple[np.ndarray, Any]:
        place = memory_of(p)
        values, gradients = np.empty(len(p)), place.empty(p.shape, np.dtype(np.float64))
        for value, gradient, row in zip(values[:, None], gradients, p, strict=True):
            value[0], own = self(row)
            place.assign(gradient, own)
        return values, gradients

    def __reduce__(self) -> tuple[Any, ...]:
        """When copied or sent to another process, the network makes the objective again, from the data or their files."""
        data = {name: MappedFile.of(array, array.dtype) or array for name, array in self._data.items()}
        options: dict[str, Any] = {name: data[name] for name in ("weights", "state") if name in data}
        if "lengths" in data:
            options["lengths"] = on_host(self._data["lengths"]).astype(np.int64)  # which the program has as numbers of its type
        return _remade, (self._remake, data["x"], data["t"], options)

    def __repr__(self) -> str:
        text = f"objective of {counted(self.n_params, 'parameter')} on {counted(self.batch, 'sample')}"
        residuals = self._second is not None and self._second.has_residuals
        return f"<{text}, {self.jacobian_direction} Jacobian>" if residuals else f"<{text}>"


def _remade(make: Callable[..., Objective], x: Any, t: Any, options: dict[str, Any]) -> Objective:
    opened = {name: array.open() if isinstance(array, MappedFile) else array for name, array in options.items()}
    x, t = (array.open() if isinstance(array, MappedFile) else array for array in (x, t))
    return make(x, t, **opened)


@dataclass(frozen=True)
class MappedFile:
    """The place in a file of a read-only `np.memmap` array."""

    path: str
    dtype: str
    offset: int  # bytes
    shape: tuple[int, ...]

    @staticmethod
    def of(array: Any, dtype: np.dtype[Any]) -> MappedFile | None:
        """The place of the array; None if it is in no such file, has another type, or is only a part of the mapped array."""
        source = getattr(array, "base", None)
        if not isinstance(source, np.memmap) or not isinstance(source.base, mmap) or source.filename is None:
            return None
        whole = source.shape == array.shape and source.dtype == array.dtype == dtype and source.flags.aligned
        if source.mode != "r" or not whole or not source.flags.c_contiguous:
            return None
        return MappedFile(str(source.filename), dtype.str, source.offset, source.shape)

    def open(self) -> np.memmap:
        """The array."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
