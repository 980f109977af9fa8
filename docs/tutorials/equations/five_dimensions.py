"""
Poisson's equation in five dimensions
=====================================

A grid with 20 points along each axis of a cube in five dimensions has 3.2 million points. A network needs 1,000 points. The
equation is u_aa + u_bb + u_cc + u_dd + u_ee = -f, with given values on the ten faces of the cube. The problem is PNd of
PINNacle (Hao et al. 2024).
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import sin

ITERATIONS = int(os.environ.get("ITERATIONS", "3000"))  # more are more accurate

# %%
# The equation inside, and the values on the faces. Laplace's operator has five terms.


def exact(points):
    return np.sin(math.pi / 2.0 * points).sum(axis=1)


def equation(u, a, b, c, d, e):
    source = math.pi**2 / 4.0 * sum(sin(math.pi / 2.0 * each) for each in (a, b, c, d, e))
    return u.aa + u.bb + u.cc + u.dd + u.ee + source


rng = np.random.default_rng(0)
inside, faces, others = (rng.uniform(0.0, 1.0, (count, 5)) for count in (1000, 500, 5000))
faces[np.arange(500), rng.integers(0, 5, 500)] = rng.integers(0, 2, 500)
walls = Term(lambda u, value: u - value, faces, {"value": exact(faces)}, weight=10.0)
problem = ResidualProblem(("a", "b", "c", "d", "e"), ("u",), [Term(equation, inside), walls])
net = Chain(Dense(5, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))

# %%
# Adam, then SSBroyden, on the same points throughout. The error is that at 5,000 other points.


def error(p):
    return np.linalg.norm(problem.evaluate(net, p, others)["u"] - exact(others)) / np.linalg.norm(exact(others))


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(500, ITERATIONS), iterations=ITERATIONS,
    metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The error at the other points over their distance from the nearest face, and the course of training.

deviation = abs(problem.evaluate(net, solution.p, others)["u"] - exact(others))
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
axes[0].semilogy(np.minimum(others, 1.0 - others).min(axis=1), deviation, ".", markersize=2)
axes[0].set(xlabel="distance from the boundary", ylabel="error")
solution.plot(axes[1])

# %%
# To try next: 200 points instead of 1,000: they are enough here. :doc:`The page on equations </pinns>` has the settings that
# matter.
