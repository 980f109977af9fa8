"""Fits of NIST's data sets by chains, SciPy and MINPACK: ``python -m benchmarks.studies.nist``.

A fit is `Equations` with SquaredLoss. *digits* are those of the sum of squared residuals that agree with the certified one, 11
at most; a fit is solved from 4 on. *calls* are those of the function with its gradient, for MINPACK those of the residuals.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.studies.nist_data import PROBLEMS, Problem
from chains import Chain, Equations, SquaredLoss, minimize
from chains.objectives.objective import Objective

SOLVED, MOST = 4.0, 11.0  # digits
EXACT = 1e-15  # sums of squares relative to that of the data, below which digits are rounding
Fit = Callable[[Objective, np.ndarray], tuple[np.ndarray, int]]  # the parameters and the number of calls


def objective(problem: Problem, backend: str = "numpy") -> Objective:
    """The sum of squared residuals of a data set, divided by twice their number."""
    names = [f"b{k + 1}" for k in range(len(problem.starts[0]))]
    inputs = ("x", "z")[: problem.x.shape[1]]
    net = Chain(Equations(problem.formula, inputs, parameters=dict.fromkeys(names, 0.0)), backend=backend)
    return net.objective(problem.x, problem.y, SquaredLoss())


def digits(problem: Problem, function: Objective, p: np.ndarray) -> float:
    """How many digits of the sum of squares are the certified ones."""
    found = 2.0 * function.batch * function.value(p)
    error = abs(found - problem.certified) - EXACT * float(np.sum(problem.y**2))
    if not math.isfinite(error):
        return 0.0
    return min(MOST, max(0.0, -math.log10(max(error, 1e-300) / problem.certified)))


def _chains(method: str) -> Fit:
    def fit(function: Objective, p: np.ndarray) -> tuple[np.ndarray, int]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the parameters have sizes from")
            found = minimize(function, p, method, gtol=0.0, ftol=0.0, progress=False)
        return found.x, found.nfev

    return fit


def _scipy(method: str) -> Fit:
    def fit(function: Objective, p: np.ndarray) -> tuple[np.ndarray, int]:
        from scipy.optimize import minimize

        found = minimize(
            function, p, jac=True, method=method, options={"gtol": 0.0} | ({"ftol": 0.0} if method == "L-BFGS-B" else {})
        )
        return found.x, found.nfev

    return fit


def _minpack(function: Objective, p: np.ndarray) -> tuple[np.ndarray, int]:
    from scipy.optimize import least_squares

    found = least_squares(
        function.residuals, p, function.jacobian, method="lm", x_scale="jac", ftol=1e-15, xtol=1e-15, gtol=1e-15
    )
    return found.x, found.nfev


FITS: dict[str, Fit] = {
    "BFGS": _chains("BFGS"),
    "SciPy's BFGS": _scipy("BFGS"),
    "SSBroyden": _chains("SSBroyden"),
    "L-BFGS": _chains("L-BFGS"),
    "SciPy's L-BFGS-B": _scipy("L-BFGS-B"),
    "LM": _chains("LM"),
    "MINPACK": _minpack,
}


def perturbed(problem: Problem, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Starts around the published ones, in turn: each parameter is changed by up to a fifth."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        yield np.array(problem.starts[k % 2]) * rng.uniform(0.8, 1.2, len(problem.starts[0]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), help="by default all")
    parser.add_argument("--perturbed", type=int, default=20, help="further starts of each problem")
    parser.add_argument("--methods", nargs="+", default=list(FITS), choices=list(FITS))
    parser.add_argument("--backend", default="native")
    chosen = parser.parse_args(arguments)
    fits = {name: FITS[name] for name in chosen.methods}
    print(f"| | start | {' | '.join(f'{name}: digits, calls' for name in fits)} |", f"| {'--- | ' * (len(fits) + 2)}", sep="\n")
    published, others, calls = (dict.fromkeys(fits, 0) for _ in range(3))
    rows = []
    for name in chosen.problems:
        problem = PROBLEMS[name]
        function = objective(problem, chosen.backend)
        for number, start in enumerate(problem.starts, 1):
            cells = []
            for fit in fits:
                agree, count = _fitted(problem, function, fits[fit], np.array(start, float))
                published[fit] += agree >= SOLVED
                calls[fit] += count
                cells.append(f"{agree:.1f}, {count}" if agree >= SOLVED else f"**{agree:.1f}**, {count}")
            print(f"| {name} ({problem.level}) | {number} | {' | '.join(cells)} |", flush=True)
        starts = list(perturbed(problem, chosen.perturbed))
        solved = {fit: sum(_fitted(problem, function, fits[fit], p)[0] >= SOLVED for p in starts) for fit in fits}
        for fit in fits:
            others[fit] += solved[fit]
        rows.append(f"| {name} | {chosen.perturbed} perturbed | {' | '.join(str(solved[fit]) for fit in fits)} |")
    print(*rows, sep="\n")
    total, more = 2 * len(chosen.problems), chosen.perturbed * len(chosen.problems)
    print(f"| solved of {total} | published | {' | '.join(str(published[fit]) for fit in fits)} |")
    print(f"| solved of {more} | perturbed | {' | '.join(str(others[fit]) for fit in fits)} |")
    print(f"| calls | published | {' | '.join(str(calls[fit]) for fit in fits)} |")


def _fitted(problem: Problem, function: Objective, fit: Fit, start: np.ndarray) -> tuple[float, int]:
    with np.errstate(all="ignore"):
        p, calls = fit(function, start)
    return digits(problem, function, p), calls


if __name__ == "__main__":
    main()
