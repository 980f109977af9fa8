"""A network learns a potential energy surface from forces and one energy.

    F = -dE/dx

The forces of a network that computes the energy are exact derivatives of it, so that they conserve energy whatever the
network has learned. The surface is the one of Müller and Brown (Theoretica Chimica Acta 53, 1979), with three wells and two
passes, in hundreds of its units. The same network is also trained on energies at the same points.

    python examples/forces.py

takes about ten seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Chain, Dense, ResidualProblem, Term, tanh
from chains.minimize.minimize import minimize

HEIGHTS = np.array([-200.0, -100.0, -170.0, 15.0]) / 100.0
SHAPES = np.array([[-1.0, 0.0, -10.0], [-1.0, 0.0, -10.0], [-6.5, 11.0, -6.5], [0.7, 0.6, 0.7]])  # of x x, x y and y y
CENTRES = np.array([[1.0, 0.0], [0.0, 0.5], [-0.5, 1.5], [-1.0, 1.0]])
CORNERS = np.array([[-1.5, -0.3], [1.2, 2.0]])
HIGHEST = 0.5  # energy of the points of interest


def surface(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energies (n,) and forces (n, 2) at points (n, 2)."""
    dx, dy = np.moveaxis(points[:, None] - CENTRES, -1, 0)
    a, b, c = SHAPES.T
    parts = HEIGHTS * np.exp(a * dx**2 + b * dx * dy + c * dy**2)
    slopes = np.stack([parts * (2 * a * dx + b * dy), parts * (b * dx + 2 * c * dy)], -1)
    return parts.sum(1), -slopes.sum(1)


def low_points(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random points whose energy is not too high to be of interest."""
    found = np.empty((0, 2))
    while len(found) < count:
        points = rng.uniform(*CORNERS, (4 * count, 2))
        found = np.concatenate([found, points[surface(points)[0] < HIGHEST]])
    return found[:count]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=300, help="with known forces")
    parser.add_argument("--iterations", type=int, default=1000, help="of BFGS, at most")
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "forces.png")
    chosen = parser.parse_args(arguments)

    rng = np.random.default_rng(chosen.seed)
    points, others = low_points(rng, chosen.points), low_points(rng, 2000)
    energies, forces = surface(points)
    along = {"fx": forces[:, 0], "fy": forces[:, 1]}
    problems = {
        "forces and one energy": ResidualProblem(
            ("x", "y"),
            ("energy",),
            [
                Term(lambda energy, fx, fy: (energy.x + fx, energy.y + fy), points, along),
                Term(lambda energy, known: energy - known, points[:1], {"known": energies[:1]}),
            ],
        ),
        "energies": ResidualProblem(
            ("x", "y"), ("energy",), [Term(lambda energy, known: energy - known, points, {"known": energies})]
        ),
    }
    net = Chain(Dense(2, 24, tanh), Dense(24, 24, tanh), Dense(24, 1))
    true_energies, true_forces = surface(others)
    print(f"{net.n_params} parameters, {chosen.points} points; root mean square errors at {len(others)} others")
    print(f"{'trained on':24}{'iterations':>11}{'seconds':>9}{'energy':>10}{'force':>10}")
    x, y = np.meshgrid(*(np.linspace(low, high, 101) for low, high in CORNERS.T))
    grid = np.column_stack([x.ravel(), y.ravel()])
    maps = {"true energy": surface(grid)[0]}
    for name, problem in problems.items():
        p = net.init(seed=chosen.seed, dtype=np.float64)
        begin = time.perf_counter()
        result = minimize(net.objective(problem.x, problem.t, problem.loss), p, maxiter=chosen.iterations, progress=False)
        seconds = time.perf_counter() - begin
        energy, slope = net.derivatives(result.x, others, order=1)
        errors = np.sqrt(np.mean((energy[:, 0] - true_energies) ** 2)), np.sqrt(np.mean((slope[:, 0] + true_forces) ** 2))
        print(f"{name:24}{result.nit:>11}{seconds:>9.2f}{errors[0]:>10.4f}{errors[1]:>10.4f}")
        maps[f"from {name}"] = net(grid, result.x)[:, 0]

    def draw(figure: Any) -> None:
        for axis, (title, energy) in zip(figure.subplots(1, 3, sharey=True), maps.items(), strict=True):
            shown = axis.contourf(x, y, energy.reshape(x.shape), np.linspace(-1.5, HIGHEST, 21))
            axis.plot(*points.T, "w.", markersize=1)
            axis.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(shown, ax=axis)

    save_picture(chosen.plot, (12, 4), draw)


if __name__ == "__main__":
    main()
