"""
Fit a curve
===========

A curve was measured with noise, and a smooth function is needed for it. A network of one input and one output learns this
function. This page shows all that it takes: data, a network, parameters, training, a prediction.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, MSELoss, tanh, train

# %%
# Data are arrays whose first axis counts the samples: here 200 samples of one number each.

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, size=(200, 1))
t = np.sin(2 * x) * np.exp(-(x**2) / 4) + 0.05 * rng.normal(size=x.shape)

# %%
# A network is a list of layers. It holds no parameters: ``init`` returns them as one vector, which every call takes.

net = Chain(Dense(1, 24, tanh), Dense(24, 24, tanh), Dense(24, 1))
p = net.init(seed=0)
print(net.summary())
print(p.shape, p.dtype)

# %%
# Training changes ``p`` in place. The history has the loss of every epoch.

history = train(net, p, x, t, MSELoss(), Adam(5e-3), epochs=600, batch_size=50)
print(history.epochs, history.steps, history.loss[0], history.loss[-1])

# %%
# A prediction is a call with samples and parameters.

grid = np.linspace(-3, 3, 300)[:, None]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(x, t, ".", color="gray", label="data")
left.plot(grid, net(grid, p), label="network")
left.set(xlabel="x", ylabel="y")
left.legend()
right.semilogy(history.loss)
right.set(xlabel="epoch", ylabel="loss")

# %%
# The noise has the variance 0.0025, and the loss ends near it.

print(f"loss {net.loss(p, x, t, MSELoss()):.4f}")

# %%
# To try next: :doc:`your own data </auto_tutorials/first_steps/your_data>`, more units, another activation, or
# :doc:`minimize </auto_tutorials/first_steps/adam_then_bfgs>` after Adam.
