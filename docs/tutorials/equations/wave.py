"""
A wave of high frequency
========================

A string swings in two tones, one four times as high as the other. The first layer of the network has random frequencies, so
that it can oscillate. The equation is u_tt = 4 u_xx, from u = sin(pi x) + sin(4 pi x) / 2 at rest, with u = 0 at both ends. The
problem is that of Wang, Yu and Perdikaris (2022), Wave1d-C of PINNacle (Hao et al. 2024). Its solution is known.
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import sin
from chains.layers import Fourier

ITERATIONS = int(os.environ.get("ITERATIONS", "4000"))  # more are more accurate

# %%
# The transform makes the initial values, the initial speed of 0 and both ends exact. Random frequencies let the network
# oscillate.


def points_of(count, seed):
    return np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2))


problem = ResidualProblem(
    ("t", "x"), ("u",), [Term(lambda u: u.tt - 4.0 * u.xx, points_of(2500, 0))],
    transform=lambda u, t, x: sin(math.pi * x) + sin(4.0 * math.pi * x) / 2.0 + t * t * x * (1.0 - x) * u,
)  # fmt: skip
net = Chain(Fourier(2, 16, 1.0), Dense(32, 24, tanh), Dense(24, 24, tanh), Dense(24, 1))

# %%
# Adam, then SSBroyden. Every 500 iterations the points are drawn anew, by the residual.

t, x = np.meshgrid(np.linspace(0.0, 1.0, 101), np.linspace(0.0, 1.0, 101), indexing="ij")
tones = [np.sin(n * math.pi * x) * np.cos(2.0 * n * math.pi * t) for n in (1, 4)]
exact = tones[0] + tones[1] / 2.0


def found(p):
    return problem.evaluate(net, p, np.column_stack([t.ravel(), x.ravel()]))["u"].reshape(t.shape)


def error(p):
    return np.linalg.norm(found(p) - exact) / np.linalg.norm(exact)


solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), optimizer=Adam(5e-3), iterations=ITERATIONS,
    candidates=lambda seed: points_of(25000, seed), metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The solution, its error, and the course of training. The error falls late: a wave carries early errors to later times.

u = found(solution.p)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for axis, values, title in ((axes[0], u, "u"), (axes[1], u - exact, "error")):
    figure.colorbar(axis.pcolormesh(t, x, values, cmap="RdBu_r"), ax=axis)
    axis.set(title=title, xlabel="t", ylabel="x")
solution.plot(axes[2])

# %%
# To try next: other seeds, and ``Dense(2, 24, tanh)`` instead of the first two layers: the errors differ widely. :doc:`The
# page on equations </pinns>` has the settings that matter.
