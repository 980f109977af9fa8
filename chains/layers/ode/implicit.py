"""The stages of implicit Runge-Kutta steps, which solve an equation by Newton's method, and their pullback.

Stage i is the solution k of ``k = rhs(b + h * gamma * k)``, where b comes from the earlier stages. All stages have the same
gamma. So one matrix serves the iterations of a step: the inverse of ``1 - h * gamma * J``, with the Jacobian matrix J where the
step begins. Iterations end once they change next to nothing.

By the implicit function theorem, the cotangent c of k becomes the w with ``w = c + h * gamma * transpose(J_i) w``, where J_i is
the Jacobian matrix at the stage, and w goes through the pullback of the right-hand side. It is found by the same iterations,
transposed. They converge as Newton's do, and need neither J_i nor second derivatives.

Source: Hairer and Wanner, "Solving ordinary differential equations II", 1996, IV.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains.expr import exp, log, maximum, where
from chains.jets.jet import Jet
from chains.layers.node import Node
from chains.layers.ode.inverse import record_inverse
from chains.layers.ode.runge_kutta import Length, combine
from chains.layers.ode.tableaus import Tableau
from chains.program.recorder import Recorder
from chains.program.view import View

ITERATIONS = 16  # of Newton's method for each stage, at most
LARGEST_STATE = 32


class ImplicitStages:
    """The stages of a step: `solve` records them, `pull` the pullback of one.

    Parameters
    ----------
    ops, tableau : Recorder, Tableau
        The recorder and the method.
    rhs : Node
        The right-hand side with saved arrays of one evaluation.
    n : int
        The length of the state, with which what the right-hand side sees begins.
    """

    def __init__(self, ops: Recorder, tableau: Tableau, rhs: Node, n: int) -> None:
        self.ops, self.rhs, self.n, self.order, self.gamma = ops, rhs, n, tableau.order, tableau.gamma
        self.later = tableau.stages - 1  # the implicit ones
        (rows, self.weights), *_ = tableau.halves
        self.rows = np.array([[*row, *[0.0] * (tableau.stages - len(row))] for row in rows])
        self.failed, self.taken = (ops.scratch(name, (1,)) for name in ("failed stages", "iterations"))
        self._active, self._excess = (ops.scratch(name, (1,)) for name in ("active", "excess of change"))
        self._start, self._value, self._rest, self._change, self._excesses = (
            ops.scratch(name, (n,)) for name in ("stage without itself", "value", "rest", "change", "excesses of change")
        )
        self._tolerated = float(np.finfo(ops.dtype).eps) ** (4.0 / 3.0)  # of squares: what is left is two thirds of all digits

    def solve(self, seen: View, state: View, h: Length, inverse: View) -> None:
        """Record the stages of a step from a state, (batch, n).

        `seen`, (batch, stages, features), has what the right-hand side sees behind the state. The states of the stages are
        filled, of which the last one is the end of the step; so are `inverse`, (batch, n, n), and how many stages have `failed`
        and how many iterations were `taken`.
        """
        ops, n, later = self.ops, self.n, self.later
        states, slopes = seen.slice(-1, 0, n), ops.scratch("slopes", (later + 1, n))
        behind = states.slice(1, 1, later + 1)
        columns = ops.constant("weights of slopes", self.rows[1:].T[:, :, None])  # (of slope, in stage, 1)
        ops.copy(states.index(1, 0), state)
        self._prepare(inverse, seen.index(1, 0), h)
        ops.copy(slopes.index(1, 0), self._value)
        self.add(behind, state.expand(1), h, columns.index(0, 0), self._value.expand(1))
        for view in (self.failed, self.taken):
            ops.fill(view, 0.0)
        with ops.loop(later, closed=True) as stage:
            before, slope = (stage.now(slopes.slice(1, k, k + later), 1) for k in (0, 1))
            ops.copy(slope, before)
            self._iterate(stage.now(seen.slice(1, 1, later + 1), 1), state, slope, h, inverse)
            column = stage.now(columns.slice(0, 1, later + 1), 0)
            self.add(behind, behind, h, column, slope.expand(1))

    def add(self, out: View, a: View, h: Length, weights: View, b: View) -> None:
        """Record ``out = a + h * weights * b``, of arrays (batch, stages, n)."""
        if isinstance(h, View):
            length = h.expand(1) if h.batched else h
            self.ops.map(out, lambda a, h, weight, b: a + h * weight * b, a, length, weights, b)
        else:
            self.ops.map(out, lambda a, weight, b: a + h * weight * b, a, weights, b)

    def _prepare(self, inverse: View, seen: View, h: Length) -> None:
        """Record the inverse of ``1 - h * gamma * J``, and the slope, where the right-hand side sees this."""
        ops, gamma, n = self.ops, self.gamma, self.n
        matrix, identity = ops.scratch("newton matrix", (n, n)), ops.constant("identity", np.eye(n))
        at, jet = ops.scratch("where the step begins", seen.sample_shape), Jet(ops, (1,) * n)
        ops.copy(at, seen)
        units = ops.constant("units", np.eye(n, seen.sample_shape[-1]))
        for j in range(n):
            tangent = ops.scratch(f"tangent {j}", at.sample_shape)
            ops.copy(tangent, units.index(0, j))
            jet.perturb(at, (j, 1), tangent)
        begun = len(ops.operations)
        self.rhs.forward(ops, at, self._value)
        recorded = ops.operations[begun:]
        del ops.operations[begun:]
        jet.record(recorded)
        for j in range(n):
            column, unit, slope = matrix.index(2, j), identity.index(1, j), jet.coefficient(self._value, (j, 1))
            if slope is None:
                ops.copy(column, unit)
            elif isinstance(h, View):
                ops.map(column, lambda one, slope, h: one - h * gamma * slope, unit, slope, h)
            else:
                ops.map(column, lambda one, slope: one - h * gamma * slope, unit, slope)
        record_inverse(ops, inverse, matrix)

    def _iterate(self, seen: View, before: View, slope: View, h: Length, inverse: View) -> None:
        """Record the slope and the state of a stage, from a guess of the slope and the state without it."""
        ops, state, start, gamma, tolerated = self.ops, seen.slice(-1, 0, self.n), self._start, self.gamma, self._tolerated
        lengths = [h] if isinstance(h, View) else []

        def improved(active: Any, k: Any, change: Any, x: Any, y: Any, *length: Any) -> tuple[Any, Any]:
            moved = (length[0] if length else h) * gamma * change
            return where(active > 0.0, k + change, k), moved * moved - tolerated * (x * x + y * y)

        ops.copy(start, state)
        ops.fill(self._active, 1.0)
        with ops.loop(ITERATIONS, only=lambda _: self._active):
            combine(ops, state, start, h, [(gamma, slope)])
            self.rhs.forward(ops, seen, self._value)
            ops.map(self._rest, lambda value, k: value - k, self._value, slope)
            ops.matmul(self._change.expand(-1), inverse, self._rest.expand(-1))
            operands = self._active, slope, self._change, state, before, *lengths
            ops.map((slope, self._excesses), improved, *operands)
            ops.sum(self._excess, self._excesses)
            ops.map((self.taken, self._active), _counted, self.taken, self._active, self._excess)
        ops.map(self.failed, lambda failed, active: failed + active, self.failed, self._active)
        combine(ops, state, start, h, [(gamma, slope)])

    def pull(
        self, d_value: View, d_seen: View, d_slope: View, h: Length, inverse: View, pullback: Callable[[View, View], None]
    ) -> None:
        """Record the cotangents of the right-hand side's result and of what it sees, from that of a slope.

        ``pullback(dy, dx)`` records the pullback of the right-hand side.
        """
        ops, d_state, gamma, tolerated = self.ops, d_seen.slice(-1, 0, self.n), self.gamma, self._tolerated
        lengths = [h] if isinstance(h, View) else []

        def improved(active: Any, w: Any, change: Any) -> tuple[Any, Any]:
            new = where(active > 0.0, w + change, w)
            return new, change * change - tolerated * new * new

        for view in (d_value, d_state):
            ops.fill(view, 0.0)
        ops.fill(self._active, 1.0)
        with ops.loop(ITERATIONS, only=lambda _: self._active):
            rest = lambda c, w, d, *length: c + (length[0] if length else h) * gamma * d - w  # noqa: E731
            ops.map(self._rest, rest, d_slope, d_value, d_state, *lengths)
            ops.matmul(self._change.expand(-1), inverse.swap(1, 2), self._rest.expand(-1))
            ops.map((d_value, self._excesses), improved, self._active, d_value, self._change)
            ops.sum(self._excess, self._excesses)
            ops.copy(self._value, d_value)  # a pullback may overwrite it
            pullback(self._value, d_seen)
            ops.map(self._active, lambda active, excess: where(excess <= 0.0, 0.0, active), self._active, self._excess)

    def judged(self, error: Any, failed: Any, taken: Any) -> Any:
        """The relative error of a step, squared, by which its length changes: a formula.

        A step with a failed stage is halved. Lengths grow by no more than what leaves enough iterations.
        """
        safety, power = 0.9, 2.0 * self.order
        many = exp(log(maximum(taken * (safety / (self.later * ITERATIONS)), 1e-3)) * power)
        return where(failed > 0.0, maximum(error, (2.0 * safety) ** power), maximum(error, many))


def _counted(taken: Any, active: Any, excess: Any) -> tuple[Any, Any]:
    """The number of iterations, and whether there are more: where the last one has changed something, or given NaN."""
    return taken + active, where(excess <= 0.0, 0.0, active)
