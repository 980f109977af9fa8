"""
A thousand networks
===================

How far can the output of a network be trusted? Many small networks learn the same data from different starting values. The
spread of their outputs is an error bar. The networks are rows of one array, and one call trains them all.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.5, (40, 1)), rng.uniform(1, 3, (40, 1))]).astype(np.float32)
t = (np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)).astype(np.float32)

# %%
# Calls take an array of parameters (members, n_params) as they take one vector.

net = Chain(Dense(1, 16, tanh), Dense(16, 1))
P = net.init_many(1000, seed=0)
begin = time.perf_counter()
train(net, P, x, t, SquaredLoss(), Adam(2e-2), epochs=1000, progress=False)
print(f"{len(P)} networks of {net.n_params} parameters, 1,000 steps each: {time.perf_counter() - begin:.1f} s")

# %%
# Where there are no data, the networks disagree.

grid = np.linspace(-4, 4, 200, dtype=np.float32)[:, None]
low, middle, high = np.quantile(net(grid, P)[..., 0], [0.05, 0.5, 0.95], axis=0)
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.fill_between(grid[:, 0], low, high, alpha=0.3, label="nine in ten networks")
axis.plot(grid, middle, label="median")
axis.plot(x, t, ".", color="black", markersize=4, label="data")
axis.set(xlabel="x", ylabel="y", ylim=(-3, 3))
axis.legend()

# %%
# To try next: separate data for each network, fitted by :doc:`Levenberg and Marquardt's method </fits>`.
