"""SciPy's optimisers on an `ODE` that fails at some parameters: ``python -m benchmarks.studies.optimisers``.

A neural differential equation of 16 hidden units learns a spiral, with at most 20 attempts of step control: the gradients are
large at the start, so that first steps are too long, and the solution fails. Each method runs by `scipy.optimize.minimize`
with the objective as it is, and by `objective.minimize`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains import ODE, Chain, Dense, Equations, MSELoss, tanh
from chains.objectives.objective import Objective

METHODS = ("BFGS", "CG", "L-BFGS-B")
TIMES = np.linspace(0.0, 8.0, 17)


def problem() -> tuple[Chain, Objective]:
    """The network, and its objective: a spiral, y' = A y^3, as in Chen et al. 2018 (arXiv 1806.07366)."""
    spiral = Equations(lambda a, b: (-0.1 * a * a * a + 2.0 * b * b * b, -2.0 * a * a * a - 0.1 * b * b * b), inputs=("a", "b"))
    exact = Chain(ODE(spiral, TIMES, rtol=1e-9, max_steps=1000))
    start = np.array([[2.0, 0.0]])
    target = exact(start, exact.init(dtype=np.float64))
    net = Chain(ODE(Chain(Dense(2, 16, tanh), Dense(16, 2)), TIMES, rtol=1e-6, max_steps=20))
    return net, net.objective(start, target, MSELoss())


def starts(net: Chain, objective: Objective, count: int) -> list[np.ndarray]:
    """Starting parameters at which the solution does not fail."""
    found, seed = list[np.ndarray](), 0
    while len(found) < count:
        p = net.init(np.random.default_rng(seed), np.float64)  # as in the stored results
        found += [p] if math.isfinite(objective.value(p)) else []
        seed += 1
    return found


def row(objective: Objective, points: Sequence[np.ndarray], run: Callable[[np.ndarray], Any]) -> str:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        ends = [float(run(p).fun) for p in points]
    lower = sum(end < objective.value(p) for end, p in zip(ends, points, strict=True))
    finite = [end for end in ends if math.isfinite(end)]
    median = f"{statistics.median(finite):.3f}" if finite else "-"
    return f"{len(finite)} | {lower} | {median}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=200, help="at most, of a run")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="of SciPy")
    chosen = parser.parse_args(arguments)
    from scipy.optimize import minimize

    net, objective = problem()
    points, options = starts(net, objective, chosen.starts), {"maxiter": chosen.iterations}
    print(f"{chosen.starts} starts; the median of the finite values")
    print("| | runs | finite | lower than the start | median value |", "| --- | --- | --- | --- | --- |", sep="\n")
    for method in chosen.methods:
        plain = row(objective, points, lambda p: minimize(objective, p, jac=True, method=method, options=options))  # noqa: B023
        print(f"| scipy.optimize.minimize, {method} | {chosen.starts} | {plain} |")
        own = row(objective, points, lambda p: objective.minimize(p, method, progress=False, options=options))  # noqa: B023
        print(f"| objective.minimize, {method} | {chosen.starts} | {own} |", flush=True)


if __name__ == "__main__":
    main()
