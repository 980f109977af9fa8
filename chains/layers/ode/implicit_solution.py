"""The way through the steps of an implicit method, forwards and backwards, as it is recorded.

What Newton's iterations save is overwritten. So the right-hand side is evaluated once more at all stages of a segment, for the
pullback; this, and the gradients of its parameters, wait for no state, and become products over all steps and stages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from chains.expr import where
from chains.layers.ode.gradient_sums import GradientSums
from chains.layers.ode.grid import Around
from chains.layers.ode.implicit import ImplicitStages
from chains.layers.ode.solution import Solution
from chains.layers.ode.stages import Copies, at_once
from chains.program.recorder import Recorder
from chains.program.steps import Steps
from chains.program.view import View


class ImplicitSolution(Solution):
    """The steps of an implicit method on a grid, as `Solution`; `s` has the `inverse` of the matrix of each step too."""

    def _run(self, at: Around, length: int, state: View, befores: View | None, *, keeps: bool) -> None:
        ops, n, s, stages = self.ops, self.n, self.s, self.tableau.stages
        newton = ImplicitStages(ops, self.tableau, at_once(ops, self.rhs), n)
        known = self.inputs.at_stages(self.grid, self.tableau)
        with ops.loop(length) as step:
            h = self._length(at, step)
            if befores is not None:
                ops.copy(step.now(befores, 1), state)
            seen = step.now(s.x, 1) if keeps else ops.scratch("seen", (stages, self.inputs.width))
            inverse = step.now(s.inverse, 1) if keeps else ops.scratch("inverse", (n, n))
            for i, c in enumerate(self.tableau.c):
                own = None if known is None else self._now(known, at, step).index(0, i)
                self._behind(seen.index(1, i), own, at, step, h, c)
            newton.solve(seen, state, h, inverse)
            end = seen.index(1, stages - 1).slice(-1, 0, n)
            if self.clock is None:
                ops.map(state, lambda y, failed: where(failed > 0.0, np.nan, y), end, newton.failed)
            else:
                ops.copy(state, end)
        if keeps:
            with ops.loop(self._evaluations) as each:
                kept = Copies(ops, partial(self._flat, each))
                evaluated = self.rhs.at_a_step(kept.array, lambda _, view: view, {})
                evaluated.forward(ops, self._flat(each, s.x), self._flat(each, s.k))
                kept.keep()

    @property
    def _evaluations(self) -> int:
        """How many stages the steps of a segment have."""
        return self.grid.cut.length * self.tableau.stages

    def _flat(self, each: Steps, view: View) -> View:
        """The entry for one of these, of an array (batch, steps, stages, ...)."""
        return each.now(view.reshape(self._evaluations, *view.sample_shape[2:]), 1)

    def _back(self, at: Around, sums: GradientSums, d_state: View, dy: View, d_times: View | None, d_given: View) -> None:
        ops, n, s, stages, width = self.ops, self.n, self.s, self.tableau.stages, self.inputs.width
        newton = ImplicitStages(ops, self.tableau, at_once(ops, self.rhs), n)
        d_values = ops.scratch("d_k", (self.grid.cut.length, stages, n))
        d_slopes = ops.scratch("d_slopes", (stages, n))
        d_seen, d_all = (ops.scratch(name, (width,)) for name in ("d_x", "d_x of all stages"))
        weights = ops.constant("weights of ends", np.array(newton.weights)[:, None])
        rows = ops.constant("weights in stages", newton.rows[:, :, None])  # (in stage, of slope, 1)
        with ops.loop(self.grid.cut.length, backwards=True) as step:
            h = self._length(at, step)
            if d_times is None:
                self._arrive(d_state, dy, self._now(s.ends, at, step), self._now(s.lengths, at, step))
            own, inverse = step.now(d_values, 1), step.now(s.inverse, 1)
            ops.fill(d_all, 0.0)
            ops.fill(d_slopes, 0.0)
            newton.add(d_slopes, d_slopes, h, weights, d_state.expand(1))
            with ops.loop(stages - 1, backwards=True, closed=True) as stage:
                later = lambda view: stage.now(view.slice(1, 1, stages), 1)  # noqa: E731
                pullback = self._pullback(ops, lambda view: later(step.now(view, 1)))
                newton.pull(later(own), d_seen, later(d_slopes), h, inverse, pullback)
                row = stage.now(rows.slice(0, 1, stages), 0)
                newton.add(d_slopes, d_slopes, h, row, d_seen.slice(-1, 0, n).expand(1))
                ops.map(d_all, lambda total, d: total + d, d_all, d_seen)
            ops.copy(own.index(1, 0), d_slopes.index(1, 0))
            ops.copy(d_slopes.index(1, 1), d_slopes.index(1, 0))  # a pullback may overwrite it
            pullback = self._pullback(ops, lambda view: step.now(view, 1).index(1, 0))
            pullback(d_slopes.index(1, 1), d_seen)
            ops.map(d_all, lambda total, d: total + d, d_all, d_seen)
            more = [] if d_times is None else [step.now(d_times, 1)]
            ops.map(d_state, lambda *terms: sum(terms), d_state, *more, d_all.slice(-1, 0, n))
            if self.inputs.given:
                given = d_all.slice(-1, n, n + self.inputs.given)
                ops.map(d_given, lambda total, d: total + d, d_given, given)
        self._gradients(at, sums, d_values)

    def _pullback(self, ops: Recorder, entry: Callable[[View], View]) -> Callable[[View, View], None]:
        """What records the pullback of the right-hand side in a stage, without gradients; what it needs is recorded now."""
        kept = Copies(ops, entry)
        unread = lambda name, view: ops.scratch(f"{name}, unread", view.sample_shape, batched=False)  # noqa: E731
        evaluated = self.rhs.at_a_step(kept.array, unread, {})
        kept.fetch()
        return partial(evaluated.pullback, ops, entry(self.s.x), entry(self.s.k))

    def _gradients(self, at: Around, sums: GradientSums, d_values: View) -> None:
        """Record the gradients of parameters of all evaluations of a segment."""
        ops = self.ops
        with ops.loop(self._evaluations, backwards=True) as each:
            kept = Copies(ops, partial(self._flat, each))
            evaluated = self.rhs.at_a_step(kept.array, partial(sums.of_step, at, each), {})
            kept.fetch()
            x, k, d_value = (self._flat(each, view) for view in (self.s.x, self.s.k, d_values))
            evaluated.pullback(ops, x, k, d_value, ops.scratch("d_x, unread", (self.inputs.width,)))
