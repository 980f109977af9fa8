"""
Sample the parameters
=====================

A sampler wants a function of a vector that returns a log-density and its gradient. ``net.objective`` is one, but
for a sign and a factor: here Hamiltonian Monte Carlo, in thirty lines of NumPy, draws parameters of a network from
their posterior distribution.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, L2Penalty, SquaredLoss, tanh, train

rng = np.random.default_rng(0)
noise, prior = 0.1, 1.0  # standard deviations
x = rng.uniform(-2, 2, size=(40, 1))
t = np.sin(2 * x) + noise * rng.normal(size=x.shape)
net = Chain(Dense(1, 10, tanh), Dense(10, 1))

# %%
# The negative logarithm of the posterior is the sum of (y - t)^2 / (2 noise^2) over the samples and of p^2 / (2
# prior^2) over the parameters. The objective is a mean over the samples, so both are divided by n / noise^2.

scale = len(x) / noise**2
penalty = L2Penalty(1 / (2 * prior**2 * scale))
objective = net.objective(x, t, SquaredLoss(), penalty)


def energy(p):
    value, gradient = objective(p)
    return scale * value, scale * gradient


# %%
# One draw: a random momentum, some leapfrog steps, and acceptance by Metropolis' rule.


def draw(p, value, gradient, step, leaps):
    momentum = rng.normal(size=p.shape)
    begin = value + momentum @ momentum / 2
    q, new_value, new_gradient = p, value, gradient
    for _ in range(leaps):
        momentum = momentum - step / 2 * new_gradient
        q = q + step * momentum
        new_value, new_gradient = energy(q)
        momentum = momentum - step / 2 * new_gradient
    if np.log(rng.random()) < begin - new_value - momentum @ momentum / 2:
        return q, new_value, new_gradient, True
    return p, value, gradient, False


# %%
# The chain begins at a point that was trained, and every tenth draw is kept.

p = net.init(seed=0, dtype=np.float64)
train(net, p, x, t, SquaredLoss(), Adam(1e-2), epochs=500, penalty=penalty)
value, gradient = energy(p)
draws, accepted = [], 0
for k in range(1500):
    p, value, gradient, moved = draw(p, value, gradient, step=0.006, leaps=30)
    accepted += moved
    if k >= 300 and k % 10 == 0:
        draws.append(p)
print(f"{len(draws)} draws, {accepted / 1500:.0%} accepted")

# %%
# Each draw is a network.

grid = np.linspace(-3, 3, 200)[:, None]
outputs = np.array([net(grid, p)[:, 0] for p in draws])
figure, axis = plt.subplots(layout="constrained")
axis.plot(grid, outputs[::10].T, color="C0", alpha=0.2, linewidth=0.8)
axis.plot(grid, outputs.mean(0), color="C1", label="mean of the draws")
axis.plot(x, t, ".", color="black", markersize=4, label="data")
axis.set(xlabel="x", ylabel="y", ylim=(-3, 3))
axis.legend()
