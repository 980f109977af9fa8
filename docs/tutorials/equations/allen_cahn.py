"""
The Allen-Cahn equation
=======================

Two phases, u = -1 and u = 1, separate, and the fronts between them become sharp. A network has to follow these fronts. The
equation is u_t = 0.0001 u_xx + 5 u - 5 u^3 from u = x^2 cos(pi x), periodic in x. The problem is that of Raissi, Perdikaris
and Karniadakis (2019).
"""

import math
import os

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, ResidualProblem, Term, solve, tanh
from chains.expr import cos, erf, exp, sqrt
from chains.layers import Periodic

ITERATIONS = int(os.environ.get("ITERATIONS", "4000"))  # more are more accurate
DIFFUSION = 1e-4

# %%
# The points are fixed and have the weights of an integral. In time they are those of Gauss and Legendre, more of them early. In
# space they are equal steps of z, dense at the fronts and at both ends.

s, of_s = np.polynomial.legendre.leggauss(50)
z = (np.arange(200) + 0.5) / 100.0 - 1.0
t, x = np.meshgrid((0.5 + 0.5 * s) ** 2, z - 0.8 / (4.0 * math.pi) * np.sin(4.0 * math.pi * z), indexing="ij")
weights = np.outer(of_s * (1.0 + s), 1.0 - 0.8 * np.cos(4.0 * math.pi * z)).ravel()

# %%
# The periodic continuation of x^2 has an edge at both ends, which diffusion rounds immediately: ``rounded`` solves the heat
# equation and begins as the absolute value of ``edge``. Near u = -1 it falls by exp(-10 t). The rest of the initial values is
# smooth; the transform begins with it, and gives the network more weight as time passes.


def periodic(u, t, x):
    edge, width = cos(0.5 * math.pi * x), math.pi * sqrt(DIFFUSION * t)
    rounded = edge * erf(edge / width) + width / math.sqrt(math.pi) * exp(-((edge / width) ** 2))
    smooth = cos(math.pi * x) * (x * x + 4.0 / math.pi * edge)
    return u + exp(-4.0 * t) * (smooth - u) - exp(-10.0 * t) * 4.0 / math.pi * cos(math.pi * x) * rounded


points = np.column_stack([t.ravel(), x.ravel()])
equation = Term(lambda u: u.t - DIFFUSION * u.xx - 5.0 * u + 5.0 * u * u * u, points, weight=weights / weights.mean())
problem = ResidualProblem(("t", "x"), ("u",), [equation], transform=periodic)
net = Chain(Periodic((None, 2.0), 4), Dense(9, 20, tanh), Dense(20, 20, tanh), Dense(20, 20, tanh), Dense(20, 1))

# %%
# A reference solution: 1,024 waves, and the method of Runge and Kutta with diffusion solved exactly. The edge has waves of all
# lengths, so the first 1,024 come from values at many more places.

x = np.arange(2**18) / 2.0**17 - 1.0
decay = np.exp(-DIFFUSION * (math.pi * 1024 * np.fft.rfftfreq(1024)) ** 2 / 1600.0)  # of half a step


def reaction(waves):
    u = np.fft.irfft(waves)
    return np.fft.rfft(5.0 * u - 5.0 * u**3) / 800.0


waves, exact = np.fft.rfft(x * x * np.cos(math.pi * x))[:513] / 256.0, []
for step in range(1, 801):
    a = reaction(waves)
    b = reaction(decay * (waves + a / 2.0))
    c = reaction(decay * waves + b / 2.0)
    d = reaction(decay * (decay * waves + c))
    waves = decay * (decay * (waves + a / 6.0) + (b + c) / 3.0) + d / 6.0
    if step % 16 == 0:
        exact.append(np.fft.irfft(waves)[::2])
exact, (t, x) = np.array(exact), np.meshgrid(np.arange(1, 51) / 50.0, x[::512], indexing="ij")


def found(p):
    return problem.evaluate(net, p, np.column_stack([t.ravel(), x.ravel()]))["u"].reshape(t.shape)


def error(p):
    return np.linalg.norm(found(p) - exact) / np.linalg.norm(exact)


# %%
# Adam, then SSBroyden, on the same points throughout.

solution = solve(
    net, net.init(seed=0, dtype=np.float64), problem, adam=min(1000, ITERATIONS), optimizer=Adam(2e-3), iterations=ITERATIONS,
    metrics={"L2 error": error},
)  # fmt: skip
print(solution)

# %%
# The solution, its error, and the course of training.

u = found(solution.p)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for axis, values, title in ((axes[0], u, "u"), (axes[1], u - exact, "error")):
    figure.colorbar(axis.pcolormesh(t, x, values, cmap="RdBu_r"), ax=axis)
    axis.set(title=title, xlabel="t", ylabel="x")
solution.plot(axes[2])

# %%
# To try next: ``DIFFUSION = 1e-3``, for wider fronts; ``Periodic((None, 2.0), 1)`` and ``Dense(3, 20, tanh)``, for a single
# wave. :doc:`The page on equations </pinns>` has the settings that matter.
