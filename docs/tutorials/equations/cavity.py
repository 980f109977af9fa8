"""
A cavity with a moving lid
==========================

A lid moves over a square cavity and drives the flow in it. How fast does the fluid move, and where? The steady Navier-Stokes
equations describe the flow, here at Reynolds number 100. The velocity jumps in the upper corners. The result is compared
with the velocities along both middle lines that Ghia, Ghia and Shin (1982) tabulate, from 129 x 129 points. It is also
compared with the extremes there that Marchi, Suero and Araki (2009) extrapolate, from 1,024 x 1,024.
"""

import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, ResidualProblem, Term, solve, tanh

ITERATIONS = int(os.environ.get("ITERATIONS", "6000"))  # more are more accurate
REYNOLDS = 100.0
Y = np.array(
    [0.0547, 0.0625, 0.0703, 0.1016, 0.1719, 0.2813, 0.4531, 0.5, 0.6172, 0.7344, 0.8516, 0.9531, 0.9609, 0.9688, 0.9766]
)
X = np.array(
    [0.0625, 0.0703, 0.0781, 0.0938, 0.1563, 0.2266, 0.2344, 0.5, 0.8047, 0.8594, 0.9063, 0.9453, 0.9531, 0.9609, 0.9688]
)
U = [-3717, -4192, -4775, -6434, -10150, -15662, -21090, -20581, -13641, 332, 23151, 68717, 73722, 78871, 84123]  # at (0.5, Y)
V = [9233, 10091, 10890, 12317, 16077, 17507, 17527, 5454, -24533, -22445, -16914, -10313, -8864, -7391, -5906]  # at (X, 0.5)
MIDDLE = {
    "u": (np.column_stack([0.0 * Y + 0.5, Y]), np.array(U) * 1e-5),
    "v": (np.column_stack([X, 0.0 * X + 0.5]), np.array(V) * 1e-5),
}

# %%
# Three equations for two velocities and the pressure, walls where the fluid rests, and the lid.


def flow(u, v, p):
    along_x = u * u.x + v * u.y + p.x - (u.xx + u.yy) / REYNOLDS
    along_y = u * v.x + v * v.y + p.y - (v.xx + v.yy) / REYNOLDS
    return along_x, along_y, u.x + v.y


def points_of(count, seed):
    return np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2))


s = np.linspace(0.0, 1.0, 101)
walls = np.concatenate([np.column_stack(side) for side in ((s, 0 * s), (0 * s, s), (0 * s + 1.0, s))])
lid = np.column_stack([s, 0 * s + 1.0])[1:-1]
terms = [Term(flow, points_of(2000, 0)), Term(lambda u, v: (u, v), walls), Term(lambda u, v: (u - 1.0, v), lid)]
problem = ResidualProblem(("x", "y"), ("u", "v", "p"), terms)
net = Chain(Dense(2, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 3))

# %%
# Adam, then SSBroyden. Every 500 iterations the points inside are drawn anew, many of them near the upper corners.


def error_of(name):
    points, known = MIDDLE[name]
    return lambda p: np.linalg.norm(problem.evaluate(net, p, points)[name] - known) / np.linalg.norm(known)


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), optimizer=Adam(5e-3), iterations=ITERATIONS,
    candidates=lambda seed: [points_of(20000, seed), None, None], metrics={f"error of {name}": error_of(name) for name in "uv"},
)  # fmt: skip
print(solution)

# %%
# Streamlines over the speed, both velocities with those of the table, and the last points.

x, y = np.meshgrid(s, s)
values = problem.evaluate(net, solution.p, np.column_stack([x.ravel(), y.ravel()]))
u, v = (values[name].reshape(x.shape) for name in "uv")
print(f"lowest u {u[:, 50].min():.4f} (-0.2140), lowest v {v[50].min():.4f} (-0.2538), highest v {v[50].max():.4f} (0.1796)")
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
figure.colorbar(axes[0].pcolormesh(x, y, np.hypot(u, v)), ax=axes[0])
axes[0].streamplot(x, y, u, v, color="white", linewidth=0.7, arrowsize=0.7)
axes[0].set(title="speed", xlabel="x", ylabel="y")
axes[1].plot(s, u[:, 50], "C0", s, v[50], "C1", Y, MIDDLE["u"][1], "C0o", X, MIDDLE["v"][1], "C1o")
axes[1].set(title="u(0.5, y) and v(x, 0.5)", xlabel="y or x")
axes[2].plot(*solution.problem.x.T, ".", markersize=1)
axes[2].set(title="points", xlabel="x", ylabel="y")

# %%
# To try next: a lid without jumps, ``lambda u, v, x: (u - 16.0 * x**2 * (1.0 - x) ** 2, v)``. Its loss falls much further,
# but the table is of another flow. :doc:`The page on equations </pinns>` compares the tutorials.
