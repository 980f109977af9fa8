"""Every call with arrays to fill, and what a refusal must be."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train

REFUSED = (TypeError, ValueError)
NET = Chain(Dense(3, 4, tanh), Dense(4, 2))
CLASSIFIER = Chain(Dense(3, 5))
RNG = np.random.default_rng(0)
GOOD = {
    "x": RNG.normal(size=(6, 3)),
    "t": RNG.normal(size=(6, 2)),
    "dy": RNG.normal(size=(6, 2)),
    "p": NET.init(dtype=np.float64),
}
LABELS = np.array([0, 1, 2, 3, 4, 0])
WITH_NAN = np.where(np.arange(18).reshape(6, 3) == 7, np.nan, GOOD["x"])


class Calls:
    """Every call with arrays to fill, and these arrays' bits before."""

    def __init__(self, net=NET, loss=None, dtype=np.float64):
        self.net, self.loss = net, loss or SquaredLoss()
        self.p = net.init(dtype=dtype)
        self.y = RNG.normal(size=(6, *net.output_shape)).astype(dtype)
        self.g = RNG.normal(size=net.n_params).astype(dtype)
        self.dx = RNG.normal(size=(6, *net.input_shape)).astype(dtype)

    def forward(self, x=GOOD["x"], p=None, **rest):
        return self.net(x, self.p if p is None else p, **{"out": self.y, **rest})

    def gradient(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, **rest):
        return self.net.value_and_grad(self.p if p is None else p, x, t, loss or self.loss, **{"out": self.g, **rest})

    def vjp(self, x=GOOD["x"], dy=GOOD["dy"], p=None, **rest):
        return self.net.vjp(self.p if p is None else p, x, dy, **{"out": (self.g, self.dx), **rest})

    def objective(self, x=GOOD["x"], t=GOOD["t"], loss=None, **rest):
        return self.net.objective(x, t, loss or self.loss, **rest)

    def value(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, **rest):
        return self.net.loss(self.p if p is None else p, x, t, loss or self.loss, **rest)

    def train(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, optimizer=None, **rest):
        optimizer = Adam() if optimizer is None else optimizer
        return train(self.net, self.p if p is None else p, x, t, loss or self.loss, optimizer, **rest)

    @property
    def bits(self):
        return [array.tobytes() for array in (self.p, self.y, self.g, self.dx)]


def assert_refused(call, *words, calls=None):
    """`call` raises with all the words in its sentence, and leaves the arrays of `calls` as they were."""
    before = calls.bits if calls else None
    with pytest.raises(REFUSED) as caught:
        call()
    text = str(caught.value)
    for word in words:
        assert str(word) in text, f"no {word!r} in: {text}"
    assert " " in text, text
    assert calls is None or calls.bits == before, "something was written"


METHODS = ["forward", "gradient", "vjp", "objective", "value", "train"]
WITH_P = ["forward", "gradient", "vjp", "value", "train"]
WITH_T = ["gradient", "objective", "value", "train"]
