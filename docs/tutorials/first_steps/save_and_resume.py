"""
Save and resume
===============

Parameters are an array, networks go into one file with them, and a training run that was killed continues from its
last checkpoint, with the same bits.
"""

import tempfile
from pathlib import Path

import numpy as np

import chains
from chains import Adam, Chain, Checkpoint, Dense, SquaredLoss, tanh, train

folder = Path(tempfile.mkdtemp())
x = np.random.default_rng(0).normal(size=(300, 2))
t = x[:, :1] * x[:, 1:]
net = Chain(Dense(2, 16, tanh), Dense(16, 1))

# %%
# A network with its parameters in one file of safetensors, and back. Nothing in such a file is ever executed.

p = net.init(seed=0)
chains.save(folder / "model.safetensors", net, p)
loaded, q, state = chains.load(folder / "model.safetensors")
print(loaded.summary())
print(np.array_equal(loaded(x, q), net(x, p)))

# %%
# A run of 20 epochs, without interruption:

loss, optimizer = SquaredLoss(), Adam(1e-2)
whole = net.init(seed=0)
train(net, whole, x, t, loss, optimizer, epochs=20, batch_size=30)

# %%
# The same run, ended after seven epochs as if it had been killed. One call serves for both: it begins where the
# folder is empty, and goes on with what is there.

run = {"batch_size": 30, "checkpoint": folder / "run", "resume": folder / "run"}
train(net, net.init(seed=0), x, t, loss, optimizer, epochs=7, **run)
p = net.init(seed=1)  # whatever stands here: it becomes that of the last checkpoint
history = train(net, p, x, t, loss, optimizer, epochs=20, **run)
print(history.epochs, np.array_equal(p, whole))

# %%
# What a folder holds can be read by itself.

last = Checkpoint(folder / "run").load()
print(last.path.name, last.history.loss[-1])
