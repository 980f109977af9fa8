"""
Burgers' equation
=================

A wave steepens to a shock, and the network does not know where. The equation is u_t + u u_x = (0.01 / pi) u_xx, with
u(0, x) = -sin(pi x) and u = 0 at both ends. The problem is that of Raissi, Perdikaris and Karniadakis (2019). The solution by
Cole and Hopf is exact.
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, AdaptiveWeights, Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import sin

ITERATIONS = int(os.environ.get("ITERATIONS", "6000"))  # more are more accurate
VISCOSITY = 0.01 / math.pi

# %%
# The transform makes the initial values and both ends exact, so that the equation is the only term.


def points_of(count, seed):
    return np.random.default_rng(seed).uniform([0.0, -1.0], [1.0, 1.0], (count, 2))


problem = ResidualProblem(
    ("t", "x"), ("u",), [Term(lambda u: u.t + u * u.x - VISCOSITY * u.xx, points_of(3000, 0))],
    transform=lambda u, t, x: t * (1.0 - x * x) * u - sin(math.pi * x),
)  # fmt: skip
net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))

# %%
# Cole and Hopf: a quotient of integrals against the kernel of the heat equation, here by the trapezoidal rule.


def cole_hopf(points):
    t, x, z = points[:, :1], points[:, 1:], np.linspace(-13.0, 13.0, 1301)
    y = x - z * np.sqrt(4.0 * VISCOSITY * t)
    exponent = -np.cos(np.pi * y) / (2.0 * np.pi * VISCOSITY) - z * z
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return -(np.sin(np.pi * y) * weights).sum(axis=1) / weights.sum(axis=1)


t, x = np.meshgrid(np.linspace(0.01, 1.0, 50), np.linspace(-1.0, 1.0, 201), indexing="ij")
grid = np.column_stack([t.ravel(), x.ravel()])
exact = cole_hopf(grid)


def error(p):
    return np.linalg.norm(problem.evaluate(net, p, grid)["u"] - exact) / np.linalg.norm(exact)


# %%
# The first points are uniform. Later rounds draw points where the residual is large, and points weigh more where it stays
# large.

solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), optimizer=Adam(2e-3), iterations=ITERATIONS,
    candidates=lambda seed: points_of(30000, seed), weights=AdaptiveWeights(floor=0.7), metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The solution, its error, and the last points.

u = problem.evaluate(net, solution.p, grid)["u"]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for axis, values, title in ((axes[0], u, "u"), (axes[1], u - exact, "error")):
    figure.colorbar(axis.pcolormesh(t, x, values.reshape(t.shape), cmap="RdBu_r"), ax=axis)
    axis.set(title=title, xlabel="t", ylabel="x")
axes[2].plot(*solution.problem.x.T, ".", markersize=1)
axes[2].set(title="points", xlabel="t", ylabel="x")

# %%
# To try next: another viscosity, more points; :doc:`the page on equations </pinns>` has the settings that matter.
