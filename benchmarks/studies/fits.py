"""A thousand fits of a published model with a network term: ``python -m benchmarks.studies.fits``.

The model is NIST's Gauss1 (two Gaussians on an exponential baseline, 250 samples), with a network 1-3-1 in place of the
baseline: 16 parameters. The curves are the certified one with its parameters changed by up to 5 %, and noise. SciPy's
`least_squares` gets residuals and Jacobian written in NumPy (`--differences`: residuals alone), and joblib has a process
for each core. A fit counts as found where its sum of squares is at most 1 % above the
lower of the two libraries'.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.studies.nist_data import PROBLEMS
from chains import Chain, Dense, Equations, SquaredLoss, minimize, tanh
from chains.expr import exp

UNITS, WIDTH = 3, 250.0  # of the network; places are divided by their range
NAMES = ("a", "m", "s", "b", "n", "r")


def network() -> Chain:
    """Two Gaussians and a network for the baseline."""

    def formula(x, a, m, s, b, n, r, baseline):  # type: ignore[no-untyped-def]
        return a * exp(-(((x - m) / s) ** 2)) + b * exp(-(((x - n) / r) ** 2)) + 100.0 * baseline

    term = Chain(Dense(1, UNITS, tanh), Dense(UNITS, 1))
    return Chain(Equations(formula, ("x",), parameters=dict.fromkeys(NAMES, 1.0), networks={"baseline": (term, ("x",))}))


def data(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, curves (count, samples), and the starts of the six parameters of the Gaussians."""
    rng, problem = np.random.default_rng(0), PROBLEMS["Gauss1"]
    x = problem.x[:, 0]
    b = np.array(
        [98.778210871, 0.010497276517, 100.48990633, 67.481111276, 23.129773360, 71.994503004, 178.99805021, 18.389389025]
    )
    each = b * (1.0 + 0.05 * rng.uniform(-1.0, 1.0, (count, 8)))
    b1, b2, b3, b4, b5, b6, b7, b8 = (column[:, None] for column in each.T)
    curves = b1 * np.exp(-b2 * x) + b3 * np.exp(-(((x - b4) / b5) ** 2)) + b6 * np.exp(-(((x - b7) / b8) ** 2))
    widths = np.array([1.0, WIDTH, WIDTH, 1.0, WIDTH, WIDTH])
    return x / WIDTH, curves + 2.5 * rng.normal(size=curves.shape), np.array(problem.starts[1][2:]) / widths


def residuals(p: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    a, m, s, b, n, r = p[:6]
    w, c, v, e = p[6:9], p[9:12], p[12:15], p[15]
    baseline = np.tanh(np.multiply.outer(x, w) + c) @ v + e
    return a * np.exp(-(((x - m) / s) ** 2)) + b * np.exp(-(((x - n) / r) ** 2)) + 100.0 * baseline - y


def jacobian(p: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    j = np.empty((len(x), 16))
    for k in (0, 3):
        a, m, s = p[k : k + 3]
        z = (x - m) / s
        g = np.exp(-z * z)
        j[:, k], j[:, k + 1], j[:, k + 2] = g, 2.0 * a * g * z / s, 2.0 * a * g * z * z / s
    w, c, v = p[6:9], p[9:12], p[12:15]
    h = np.tanh(np.multiply.outer(x, w) + c)
    dh = 100.0 * v * (1.0 - h * h)
    j[:, 6:9], j[:, 9:12], j[:, 12:15], j[:, 15] = dh * (x)[:, None], dh, 100.0 * h, 100.0
    return j


def scipys(starts: np.ndarray, x: np.ndarray, curves: np.ndarray, tolerance: float, differences: bool = False) -> np.ndarray:
    """The sums of squares that MINPACK finds, in one process."""
    from scipy.optimize import least_squares

    options = {"method": "lm", "x_scale": "jac", "ftol": tolerance, "xtol": tolerance, "gtol": tolerance}
    found = (
        least_squares(residuals, p, "2-point" if differences else jacobian, args=(x, y), **options)
        for p, y in zip(starts, curves, strict=True)
    )
    return np.array([2.0 * each.cost for each in found])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.fits", description="A thousand fits.")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--differences", action="store_true", help="SciPy's Jacobian by differences, as it is by default")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    from joblib import Parallel, delayed

    x, curves, gaussians = data(options.count)
    net = network()
    starts = net.init_many(options.count, seed=0, dtype=np.float64)
    starts[:, :6] = gaussians
    objective = net.objective(x[:, None], curves[:, :, None], SquaredLoss())
    ftol, seconds = 1e-6, {"chains": [], "SciPy": []}  # type: ignore[var-annotated]
    cores = os.cpu_count() or 1
    for _ in range(options.rounds):
        begun = time.perf_counter()
        found = minimize(objective, starts, "LM", gtol=0.0, ftol=ftol, maxiter=500, progress=False)
        seconds["chains"].append(time.perf_counter() - begun)
        with Parallel(n_jobs=cores) as pool:
            pool(delayed(abs)(k) for k in range(cores))  # the processes start, and import
            pool(delayed(scipys)(starts[:2], x, curves[:2], ftol) for _ in range(cores))
            begun = time.perf_counter()
            parts = np.array_split(np.arange(options.count), 4 * cores)
            theirs = np.concatenate(
                pool(delayed(scipys)(starts[part], x, curves[part], ftol, options.differences) for part in parts)
            )
            seconds["SciPy"].append(time.perf_counter() - begun)
    ours = 2.0 * len(x) * found.fun
    best = 1.01 * np.minimum(ours, theirs)
    print("| library | seconds | ms a fit | found | iterations |", "| --- | --- | --- | --- | --- |", sep="\n")
    for name, sums, steps in (("chains", ours, f"{found.nit.mean():.0f}"), ("SciPy", theirs, "")):
        second = sorted(seconds[name])[len(seconds[name]) // 2]
        print(f"| {name} | {second:.3f} | {1e3 * second / options.count:.3f} | {int((sums <= best).sum())} | {steps} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
