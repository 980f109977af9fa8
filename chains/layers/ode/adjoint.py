"""The continuous adjoint: a gradient by solving state, cotangent and gradient of parameters backwards in time.

The cotangent a of the state follows ``da/dt = -transpose(J) a``, with the Jacobian matrix J of the right-hand side k, and the
gradient of its parameters p is the integral of ``transpose(dk/dp) a``. They are solved by the same method, in the same steps,
from the state at each of the times back to the time before. So no step has to be kept. The result approximates the gradient of
the exact solution, to the order of the method. It is not the exact gradient of the computed numbers. Source: Chen et al.,
"Neural ordinary differential equations", 2018; diffrax calls it BacksolveAdjoint, torchdiffeq odeint_adjoint.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from chains.expr import maximum, where
from chains.layers.ode.grid import Around
from chains.layers.ode.methods import Length, combine, move
from chains.layers.ode.right_side import GradientSums, Kept
from chains.layers.ode.solution import Solution
from chains.program.loop import Steps
from chains.program.view import View


class Adjoint(Solution):
    """The steps on a grid whose segments end at the times (`apart`), with the continuous adjoint instead of the pullback."""

    def forward(self, start: View, y: View, states: View | None = None) -> None:
        if states is not None:
            raise ValueError("an adjoint keeps no states")
        ops, intervals = self.ops, self.grid.intervals
        state = ops.scratch("state", (self.n,))
        ops.copy(state, start)
        with ops.loop(intervals, closed=True) as at:
            ops.copy(at.now(y.slice(1, 0, intervals), 1), state)
            self._run((at,), self.grid.total // intervals, state, None, keeps=False)
        ops.copy(y.index(1, intervals), state)

    def pullback(self, y: View, dy: View, dx: View, failed: View | None, d_end: View | None = None) -> None:
        ops, n, known, last = self.ops, self.n, self.n + self.inputs.given, self.grid.intervals
        state, d_state, d_given = ops.scratch("state", (n,)), ops.scratch("d_state", (n,)), dx.slice(-1, n, known)
        sums = GradientSums(ops, self.grid, self.rhs)
        self._begin_pullback(d_state, None if self.clock is not None else dy.index(1, last), dx, failed, dy)
        if self.clock is not None:
            ops.copy(state, y.index(1, last))
            with self._segments(backwards=True, failed=failed) as at:
                self._solve_back(at, sums, state, d_state, d_given, (y, dy))
            self._add_cotangents(d_state, dy, self.clock.slice(-1, 0, 1))
        else:
            with ops.loop(last, backwards=True, closed=True) as interval:
                ops.copy(state, interval.now(y.slice(1, 1, last + 1), 1))
                with ops.loop(self.grid.cut.segments // last, backwards=True, closed=True) as segment:
                    self._solve_back((interval, segment), sums, state, d_state, d_given)
                ops.map(d_state, lambda a, b: a + b, d_state, interval.now(dy.slice(1, 0, last), 1))
        ops.copy(dx.slice(-1, 0, n), d_state)
        sums.add_up()

    def _solve_back(
        self, at: Around, sums: GradientSums, state: View, d_state: View, d_given: View,
        outputs: tuple[View, View] | None = None,
    ) -> None:  # fmt: skip
        """Record the steps of a segment back in time: state, cotangent of the state, and cotangent of the given features."""
        ops, tableau, n, s, known = self.ops, self.tableau, self.n, self.s, self.n + self.inputs.given
        ((rows, weights),), stages = tableau.halves, range(tableau.stages)
        d_seen = [ops.scratch(f"d_x{i}", (self.inputs.width,)) for i in stages]  # times the length of the step
        d_states = [view.slice(-1, 0, n) for view in d_seen]
        d_slope = [ops.scratch(f"d_k{i}", (n,)) for i in stages]
        at_stages = self.inputs.at_stages(self.grid, replace(tableau, c=tuple(1.0 - c for c in tableau.c)))
        with ops.loop(self.grid.cut.length, backwards=True) as step:
            h = self._length(at, step)
            back = self._minus(h)
            if outputs is not None:
                self._restart_at_times(state, d_state, outputs, at, step)
            slopes = [step.now(s.k, 1).index(1, i) for i in stages]
            for i, k in enumerate(slopes):
                seen = step.now(s.x, 1).index(1, i)
                move(ops, tableau, seen.slice(-1, 0, n), state, back, [rows[i]], slopes)
                own = None if at_stages is None else self._now(at_stages, at, step).index(0, i)
                self._record_inputs(seen, own, at, step, h, 1.0 - tableau.c[i])
                kept = Kept(ops, step, i)
                stage = self.rhs.at_a_step(kept.array, partial(sums.of_step, at, step, weight=weights[i]), {})
                stage.forward(ops, seen, k)
                kept.keep()
                terms = [(1.0, d_state), *((a, d) for a, d in zip(rows[i], d_states, strict=False) if a)]
                combine(ops, d_slope[i], None, h, terms)
                stage.pullback(ops, seen, k, d_slope[i], d_seen[i])
            move(ops, tableau, state, state, back, [weights], slopes)
            used = [(weight, i) for i, weight in enumerate(weights) if weight]
            combine(ops, d_state, d_state, 1.0, [(weight, d_states[i]) for weight, i in used])
            if self.inputs.given:
                combine(ops, d_given, d_given, 1.0, [(weight, d_seen[i].slice(-1, n, known)) for weight, i in used])
        sums.end_segment(at)

    def _minus(self, h: Length) -> Length:
        """The length of a step back in time."""
        if not isinstance(h, View):
            return -h
        back = self.ops.scratch("length back", h.sample_shape)
        self.ops.map(back, lambda h: -h, h)
        return back

    def _restart_at_times(self, state: View, d_state: View, outputs: tuple[View, View], at: Around, step: Steps) -> None:
        """Record that a step back in time begins at one of the times: from the state there, with its cotangent added."""
        assert self.clock is not None
        ops, (y, dy) = self.ops, outputs
        end, h = (self._now(view, at, step) for view in (self.s.ends, self.s.lengths))
        self._add_cotangents(d_state, dy, end, h)
        here, of_times = ops.scratch("times here", self.clock.sample_shape), ops.scratch("states here", y.sample_shape)
        count, total = ops.scratch("count of times here", (1,)), ops.scratch("sum of states here", state.sample_shape)
        ops.map(here, lambda time, t, h: where((time == t) & (h > 0.0), 1.0, 0.0), self.clock, end, h)
        ops.map(of_times, lambda here, y: where(here > 0.0, y, 0.0), here.expand(-1), y)
        ops.sum(count, here)
        ops.sum(total.expand(1), of_times)
        ops.map(state, lambda y, count, total: where(count > 0.0, total / maximum(count, 1.0), y), state, count, total)
