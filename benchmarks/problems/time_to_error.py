"""Residual problems solved by the same method, in chains and in JAX: when the error falls below bounds.

The method is that of `chains.solve`: Adam, then SSBroyden, with the points drawn anew by the residual before each round.
Points, candidates, start and seeds are common. An error is that after a round, so that times are those of whole rounds. What
is compiled before the start is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Criterion
from chains import Adam, Chain, ResidualProblem, solve

BOUNDS = (1e-3, 1e-4, 1e-5, 1e-6)
QUICK_SECONDS = 20.0
ADAM, EVERY, ITERATIONS = 1000, 500, 10**6
History = list[tuple[float, int, float]]  # seconds, iterations, error


@dataclass
class Problem:
    """A residual problem of one term, in chains and in JAX."""

    title: str
    net: Chain
    stated: ResidualProblem
    candidates: Callable[[int], np.ndarray]  # of a seed
    grid: np.ndarray
    exact: np.ndarray
    jax_residual: Callable[..., Any]
    jax_transform: Callable[..., Any]
    rate: float  # of Adam
    seconds: float  # no round begins later

    @property
    def points(self) -> np.ndarray:
        return self.stated.x

    def error(self, p: np.ndarray) -> float:
        """The relative L2 error on the grid."""
        found = self.stated.evaluate(self.net, p, self.grid)["u"]
        return float(np.linalg.norm(found - self.exact) / np.linalg.norm(self.exact))


def runs(problem: Problem, options: Options) -> list[tuple[str, list[Criterion]]]:
    """A table of all contestants."""
    seconds = min(QUICK_SECONDS, problem.seconds) if options.quick else problem.seconds
    start = problem.net.init(np.random.default_rng(0), np.float64)  # as in the stored results
    rows = {"chains": _by_chains(problem, start, seconds)}
    if "jax" in options.peers and find_spec("jax"):
        from benchmarks.peers import jax_solve

        rows["JAX"] = jax_solve.solved(problem, start, seconds, problem.rate, ADAM, EVERY, ITERATIONS)
    heads = [f"s to {bound:.0e}" for bound in BOUNDS]
    lines = [
        f"{problem.title}: {problem.net.n_params} parameters, {len(problem.points):,} points, float64",
        f"{'':10}{''.join(f'{head:>12}' for head in heads)}{'error':>12}{'seconds':>10}{'iterations':>12}{'ms each':>10}",
    ]
    for name, history in rows.items():
        times = [next((f"{at:.1f}" for at, _, error in history if error < bound), "-") for bound in BOUNDS]
        (first, _, _), (last, iterations, error) = history[0], history[-1]
        each = 1e3 * (last - first) / max(1, iterations)
        reached = "".join(f"{at:>12}" for at in times)
        lines.append(f"{name:10}{reached}{error:12.1e}{last:10.1f}{iterations:12,}{each:10.2f}")
    return [("\n".join(lines), [])]


def _by_chains(problem: Problem, start: np.ndarray, seconds: float) -> History:
    def run(adam: int, iterations: int) -> Any:
        return solve(
            problem.net, start, problem.stated, adam=adam, optimizer=Adam(problem.rate), iterations=iterations, every=EVERY,
            candidates=problem.candidates, metrics={"error": problem.error}, seconds=seconds, progress=False,
        )  # fmt: skip

    run(1, 1)  # compiles
    found = run(ADAM, ITERATIONS)
    return list(zip(found.seconds, found.iterations, found.metrics["error"], strict=True))
