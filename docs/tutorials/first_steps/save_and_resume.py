"""
Save and resume
===============

A trained network is needed again tomorrow, or a long training is killed halfway. ``chains.save`` writes a network and its
parameters to one file. With checkpoints, a killed training continues with identical bits.
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
# ``save`` writes a network with its parameters to one file of safetensors, and ``load`` reads it. Nothing in such a file is
# ever executed.

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
# The same run, ended after seven epochs as if it had been killed. The same call starts and resumes: it begins anew if the
# folder is empty, and continues from the last checkpoint otherwise.

run = {"batch_size": 30, "checkpoint": folder / "run", "resume": folder / "run"}
train(net, net.init(seed=0), x, t, loss, optimizer, epochs=7, **run)
p = net.init(seed=1)  # any values: those of the last checkpoint replace them
history = train(net, p, x, t, loss, optimizer, epochs=20, **run)
print(history.epochs, np.array_equal(p, whole))

# %%
# ``Checkpoint`` reads the contents of a folder.

last = Checkpoint(folder / "run").load()
print(last.path.name, last.history.loss[-1])

# %%
# To try next: Ctrl-C during a training of 1,000,000 epochs, then the same call again. :doc:`The page on files </files>`
# describes the contents of a file.
