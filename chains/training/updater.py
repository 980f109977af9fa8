"""An optimiser for custom training loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Binding, backend
from chains.optimizers import Optimizer
from chains.program.recorder import Recorder
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.checks import check_is
from chains.support.memory import HOST, backend_of, memory_of
from chains.support.messages import counted
from chains.training import optimizer_state
from chains.training.optimizer_state import OptimizerState
from chains.training.steps import Rates


class Updater:
    """An optimiser for a custom training loop: ``update = Updater(Adam(1e-3), p)``, then ``update(g)`` moves `p` in place.

    Updaters can be copied and pickled, with `p` and state.

    Parameters
    ----------
    optimizer : Optimizer
        How parameters move along a gradient.
    p : array, shape (n,), float32 or float64
        The parameters; the updater keeps this array and changes it.
    state : OptimizerState, optional
        The state to continue from: that of another updater, ``update.state``, or of training, ``history.optimizer_state``. It
        is copied.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, before anything is written; and for optimisers that draw random numbers.
    FloatingPointError
        On the host, before a step for which a schedule gives a rate that is negative or not finite. An infinity or NaN in the
        gradient gets into `p`: check the loss, as `train` does.
    """

    def __init__(self, optimizer: Optimizer, p: np.ndarray, state: OptimizerState | None = None) -> None:
        p = arguments.check_trained(p)
        check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        start = optimizer_state.begin(optimizer, p) if state is None else optimizer_state.copied("state", state, optimizer, p)
        ops = Recorder("update", p.dtype)
        parameters = ops.external("p", p.shape, role="state")
        own = ops.scratch("gradient", p.shape, batched=False)
        ops.copy(own, ops.external("g", p.shape, role="input"))
        ops.symbolic(optimizer).record(ops, parameters, own, [(0, p.size)])
        program = ops.finish()
        if "random" in program.buffers:
            raise ValueError(f"`optimizer` (={optimizer!r}) draws random numbers, by the seed that train takes: use train")
        self.optimizer = optimizer
        self.p = p
        self._state = start
        self._backend = backend_of(p, backend("auto")).choose(program)
        arrays = {name: array for name, array in {"p": p, **start}.items() if name in program.buffers}
        self._binding: Binding = self._backend.bind(program, 1, arrays)
        looked_at = callable(optimizer.learning_rate) and memory_of(p) is HOST  # a GPU's step number would be waited for
        self._rates = Rates(optimizer) if looked_at else None

    @property
    def state(self) -> OptimizerState:
        """A copy of the optimiser's current state."""
        return OptimizerState({name: memory_of(array).array(array) for name, array in self._state.items()})

    @state.setter
    def state(self, value: Any) -> None:
        raise AttributeError("`state` is given when an updater is made: Updater(optimizer, p, state)")

    def __call__(self, g: np.ndarray) -> None:
        """Move the parameters by one step.

        Parameters
        ----------
        g : array, shape (n,)
            The gradient. It is not changed.
        """
        g = arguments.to_device_of(self.p, {"g": as_array("g", g)})["g"]
        if g.shape != self.p.shape:
            raise ValueError(f"`g` has shape {g.shape}, but the parameters have shape {self.p.shape}")
        if self._rates is not None:
            self._rates.good(self._state["step"].item())
        self._binding.arrays["g"][...] = g
        with self._backend.running():
            self._binding.run()

    def __reduce__(self) -> tuple[Any, ...]:
        return Updater, (self.optimizer, self.p, self.state)

    def __repr__(self) -> str:
        steps = counted(int(self._state["step"]), "step")
        return f"<{self.optimizer!r} of {counted(self.p.size, 'parameter')} after {steps}>"
