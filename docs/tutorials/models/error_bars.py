"""
Error bars in three ways
========================

A curve has a gap in its data. How far can a network be trusted there? An ensemble, Laplace's approximation and
Hamiltonian Monte Carlo answer in a few lines each.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import HMC, Chain, Dense, L2Penalty, Laplace, SquaredLoss, minimize, sample, tanh

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-2.0, -0.7, (30, 1)), rng.uniform(0.7, 2.0, (30, 1))])
t = np.sin(2.0 * x) + 0.1 * rng.normal(size=x.shape)
grid = np.linspace(-3.0, 3.0, 200)[:, None]
net = Chain(Dense(1, 8, tanh), Dense(8, 1))

# %%
# With noise of 0.1 and a normal prior of width 1, loss and penalty divided by ``T`` are minus the logarithm of the posterior.

T = 0.1**2 / len(x)
prior = L2Penalty(T / 2)
bands = {}

# %%
# An ensemble: each network is fitted to another draw of the data, a bootstrap.

outputs = []
for start in net.init_many(50, seed=0, dtype=np.float64):
    weights = rng.multinomial(len(x), np.full(len(x), 1 / len(x)))
    objective = net.objective(x, t, SquaredLoss(), prior, weights=weights)
    outputs.append(net(grid, minimize(objective, start, "BFGS", maxiter=300, progress=False).x))
bands["ensemble"] = np.mean(outputs, axis=0), np.std(outputs, axis=0)

# %%
# Laplace's approximation: a normal distribution around one fit. It finds the noise and the width of the prior itself.

p = minimize(
    net.objective(x, t, SquaredLoss(), prior), net.init(seed=0, dtype=np.float64), "BFGS", maxiter=500, progress=False
).x
laplace = Laplace(net, p, x, t)
mean, variance = laplace.predict(grid, with_noise=False)
bands["Laplace"] = mean, np.sqrt(variance)
print(laplace)

# %%
# Hamiltonian Monte Carlo draws from the posterior itself: four chains of 100 draws, after 200 to warm up.

starts = p + 0.01 * rng.normal(size=(4, len(p)))
draws = sample(
    net, starts, x, t, SquaredLoss(), HMC(T, leapfrog_steps=50), draws=100, warmup=200, penalty=prior, progress=False
)
outputs = net(grid, draws.ensemble())
bands["Hamiltonian Monte Carlo"] = outputs.mean(0), outputs.std(0)
print(draws)

# %%
# Two standard deviations. All three agree where there are data. The gap is where they differ.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
for axis, (name, (mean, spread)) in zip(axes, bands.items(), strict=True):
    low, high = (mean + sign * 2.0 * spread for sign in (-1, 1))
    axis.fill_between(grid[:, 0], low[:, 0], high[:, 0], alpha=0.3)
    axis.plot(grid, mean)
    axis.plot(x, t, ".", color="black", markersize=4)
    axis.set(xlabel="x", ylim=(-3, 3), title=name)

# %%
# To try next: a larger gap, less noise; :doc:`the page on uncertainty </uncertainty>` says which way suits which problem.
