"""
Your own activation and loss
============================

You need an activation or a loss that is not built in. Both are formulas of numbers, written in Python. They are traced once,
differentiated, and compiled with everything else. On NumPy the same formulas run as ufuncs.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, MSELoss, activation, loss, train
from chains.expr import log1p, sin, where
from chains.testing import check_gradients, check_loss

# %%
# An activation is a name and a function of one number. Its derivative follows from the formula. If you know a
# shorter one, give it as a function of the input ``x``, of the output ``y``, or of both.

snake = activation("snake", lambda x: x + sin(x) ** 2, derivative=lambda x: 1 + sin(2 * x))
print(snake)

net = Chain(Dense(1, 16, snake), Dense(16, 16, snake), Dense(16, 1))
print(check_gradients(net))

# %%
# A loss is a function of an output and its target, summed over a sample's outputs. Conditions are ``where``. This
# one grows like a logarithm, so that outliers count little.

cauchy = loss("cauchy", lambda y, t: log1p((y - t) ** 2 / 0.01))
print(check_loss(cauchy, np.random.default_rng(0).normal(size=(20, 1))))

# %%
# The pinball loss is another one: its minimum is a quantile rather than a mean.

pinball = loss("pinball", lambda y, t: where(t > y, 0.9 * (t - y), 0.1 * (y - t)))

# %%
# A tenth of the data are outliers.

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, (400, 1))
t = np.sin(3 * x) + 0.3 * x + 0.05 * rng.normal(size=x.shape)
t[::10] += rng.uniform(2, 6, (40, 1))

grid = np.linspace(-3, 3, 300)[:, None]
figure, axis = plt.subplots(layout="constrained")
axis.plot(x, t, ".", color="gray", markersize=3)
for criterion in (MSELoss(), cauchy, pinball):
    p = net.init(seed=0)
    train(net, p, x, t, criterion, Adam(3e-3), epochs=300, batch_size=50)
    axis.plot(grid, net(grid, p), label=getattr(criterion, "name", type(criterion).__name__))
axis.set(xlabel="x", ylabel="y", ylim=(-3, 5))
axis.legend()

# %%
# To try next: 0.5 and 0.5 in the pinball loss, for the median; ``snake`` without ``derivative``. :doc:`The page on your own
# parts </api/custom>` lists the functions of formulas.
