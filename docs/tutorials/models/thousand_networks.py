"""
A thousand networks
===================

Error bars from an ensemble: many small networks learn the same data from different starting values. One ``Chain``
serves them all, since it holds no parameters, and each network is a row of an array.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.5, (40, 1)), rng.uniform(1, 3, (40, 1))]).astype(np.float32)
t = (np.sin(2 * x) + 0.1 * rng.normal(size=x.shape)).astype(np.float32)

# %%
# The program of a training step is compiled once. From then on, a network takes a few milliseconds.

net = Chain(Dense(1, 16, tanh), Dense(16, 1))
loss, optimizer = SquaredLoss(), Adam(1e-2)
ensemble = np.array([net.init(seed=seed) for seed in range(1000)])  # (1000, n_params)
begin = time.perf_counter()
for seed, p in enumerate(ensemble):
    train(net, p, x, t, loss, optimizer, epochs=200, seed=seed, progress=False)
print(f"{len(ensemble)} networks of {net.n_params} parameters, 200 steps each: {time.perf_counter() - begin:.1f} s")

# %%
# Where there are no data, the networks disagree.

grid = np.linspace(-4, 4, 200, dtype=np.float32)[:, None]
outputs = np.array([net(grid, p)[:, 0] for p in ensemble])
low, middle, high = np.quantile(outputs, [0.05, 0.5, 0.95], axis=0)
figure, axis = plt.subplots(layout="constrained")
axis.fill_between(grid[:, 0], low, high, alpha=0.3, label="nine in ten networks")
axis.plot(grid, middle, label="median")
axis.plot(x, t, ".", color="black", markersize=4, label="data")
axis.set(xlabel="x", ylabel="y", ylim=(-3, 3))
axis.legend()
