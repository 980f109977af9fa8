"""Burgers' equation, solved: the network, the transform and the reference of `examples/burgers.py`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Criterion
from benchmarks.problems import time_to_error

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import burgers as example

POINTS, CANDIDATES, CHECKED = 3000, 30_000, 4000


def runs(options: Options) -> list[tuple[str, list[Criterion]]]:
    grid = example.points_of(CHECKED, 12345, uniform=True)
    problem = time_to_error.Problem(
        title="Burgers' equation, 2-20-20-20-1 tanh",
        net=example.network_of(20, 3),
        stated=example.problem_of(example.points_of(POINTS, 0, uniform=True)),
        candidates=lambda seed: example.points_of(CANDIDATES, seed, uniform=True),
        grid=grid,
        exact=example.exact(grid),
        jax_residual=residual,
        jax_transform=transform,
        rate=example.RATE,
        seconds=45.0,
    )
    return time_to_error.runs(problem, options)


def residual(u: Any, points: Any) -> Any:
    from benchmarks.peers.jax_solve import first, second

    value, u_x, u_xx = second(u, points, 1)
    return first(u, points, 0) + value * u_x - example.VISCOSITY * u_xx


def transform(y: Any, z: Any) -> Any:
    import jax.numpy as jnp

    t, x = z[:, 0], z[:, 1]
    return t * (1.0 - x * x) * y - jnp.sin(math.pi * x)
