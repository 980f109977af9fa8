"""Helmholtz' equation, solved: u_xx + u_yy + u = f on a square, with four waves in one direction.

The problem is that of Wang, Teng and Perdikaris (2021).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Criterion
from benchmarks.problems import time_to_error
from chains import Chain, Dense, ResidualProblem, Term, tanh
from chains.expr import sin

POINTS, CANDIDATES, CHECKED = 2000, 20_000, 4000
FACTOR = 1.0 - 17.0 * math.pi**2  # of the solution, in f


def points_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 2))


def runs(options: Options) -> list[tuple[str, list[Criterion]]]:
    grid = points_of(CHECKED, 12345)
    stated = ResidualProblem(
        ("x", "y"),
        ("u",),
        [
            Term(
                lambda u, x, y: u.xx + u.yy + u - FACTOR * sin(math.pi * x) * sin(4.0 * math.pi * y),
                points_of(POINTS, 0),
            )
        ],
        transform=lambda u, x, y: (1.0 - x * x) * (1.0 - y * y) * u,
    )
    problem = time_to_error.Problem(
        title="Helmholtz' equation, 2-20-20-20-1 tanh",
        net=Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 1)),
        stated=stated,
        candidates=lambda seed: points_of(CANDIDATES, seed),
        grid=grid,
        exact=np.sin(math.pi * grid[:, 0]) * np.sin(4.0 * math.pi * grid[:, 1]),
        jax_residual=residual,
        jax_transform=lambda y, z: (1.0 - z[:, 0] ** 2) * (1.0 - z[:, 1] ** 2) * y,
        rate=1e-3,
        seconds=50.0,
    )
    return time_to_error.runs(problem, options)


def residual(u: Any, points: Any) -> Any:
    import jax.numpy as jnp

    from benchmarks.peers.jax_solve import second

    value, _, u_xx = second(u, points, 0)
    u_yy = second(u, points, 1)[2]
    return u_xx + u_yy + value - FACTOR * jnp.sin(math.pi * points[:, 0]) * jnp.sin(4.0 * math.pi * points[:, 1])
