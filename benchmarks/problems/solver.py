"""A network as the right-hand side of SciPy's solver: 3-16-3, one state a call, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import Chain, Dense, tanh

CALLS = 100_000  # of the right-hand side in a solution


def contests(options: Options) -> list[Contest]:
    net = Chain(Dense(3, 16, tanh), Dense(16, 3), backend="native")
    p = net.init(np.random.default_rng(0), np.float64)  # as in the stored results
    f, y = net.bound(p), np.array([0.1, 0.2, 0.3])
    out = np.empty(3)
    own: list[Contestant | Absent] = [
        repeated("chains, bound", lambda: f(y), 1000),
        repeated("chains, bound, into an array", lambda: f(y, out), 1000),
        repeated("chains, a batch of one", lambda: net(y[None], p)[0], 1000),
        repeated("nothing: a function that returns its argument", lambda: _same(y), 1000),
    ]
    solved: list[Contestant | Absent] = [
        repeated("solve_ivp with chains, bound", lambda: _solved(lambda t, y: f(y))),
        repeated("solve_ivp with nothing", lambda: _solved(lambda t, y: y)),
    ]
    return [
        Contest(
            key="solver_call",
            title="one state through 3-16-3, called from Python, float64",
            unit="call",
            contestants=own,
            judged="relative error",
            judge=lambda found: 0.0 if np.array_equal(found, y) else error(net(y[None], p)[0])(found),
            criteria=_criteria,
        ),
        Contest(
            key="solver",
            title=f"solve_ivp, RK45, {CALLS:,} calls of the right-hand side",
            unit="solution",
            contestants=solved,
            judged="calls of the right-hand side",
            judge=lambda found: float(found),
            criteria=_solver_criteria,
        ),
    ]


def _same(y: Any) -> Any:
    return y


def _solved(rhs: Callable[[float, Any], Any]) -> int:
    """Steps of a fixed length; the number of calls of the right-hand side."""
    steps = CALLS // 6
    found = solve_ivp(rhs, (0.0, 1e-3 * steps), [0.1, 0.2, 0.3], "RK45", [0.0], first_step=1e-3, max_step=1e-3, rtol=1e-3)
    return int(found.nfev)


def _criteria(table: Table) -> list[Criterion]:
    own = table.best("chains, bound")
    return [] if own is None else [Criterion("solver: microseconds of a bound call", own.median * 1e6, "<= 0.7")]


def _solver_criteria(table: Table) -> list[Criterion]:
    own, none = table.best("solve_ivp with chains, bound"), table.best("solve_ivp with nothing")
    if own is None or none is None:
        return []
    return [Criterion("solver: microseconds of the network in a call", (own.median - none.median) / CALLS * 1e6, "<= 1.2")]
