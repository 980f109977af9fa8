"""Step control of an implicit method: its steps are refused also where Newton's iterations do not converge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chains.expr import maximum
from chains.layers.node import Node
from chains.layers.ode.implicit import ImplicitStages
from chains.layers.ode.step_control import StepControl
from chains.program.view import View


class ImplicitControl(StepControl):
    """The search for the steps of an implicit method, as `StepControl`."""

    @property
    def _slopes(self) -> int:
        return 1  # for the first length: each step finds its own

    def _step(self, rhs: Node, seen: View, state: View, t: View, h: View, slopes: Sequence[View]) -> tuple[View, View]:
        ops, n, stages = self.ops, self.inputs.n, self.tableau.stages
        newton = ImplicitStages(ops, self.tableau, rhs, n)
        all_seen, inverse = ops.scratch("seen in stages", (stages, self.inputs.width)), ops.scratch("inverse", (n, n))
        for i, c in enumerate(self.tableau.c):
            self.inputs.record(all_seen.index(1, i), t, h, c)
        newton.solve(all_seen, state, h, inverse)
        other, new = (all_seen.index(1, i).slice(-1, 0, n) for i in (stages - 2, stages - 1))
        error = self.mean_square("error", _difference, state, new, other)
        ops.map(error, newton.judged, error, newton.failed, newton.taken)
        return new, error


def _difference(y: Any, new: Any, other: Any) -> tuple[Any, Any]:
    """The ends of a step by both methods, and the number of the state whose error is tolerated.

    The sum of slopes would say the same, but rounding of stiff ones would be an error.
    """
    return new - other, maximum(abs(y), abs(new))
