"""
Helmholtz' equation
===================

A square holds one wave from left to right and four from bottom to top. A network finds them from an equation alone,
u_xx + u_yy + u = f with u = 0 on the boundary. The problem is that of Wang, Teng and Perdikaris (2021). Its solution is known.
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import sin

ITERATIONS = int(os.environ.get("ITERATIONS", "6000"))  # more are more accurate

# %%
# The transform is zero on the boundary, so that the equation is the only term.


def points_of(count, seed):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 2))


def equation(u, x, y):
    return u.xx + u.yy + u - (1.0 - 17.0 * math.pi**2) * sin(math.pi * x) * sin(4.0 * math.pi * y)


problem = ResidualProblem(
    ("x", "y"), ("u",), [Term(equation, points_of(2000, 0))], transform=lambda u, x, y: (1.0 - x * x) * (1.0 - y * y) * u
)
net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))

# %%
# Adam, then SSBroyden. Every 500 iterations the points are drawn anew, by the residual.

x, y = np.meshgrid(np.linspace(-1.0, 1.0, 101), np.linspace(-1.0, 1.0, 101))
exact = np.sin(math.pi * x) * np.sin(4.0 * math.pi * y)


def found(p):
    return problem.evaluate(net, p, np.column_stack([x.ravel(), y.ravel()]))["u"].reshape(x.shape)


def error(p):
    return np.linalg.norm(found(p) - exact) / np.linalg.norm(exact)


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), iterations=ITERATIONS,
    candidates=lambda seed: points_of(20000, seed), metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The solution, its error, and the last points.

u = found(solution.p)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for axis, values, title in ((axes[0], u, "u"), (axes[1], u - exact, "error")):
    figure.colorbar(axis.pcolormesh(x, y, values, cmap="RdBu_r"), ax=axis)
    axis.set(title=title, xlabel="x", ylabel="y")
axes[2].plot(*solution.problem.x.T, ".", markersize=1)
axes[2].set(title="points", xlabel="x", ylabel="y")

# %%
# To try next: the activation ``sine`` instead of ``tanh``, whose error is smaller here. :doc:`The page on equations </pinns>`
# compares the tutorials.
