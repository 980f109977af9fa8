"""
The Navier-Stokes equations
===========================

A fluid has passed a grid. Its velocity is known on the boundary of a rectangle. The Navier-Stokes equations give the
velocity inside, and the pressure up to a constant. The flow is that of Kovasznay (1948) at Reynolds number 40, one of the
few exact solutions.
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, ResidualProblem, Term, solve, tanh

ITERATIONS = int(os.environ.get("ITERATIONS", "6000"))  # more are more accurate
REYNOLDS = 40.0
RATE = REYNOLDS / 2.0 - math.sqrt(REYNOLDS**2 / 4.0 + 4.0 * math.pi**2)


def kovasznay(points):
    x, y = points.T
    decay = np.exp(RATE * x)
    wave = 2.0 * math.pi * y
    return {"u": 1.0 - decay * np.cos(wave), "v": RATE / (2.0 * math.pi) * decay * np.sin(wave), "p": -decay * decay / 2.0}


# %%
# Three equations for two velocities and the pressure, and the velocities on the boundary.


def flow(u, v, p):
    along_x = u * u.x + v * u.y + p.x - (u.xx + u.yy) / REYNOLDS
    along_y = u * v.x + v * v.y + p.y - (v.xx + v.yy) / REYNOLDS
    return along_x, along_y, u.x + v.y


def points_of(count, seed):
    return np.random.default_rng(seed).uniform([-0.5, -0.5], [1.0, 1.5], (count, 2))


s = np.linspace(0.0, 1.0, 101)
sides = [(1.5 * s - 0.5, 0 * s - 0.5), (1.5 * s - 0.5, 0 * s + 1.5), (0 * s - 0.5, 2 * s - 0.5), (0 * s + 1.0, 2 * s - 0.5)]
edge = np.concatenate([np.column_stack(side) for side in sides])
given = {"given_u": kovasznay(edge)["u"], "given_v": kovasznay(edge)["v"]}
walls = Term(lambda u, v, given_u, given_v: (u - given_u, v - given_v), edge, given, weight=10.0)
problem = ResidualProblem(("x", "y"), ("u", "v", "p"), [Term(flow, points_of(1500, 0)), walls])
net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 3))

# %%
# Errors of the velocities, and of the pressure without its mean.

x, y = np.meshgrid(np.linspace(-0.5, 1.0, 76), np.linspace(-0.5, 1.5, 101))
grid = np.column_stack([x.ravel(), y.ravel()])
exact = kovasznay(grid)


def error_of(name):
    def error(p):
        values, known = problem.evaluate(net, p, grid)[name], exact[name]
        if name == "p":
            values, known = values - values.mean(), known - known.mean()
        return np.linalg.norm(values - known) / np.linalg.norm(known)

    return error


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), iterations=ITERATIONS,
    candidates=lambda seed: [points_of(15000, seed), None], metrics={f"error of {name}": error_of(name) for name in "uvp"},
)  # fmt: skip
print(solution)

# %%
# Streamlines over the speed, the error of u, and the last points.

values = problem.evaluate(net, solution.p, grid)
u, v = (values[name].reshape(x.shape) for name in "uv")
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for axis, shown, title in ((axes[0], np.hypot(u, v), "speed"), (axes[1], u - exact["u"].reshape(x.shape), "error of u")):
    figure.colorbar(axis.pcolormesh(x, y, shown, cmap="viridis" if axis is axes[0] else "RdBu_r"), ax=axis)
    axis.set(title=title, xlabel="x", ylabel="y")
axes[0].streamplot(x, y, u, v, color="white", linewidth=0.7, arrowsize=0.7)
axes[2].plot(*solution.problem.x.T, ".", markersize=1)
axes[2].set(title="points", xlabel="x", ylabel="y")

# %%
# To try next: ``REYNOLDS = 100.0``; 300 points instead of 1,500. :doc:`A cavity with a moving lid
# </auto_tutorials/equations/cavity>` is a flow without an exact solution.
