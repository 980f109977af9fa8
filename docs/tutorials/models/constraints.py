"""
Curves that must not fall
=========================

A measured curve increases, and so must its fit: a dose and its effect, a price and the supply. A plain network follows the
noise up and down. A ``Monotone`` network increases everywhere, whatever its parameters are, and also outside the data.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, MSELoss, tanh, train
from chains.layers import Convex, Monotone

rng = np.random.default_rng(0)
x = rng.uniform(0.0, 4.0, (40, 1))
t = np.tanh(4.0 * x - 4.0) + np.tanh(4.0 * x - 12.0) + 0.3 * rng.normal(size=x.shape)

# %%
# Both networks are trained in the same way. ``increasing=0`` names the input. There can be several, and ``decreasing`` ones.

networks = {
    "Dense": Chain(Dense(1, 16, tanh), Dense(16, 16, tanh), Dense(16, 1)),
    "Monotone": Chain(Monotone(1, (16, 16, 1), increasing=0)),
}
grid = np.linspace(-0.5, 4.5, 300)[:, None]
curves = {}
for name, net in networks.items():
    p = net.init(seed=0, dtype=np.float64)
    train(net, p, x, t, MSELoss(), Adam(1e-2), epochs=4000, progress=False)
    curves[name] = net(grid, p)
    print(f"{name}: lowest slope {np.diff(curves[name], axis=0).min() / 0.0167:.3f}")

# %%
# ``Convex`` networks have one valley at most. Here one learns from noisy values of a parabola with a flat bottom.

u = rng.uniform(-2.0, 2.0, (40, 1))
v = np.maximum(u**2 - 0.5, 0.0) + 0.2 * rng.normal(size=u.shape)
convex = Chain(Convex(1, (16, 16, 1)))
q = convex.init(seed=0, dtype=np.float64)
train(convex, q, u, v, MSELoss(), Adam(1e-2), epochs=4000, progress=False)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(x, t, ".", color="gray", label="data")
for name, curve in curves.items():
    left.plot(grid, curve, label=name)
left.set(xlabel="x", ylabel="y")
wide = np.linspace(-2.3, 2.3, 300)[:, None]
right.plot(u, v, ".", color="gray", label="data")
right.plot(wide, convex(wide, q), color="C1", label="Convex")
right.set(xlabel="x", ylabel="y")
for axis in (left, right):
    axis.legend()

# %%
# To try next: noise of 0.6; ``activation="softplus"`` in ``Monotone``. :doc:`The page on constraints </constraints>` has
# signs and bounds of parameters.
