"""A network with a state, data for it, and where it starts."""

from __future__ import annotations

import numpy as np

from chains import (
    BatchNorm,
    Chain,
    Dense,
    SquaredLoss,
    tanh,
)  # fmt: skip

RNG = np.random.default_rng(0)
X, T, DY = RNG.normal(1.0, 2.0, (8, 3)), RNG.normal(size=(8, 2)), RNG.normal(size=(8, 2))
LOSS = SquaredLoss()


def make_net(name="auto"):
    return Chain(Dense(3, 4, tanh), BatchNorm(4), Dense(4, 2), backend=name)


def start(net, dtype=np.float64):
    """Parameters and a state that is not the initial one."""
    return net.init(seed=1, dtype=dtype), np.random.default_rng(2).uniform(0.5, 2.0, net.n_state).astype(dtype)
