"""The programs of a network, and the backends that run them; `Chain` inherits this."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains.activations import sigmoid
from chains.backends import Backend, Cupy, Executable
from chains.backends import backend as find_backend
from chains.layers.base import Layer, SampleShape
from chains.layers.combine import last_layer
from chains.layers.softmax import Softmax
from chains.losses import Loss
from chains.network import arguments, record
from chains.network.architecture import Architecture
from chains.network.programs import Programs, Shortcuts
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.program import Program
from chains.program.settings import Tunable
from chains.support.checks import check_count, check_flags, check_is, check_shape
from chains.support.memory import is_elsewhere, runner_of

_FLOAT32 = np.dtype(np.float32)


class Recorded(Architecture):
    """A network with a backend and its programs. A program is recorded when it is first needed."""

    def __init__(self, *layers: Layer, input_shape: SampleShape | None = None, backend: str | Cupy = "auto") -> None:
        super().__init__(*layers, input_shape=input_shape)
        self.backend = backend
        self.runner = find_backend(backend)
        self._programs = Programs(self.runner)
        self._elsewhere: dict[Backend, Programs] = {}  # for arrays on GPUs
        self._shortcuts = Shortcuts(self.runner)

    @abstractmethod
    def __call__(self, x: Any, p: Any, *, lengths: Any = None, state: Any = None) -> np.ndarray: ...

    @abstractmethod
    def vjp(self, p: Any, x: Any, dy: Any, *, state: Any = None) -> tuple[np.ndarray, np.ndarray]: ...

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
            Whether it is the program of processes that share the work, as with `comm`; with a `loss` only.

        Returns
        -------
        Program
            The operations and their buffers.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, such as an optimiser without a loss.
        """
        training, network, dtype = arguments.check_mode(mode), self.network, arguments.check_dtype(dtype)
        check_flags(parallel=parallel)
        if loss is None:
            for name, given in (
                ("optimizer", optimizer), ("penalty", penalty), ("target_shape", target_shape), ("parallel", parallel or None),
            ):  # fmt: skip
                if given is not None:
                    raise TypeError(f"`loss` is missing: `{name}` (={given!r}) is of use with one only")
            return record.forward(network, dtype, training)
        target = self.output_shape if target_shape is None else check_shape("target_shape", target_shape)
        objective = self._objective(loss, target, None, False, penalty)
        loss.check_target(self.output_shape, target)
        if optimizer is not None:
            check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        if optimizer is None:
            return record.gradient(network, objective, dtype, training, parallel=parallel)
        return record.training_step(network, objective, optimizer, dtype, parallel=parallel)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """A program as this network's backend runs it: with "native", the operations, LLVM's code and the processor's.

        Parameters
        ----------
        program : Program
            What `program` returns.
        passes : bool
            Whether to show the program after each pass of the backend, under the name of the pass. Backends other than
            "native" show one stage.
        batch : int, optional
            The number of samples: for few of them, "native" divides products among threads. None shows the code for any number.

        Returns
        -------
        str
            The listing.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        check_is("program", program, Program, "a program such as net.program()")
        check_flags(passes=passes)
        if batch is not None:
            check_count("batch", batch)
        return self.runner.listing(program, passes=passes, batch=batch)

    def summary(self, p: Any = None) -> str:
        """A table of the layers. With the backend "auto", the reasons follow why NumPy runs a program, if it does.

        Parameters
        ----------
        p : array, shape (n_params,), optional
            Parameters: those with bounds are printed as their values and as what is stored.
        """
        if self.runner.name == "auto":
            for kind, make in (("forward", record.forward), ("vjp", record.vjp)):
                self._program(None, (kind, _FLOAT32, True), partial(make, self.network, _FLOAT32, True))
        return "\n".join([super().summary(p), *self._programs.fallbacks])

    def problem(
        self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any = None
    ) -> tuple[dict[str, np.ndarray], record.Criterion]:
        """The checked data by buffer name, and the criterion to minimise."""
        data = arguments.check_data(self.network.declaration, x, t, loss, weights, lengths)
        return data, self._objective(loss, *arguments.target_shapes(data), penalty)

    def _objective(
        self, loss: Loss, target: SampleShape, weights: SampleShape | None, masked: bool, penalty: Penalty | None
    ) -> record.Criterion:
        arguments.check_loss(loss)
        last = last_layer(self)
        if loss.takes_logits and isinstance(last, Softmax):
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave that layer out")
        if loss.takes_logits and sigmoid in (getattr(last, "activation", None), getattr(last, "f", None)):
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave its sigmoid out")
        if penalty is not None:
            check_is("penalty", penalty, Penalty, "a penalty such as L2Penalty(1e-4)")
        return record.Criterion(loss, target, weights, penalty, masked)

    def state_for(
        self,
        program: Program,
        state: Any,
        dtype: np.dtype[Any] | None,
        training: bool,
        inputs: dict[str, np.ndarray],
        batch: int | None = None,
    ) -> dict[str, np.ndarray]:
        """The checked state by buffer name, for a run of a program on these inputs. The batch is checked too.

        `batch` is the size of the whole batch, if the inputs are a part of it.
        """
        network = self.network
        if state is None and network.is_stateless:
            return {}
        if training:
            network.check_batch(batch or len(inputs["x"]))
        buffer = program.buffers.get("state")
        updated = buffer is not None and buffer.role == "state"
        if state is not None:
            return {"state": arguments.check_state(state, self.state_layout, dtype, updated, inputs)}
        if buffer is not None:
            raise ValueError(
                f"`state` is missing: this network has one ({self.state_layout[0].name}, ...), which this call "
                f"{'updates' if updated else 'reads'}; begin with net.init_state() and pass it to every call"
            )
        return {}

    def _programs_at(self, beside: Any) -> Programs:
        """The programs for arrays in the memory of `beside`."""
        if not is_elsewhere(beside):
            return self._programs
        runner = runner_of(beside, self.runner)
        if runner not in self._elsewhere:
            self._elsewhere[runner] = Programs(runner)
        return self._elsewhere[runner]

    def _program(self, beside: Any, kind: tuple[Any, ...], make: Callable[[], Program], *parts: Tunable) -> Executable:
        """The program of this kind, made of these parts, for arrays in the memory of `beside`."""
        return self._programs_at(beside).get(self._structure, kind, make, *parts)

    def _gradient(
        self, beside: Any, objective: record.Criterion, dtype: np.dtype[Any], training: bool, *, pure: bool = False,
        parallel: bool = False,
    ) -> Executable:  # fmt: skip
        make = partial(record.gradient, self.network, objective, dtype, training, pure=pure, parallel=parallel)
        return self._program(beside, ("gradient", dtype, training, pure, parallel), make, objective)

    def forward_pass(self, p: Any, training: bool, masked: bool = False) -> Executable:
        """A call of the network with these parameters, recorded the first time."""
        make = partial(record.forward, self.network, p.dtype, training, masked=masked)
        return self._program(p, ("forward", p.dtype, training, masked), make)

    def backward_pass(self, p: Any, training: bool = False, masked: bool = False) -> Executable:
        """The pullback of a call with these parameters, recorded the first time."""
        make = partial(record.vjp, self.network, p.dtype, training, masked=masked)
        return self._program(p, ("vjp", p.dtype, training, masked), make)

    def training_step(self, p: Any, objective: record.Criterion, optimizer: Optimizer, *, parallel: bool = False) -> Executable:
        """A step of training from `p`, recorded the first time; for training loops."""
        make = partial(record.training_step, self.network, objective, optimizer, p.dtype, parallel=parallel)
        return self._program(p, ("training step", p.dtype, parallel), make, objective, optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in ("_programs", "_elsewhere", "_shortcuts", "runner")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        runner = find_backend(state["backend"])
        self.__dict__.update(state, runner=runner, _programs=Programs(runner), _elsewhere={}, _shortcuts=Shortcuts(runner))
