"""
Inside PyTorch and JAX
======================

Your model is written in PyTorch or JAX, and a small network is one part of it. This package can compute that part. Gradients
pass through it, and its parameters are one vector of that library.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from chains import Chain, Dense, tanh
from chains.interop import as_jax, as_torch, from_torch, to_torch

rng = np.random.default_rng(0)
net = Chain(Dense(2, 16, tanh), Dense(16, 1))
p = net.init(seed=0)
x = rng.normal(size=(200, 2)).astype(np.float32)
t = (x[:, :1] * x[:, 1:]).astype(np.float32)

# %%
# ``as_torch`` is a module with one parameter, ``p``. Here it follows a layer of PyTorch, and an optimiser of PyTorch trains
# both.

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), as_torch(net, p))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(500):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(t))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}, gradient of the vector {tuple(model[1].p.grad.shape)}")

# %%
# ``as_jax`` is a function of inputs and parameters. ``jit``, ``grad`` and ``vmap`` take it. Here a known
# term is added.

f = as_jax(net)


@jax.jit
def step(p, x, t):
    value, g = jax.value_and_grad(lambda p: jnp.mean((f(x, p) + 0.5 * x[:, :1] - t) ** 2))(p)
    return value, p - 0.05 * g


q = jnp.asarray(p)
for _ in range(500):
    value, q = step(q, x, t)
print(f"loss {value:.4f}")

# %%
# Modules of PyTorch are read and written with their weights, if each layer exists in both libraries.

module = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
same, p, state = from_torch(module)
print(same)
print(np.abs(same(x, p) - module(torch.from_numpy(x)).detach().numpy()).max())
print(to_torch(same, p))

# %%
# To try next: ``torch.nn.SiLU`` in the module; ``jax.vmap(f, (None, 0))``, which takes the rows of
# ``net.init_many(3, seed=0)``. :doc:`The page on other libraries </interop>` has Keras too.
