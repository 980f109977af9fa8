"""
Noisy paths: drift and diffusion
================================

A number moves between two states. Noise shakes it, and shakes it more the farther it is from zero. Many short paths are
observed. One network learns the drift, a second one the diffusion, and ``SDE`` draws new paths from both.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import SDE, Chain, Dense, Equations, Parallel, minimize, tanh
from chains.expr import exp
from chains.losses import GaussianNLLLoss

# %%
# Data: 100 paths of 100 steps, drawn with ten finer steps in each.

dt = 0.05
times = dt * np.arange(101)
truth = SDE(Equations(lambda y: y - y * y * y, ["y"]), Equations(lambda y: 0.3 + 0.2 * y * y, ["y"]), times, steps=10)
start = np.random.default_rng(0).normal(size=(100, 1))
paths = Chain(truth)(start, np.zeros(0))[:, :, 0]

# %%
# Over a short time, the change of y divided by the time is normal, with the drift as its mean and the squared diffusion
# divided by the time as its variance. ``GaussianNLLLoss`` takes the mean and the logarithm of the variance.

drift, spread = (Chain(Dense(1, 12, tanh), Dense(12, 1)) for _ in range(2))
net = Chain(Parallel(drift, spread))
y, rate = paths[:, :-1].reshape(-1, 1), np.diff(paths, axis=1).reshape(-1, 1) / dt
objective = net.objective(y, rate, GaussianNLLLoss(log_variance=True))
fit = minimize(objective, net.init(seed=0, dtype=np.float64), "BFGS", maxiter=300)
print(fit.message, f"after {fit.nit} iterations")

# %%
# The same parameters, in an ``SDE``: the diffusion follows from the second network by a formula.

diffusion = Chain(spread, Equations(lambda s: exp(0.5 * s) * dt**0.5, ["s"]))
model = Chain(SDE(drift, diffusion, times, steps=10))
drawn = model(start, fit.x, mode="train", seed=1)[:, :, 0]  # other noise than that of the data

grid = np.linspace(-1.6, 1.6, 81)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
axes[0].plot(grid, drift(grid, fit.x[: drift.n_params]), label="drift")
axes[0].plot(grid, diffusion(grid, fit.x[drift.n_params :]), label="diffusion")
axes[0].plot(grid, grid - grid**3, "k--", grid, 0.3 + 0.2 * grid**2, "k--")
axes[0].set(xlabel="y", title="networks, and the truth dashed")
axes[0].legend()
axes[1].plot(times, paths[:8].T, color="0.7", linewidth=0.8)
axes[1].plot(times, drawn[:8].T, linewidth=0.8)
axes[1].set(xlabel="time", title="observed in gray, drawn in colour")
axes[2].hist(paths[:, 50:].ravel(), 40, density=True, color="0.8", label="observed")
axes[2].hist(drawn[:, 50:].ravel(), 40, density=True, histtype="step", label="drawn")
axes[2].set(xlabel="y", title="distribution from time 2.5 on")
axes[2].legend()
print(f"standard deviations: observed {paths[:, 50:].std():.3f}, drawn {drawn[:, 50:].std():.3f}")

# %%
# To try next: ``method="milstein"``, fewer steps; :doc:`the page on noise </noise>` compares the methods.
