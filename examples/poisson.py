"""A physics-informed network solves Poisson's equation on the unit square, and is compared with the known solution.

    u_xx + u_yy = f,   u = 0 on the edges,   f such that u = sin(pi x) sin(2 pi y)

A transform of the network's output makes the values at the edges exact, so that the residual is the whole loss.

    python examples/poisson.py

takes a few seconds.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Chain, Dense, ResidualProblem, Term, tanh
from chains.minimize.minimize import minimize


def exact(points: np.ndarray) -> np.ndarray:
    return np.sin(np.pi * points[:, 0]) * np.sin(2.0 * np.pi * points[:, 1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=500, help="within the square")
    parser.add_argument("--iterations", type=int, default=500, help="at most")
    parser.add_argument("--method", default="BFGS", choices=["BFGS", "L-BFGS", "LM"])
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "poisson.png")
    chosen = parser.parse_args(arguments)

    points = np.random.default_rng(chosen.seed).uniform(0.0, 1.0, (chosen.points, 2))
    forcing = -5.0 * math.pi**2 * exact(points)
    problem = ResidualProblem(
        ("x", "y"),
        ("u",),
        [Term(lambda u, f: u.xx + u.yy - f, points, {"f": forcing})],
        transform=lambda u, x, y: x * (1.0 - x) * y * (1.0 - y) * u,
    )
    net = Chain(Dense(2, 16, tanh), Dense(16, 16, tanh), Dense(16, 1))
    p = net.init(seed=chosen.seed, dtype=np.float64)

    begin = time.perf_counter()
    objective = net.objective(problem.x, problem.t, problem.loss)
    result = minimize(objective, p, chosen.method, maxiter=chosen.iterations, progress=False)
    seconds = time.perf_counter() - begin
    x, y = np.meshgrid(np.linspace(0.0, 1.0, 101), np.linspace(0.0, 1.0, 101), indexing="ij")
    grid = np.column_stack([x.ravel(), y.ravel()])
    solution = exact(grid)
    found = problem.evaluate(net, result.x, grid)["u"]
    error = np.linalg.norm(found - solution) / np.linalg.norm(solution)
    print(f"{net.n_params} parameters, {chosen.points} points, {result.nit} iterations of {chosen.method} in {seconds:.2f} s")
    print(f"{'mean squared residual':24}{result.fun:.2e}")
    print(f"{'relative L2 error':24}{error:.2e}")

    def draw(figure: Any) -> None:
        shown = {"u by the network": found, "error": found - solution}
        for axis, (title, values) in zip(figure.subplots(1, 2), shown.items(), strict=True):
            figure.colorbar(axis.pcolormesh(x, y, values.reshape(x.shape), cmap="RdBu_r"), ax=axis)
            axis.set(title=title, xlabel="x", ylabel="y", aspect="equal")

    save_picture(chosen.plot, (9, 4), draw)


if __name__ == "__main__":
    main()
