"""The trace of an `ODE`: a layer whose output are the steps of its solution."""

from __future__ import annotations

from typing import Any

from chains.layers.base import Declaration, Layer
from chains.layers.ode.between import BetweenDoses
from chains.layers.ode.layer import ODE
from chains.program.recorder import Recorder
from chains.program.view import View


def trace_of(ode: ODE) -> Layer:
    """The trace of a layer, with its parameters: a layer whose output are the steps."""
    made, one_segment = _Trace.__new__(_Trace), ode.max_steps or ode._steps.grid.needed
    vars(made).update(ode.__getstate__(), checkpoint_every=one_segment, adjoint=False)
    return made


class _Trace(ODE):
    """An `ODE` whose output has a row for each step: time before it, its length, the length that was tried, state before it.

    One more row has the time and the state after the last step. With step control, times are counted from the first one. States
    are those before doses.
    """

    @property
    def may_fail(self) -> bool:
        return False

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        d.output((self._steps.grid.total + 1, 3 + d.output_shape[-1] - (self.event is not None)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        if self.doses is not None:
            BetweenDoses(self, self.doses).trace(ops, x, y, s)
            return
        n, steps, grid = y.sample_shape[-1] - 3, self._steps, self._steps.grid
        clock = y.slice(1, 0, grid.total)
        with steps.setup(ops, x, s) as setup:
            steps.solve(setup, ops.scratch("y", (grid.intervals + 1, n)), states=y.slice(-1, 3, 3 + n))
        ops.fill(y.index(1, grid.total).slice(-1, 0, 3), 0.0)
        if self.rtol is not None:
            ops.copy(y.index(1, grid.total).slice(-1, 0, 1), s.ends.index(1, grid.total - 1))
        begins, lengths = (s.begins, s.lengths) if grid.varies else self._equal(ops)
        for k, view in enumerate((begins, lengths, lengths if self.rtol is None else s.tried)):
            ops.copy(clock.slice(-1, k, k + 1), view)

    def _equal(self, ops: Recorder) -> tuple[View, View]:
        """The times before the steps that all samples share, and their lengths, (steps, 1)."""
        begins, lengths = self._steps.grid.equal()
        return ops.constant("begins", begins[:, None]), ops.constant("lengths", lengths[:, None])

    def pullback(self, *_: Any) -> None:
        raise NotImplementedError("steps have no pullback")
