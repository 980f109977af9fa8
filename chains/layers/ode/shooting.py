"""Segments of trajectories with trained initial states, for multiple shooting."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from chains.layers.base import Declaration, Layer
from chains.layers.ode.layer import ODE
from chains.program.recorder import Recorder
from chains.program.view import View


class Shooting(Layer):
    """The solution of an `ODE` along a segment, from a trained state, and its gap to the state where the next segment starts.

    A sample (2, segments) has ones at the number of a segment and at that of the next one. The output (times + 1, n) has the
    states of the segment. Its last row is the last state minus the next segment's initial state.

    Parameters
    ----------
    ode : ODE
        The equation; its times are replaced.
    features : array, shape (segments, given + times)
        The known features of each segment: the `given` features of the equation, then the times.
    n : int
        The length of the state.
    """

    def __init__(self, ode: ODE, features: np.ndarray, n: int) -> None:
        self.features = features
        self.n = n
        self.ode = copy.copy(ode)
        self.ode.times = features.shape[1] - ode.given

    def declare(self, d: Declaration) -> None:
        (segments, known), n = self.features.shape, self.n
        d.param("starts", (segments, n), "zeros")
        shape = d.child("", self.ode, (n + known,))
        d.saved("pair", (2, n))
        d.saved("begin", (n + known,))
        d.saved("solved", shape)
        d.temporary("d_pair", (2, n))
        d.temporary("d_begin", (n + known,))
        d.temporary("d_solved", shape)
        d.output((shape[0] + 1, n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (ode,), n, times = s.children, self.n, y.sample_shape[0] - 1
        ops.matmul(s.pair.rows, x.rows, p.starts)
        ops.copy(s.begin.slice(-1, 0, n), s.pair.index(1, 0))
        ops.matmul(s.begin.slice(-1, n, s.begin.sample_shape[0]), x.index(1, 0), ops.constant("features", self.features))
        ode.forward(ops, s.begin, s.solved)
        ops.copy(y.slice(1, 0, times), s.solved)
        ops.map(y.index(1, -1), lambda last, start: last - start, s.solved.index(1, -1), s.pair.index(1, 1))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (ode,), times = s.children, y.sample_shape[0] - 1
        last, gap = s.d_solved.index(1, -1), dy.index(1, -1)
        ops.copy(s.d_solved, dy.slice(1, 0, times))
        ops.map(last, lambda a, b: a + b, last, gap)
        ode.pullback(ops, s.begin, s.solved, s.d_solved, s.d_begin)
        ops.copy(s.d_pair.index(1, 0), s.d_begin.slice(-1, 0, self.n))
        ops.map(s.d_pair.index(1, 1), lambda gap: -gap, gap)
        ops.matmul(g.starts, x.rows.T, s.d_pair.rows)
        ops.fill(dx, 0.0)  # inputs are numbers of segments

    def __repr__(self) -> str:
        return f"Shooting({self.ode!r}, {len(self.features)} segments)"
