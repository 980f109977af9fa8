"""
An unknown coefficient
======================

How well does a plate conduct heat at each of its points? Only its temperature u was measured, at 2,500 points, with an error
of 0.1. The equation is (a u_x)_x + (a u_y)_y = -f. The conductivity a is unknown, except on the boundary. The problem is
PInv of PINNacle (Hao et al. 2024).
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import cos, sin

ITERATIONS = int(os.environ.get("ITERATIONS", "500"))  # more fit the noise

# %%
# The true solution, from which the measurements and the source are made.


def coefficient(x, y):
    return 1.0 / (1.0 + x * x + y * y + (x - 1.0) * (x - 1.0) + (y - 1.0) * (y - 1.0))


def source(x, y):
    a, k = coefficient(x, y), math.pi
    slopes = (2 * x - 1) * cos(k * x) * sin(k * y) + (2 * y - 1) * sin(k * x) * cos(k * y)
    return 2 * k * k * a * sin(k * x) * sin(k * y) + 2 * k * a * a * slopes


s = np.linspace(0.0, 1.0, 50)
x, y = np.meshgrid(s, s)
grid = np.column_stack([x.ravel(), y.ravel()])
exact = {"u": np.sin(math.pi * grid[:, 0]) * np.sin(math.pi * grid[:, 1]), "a": coefficient(*grid.T)}
rng = np.random.default_rng(0)
measured = exact["u"] + rng.normal(0.0, 0.1, len(grid))

# %%
# A network for both functions, and three terms: the equation, the measurements, the coefficient on the boundary.

edge = np.concatenate([np.column_stack(side) for side in ((s, 0 * s), (s, 0 * s + 1.0), (0 * s, s), (0 * s + 1.0, s))])
problem = ResidualProblem(
    ("x", "y"),
    ("u", "a"),
    [
        Term(lambda u, a, x, y: a * (u.xx + u.yy) + a.x * u.x + a.y * u.y + source(x, y), rng.uniform(0.0, 1.0, (2000, 2))),
        Term(lambda u, value: u - value, grid, {"value": measured}),
        Term(lambda a, value: a - value, edge, {"value": coefficient(*edge.T)}, weight=10.0),
    ],
)
net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 2))


def error_of(name):
    return lambda p: np.linalg.norm(problem.evaluate(net, p, grid)[name] - exact[name]) / np.linalg.norm(exact[name])


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), iterations=ITERATIONS, every=250,
    metrics={f"error of {name}": error_of(name) for name in "ua"},
)  # fmt: skip
print(solution)

# %%
# The measurements, the coefficient that was found, and its error.

a = problem.evaluate(net, solution.p, grid)["a"]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
shown = (measured, "measured u", "viridis"), (a, "found a", "viridis"), (a - exact["a"], "error of a", "RdBu_r")
for axis, (values, title, colors) in zip(axes, shown, strict=True):
    figure.colorbar(axis.pcolormesh(x, y, values.reshape(x.shape), cmap=colors), ax=axis)
    axis.set(title=title, xlabel="x", ylabel="y")

# %%
# To try next: noise of 0.01; 3,000 iterations, which fit the noise and double the error of a. :doc:`The page on equations
# </pinns>` has unknown numbers too.
