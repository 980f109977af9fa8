"""
Heat in a plate of varying conductivity
=======================================

A plate is heated by a source that rises and falls, and its conductivity a varies sevenfold. How hot does it become, and
where? The equation is u_t = (a u_x)_x + (a u_y)_y + f, with u = 0 at first and at the edges. Source and domain are those of
Heat2d-VC of PINNacle (Hao et al. 2024), in a fifth of its time. The conductivity there is a table; here it is a formula.
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import cos, exp, sin

ITERATIONS = int(os.environ.get("ITERATIONS", "4000"))  # more are more accurate
TURN = 2.0 * math.pi

# %%
# The transform makes the initial values and the edges exact. The slopes of log(a) are written out.


def conductivity(x, y):
    return exp(sin(TURN * x) * cos(TURN * y))


def source(x, y):
    return 200.0 * sin(math.pi * x) * sin(5.0 * math.pi * y)


def equation(u, t, x, y):
    slope_x, slope_y = TURN * cos(TURN * x) * cos(TURN * y), -TURN * sin(TURN * x) * sin(TURN * y)
    flow = conductivity(x, y) * (u.xx + u.yy + slope_x * u.x + slope_y * u.y)
    return u.t - flow - source(x, y) * sin(math.pi * t)


def points_of(count, seed):
    return np.random.default_rng(seed).uniform(0.0, 1.0, (count, 3))


problem = ResidualProblem(
    ("t", "x", "y"), ("u",), [Term(equation, points_of(3000, 0))],
    transform=lambda u, t, x, y: 16.0 * t * x * (1.0 - x) * y * (1.0 - y) * u,
)  # fmt: skip
net = Chain(Dense(3, 24, tanh), Dense(24, 24, tanh), Dense(24, 24, tanh), Dense(24, 1))

# %%
# Another solution, to compare with: polynomials of degree 28 through Chebyshev's points, and the exact course in time of each
# mode. Degree 40 changes it by 1e-6.

k = np.arange(29)
s = 0.5 + 0.5 * np.cos(math.pi * k / 28)
sign = np.where(k % 28 == 0, 2.0, 1.0) * (-1.0) ** k
slope = np.outer(sign, 1.0 / sign) / (s[:, None] - s + np.eye(29))
slope -= np.diag(slope.sum(axis=1))
along_x, along_y = np.kron(slope, np.eye(29)), np.kron(np.eye(29), slope)
x, y = np.repeat(s, 29), np.tile(s, 29)
a, inside = conductivity(x, y), np.outer(k % 28 > 0, k % 28 > 0).ravel()
operator = along_x @ (a[:, None] * along_x) + along_y @ (a[:, None] * along_y)
rates, modes = np.linalg.eig(operator[np.ix_(inside, inside)])
shares = np.linalg.solve(modes, source(x, y)[inside])


def spectral(t):
    u, turned = np.zeros(x.size), np.exp(rates * t) - math.cos(math.pi * t)
    course = (math.pi * turned - rates * math.sin(math.pi * t)) / (rates**2 + math.pi**2)
    u[inside] = (modes @ (shares * course)).real
    return u


times = np.linspace(0.1, 1.0, 10)
grid = np.column_stack([np.repeat(times, x.size), np.tile(x, 10), np.tile(y, 10)])
exact = np.concatenate([spectral(t) for t in times])


def error(p):
    return np.linalg.norm(problem.evaluate(net, p, grid)["u"] - exact) / np.linalg.norm(exact)


# %%
# Adam, then SSBroyden. Every 500 iterations the points are drawn anew, by the residual.

solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), optimizer=Adam(5e-3), iterations=ITERATIONS,
    candidates=lambda seed: points_of(30000, seed), metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The conductivity, the temperature at its highest, and its error.

middle = np.full(x.size, 0.5)
u = problem.evaluate(net, solution.p, np.column_stack([middle, x, y]))["u"]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
shown = (a, "conductivity", "viridis"), (u, "u at t = 0.5", "RdBu_r"), (u - spectral(0.5), "error at t = 0.5", "RdBu_r")
for axis, (values, title, colors) in zip(axes, shown, strict=True):
    figure.colorbar(axis.pcolormesh(s, s, values.reshape(29, 29).T, cmap=colors, shading="gouraud"), ax=axis)
    axis.set(title=title, xlabel="x", ylabel="y")

# %%
# To try next: a smoother source, with ``sin(2.0 * math.pi * y)``, for which the error is about a tenth. :doc:`The page on
# equations </pinns>` has the settings that matter.
