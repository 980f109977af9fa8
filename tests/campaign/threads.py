"""Four threads that call networks at once, a thousand times each an attempt: every call has the bits of a call alone."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

import numpy as np

from chains import BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, gelu, tanh
from tests.campaign import running

THREADS, CALLS = 4, 1000
SIZES = (1, 2, 3, 7, 16, 33, 64, 100, 500)


@cache
def networks() -> list[tuple[Chain, Any]]:
    """Networks of several kinds, with a loss each: all threads use the same ones."""
    return [
        (Chain(Dense(4, 7, tanh), Dense(7, 2)), SquaredLoss()),
        (Chain(Dense(5, 9, tanh), Dropout(0.3), Dense(9, 7, gelu), Dense(7, 3)), CrossEntropyLoss()),
        (Chain(Dense(6, 33, tanh), BatchNorm(33), Dense(33, 4)), SquaredLoss()),
        (Chain(Dense(3, 64, tanh), Dense(64, 64, tanh), Dense(64, 1)), SquaredLoss()),
    ]


class Job:
    """A call with its arguments, and the bits that it gives alone."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.net, self.loss = networks()[int(rng.integers(len(networks())))]
        dtype, batch = rng.choice(["float32", "float64"]), int(rng.choice(SIZES))
        self.kind = str(rng.choice(["call", "gradient", "vjp", "loss"]))
        self.p = self.net.init(seed=int(rng.integers(100)), dtype=dtype)
        self.state = self.net.init_state(dtype) + np.asarray(0.5, dtype) if self.net.n_state else None
        self.x = rng.normal(size=(batch, *self.net.input_shape)).astype(dtype)
        self.t = rng.normal(size=(batch, *self.net.output_shape)).astype(dtype)
        if isinstance(self.loss, CrossEntropyLoss):
            self.t = rng.integers(0, self.net.output_shape[0], batch)
        self.seed = int(rng.integers(1000))
        self.wanted = self.bits()

    def bits(self) -> list[bytes]:
        net, rest = self.net, {"state": self.state, "mode": "eval", "seed": self.seed}
        if self.kind == "call":
            return [net(self.x, self.p, **rest).tobytes()]
        if self.kind == "vjp":
            dy = np.ones((len(self.x), *net.output_shape), self.p.dtype)
            return [array.tobytes() for array in net.vjp(self.p, self.x, dy, **rest)]
        if self.kind == "loss":
            return [np.float64(net.loss(self.p, self.x, self.t, self.loss, state=self.state)).tobytes()]
        value, g = net.value_and_grad(self.p, self.x, self.t, self.loss, **rest)
        return [np.float64(value).tobytes(), g.tobytes()]


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    jobs = [Job(rng) for _ in range(12)]
    orders = rng.integers(0, len(jobs), (THREADS, CALLS))
    wrong: list[str] = []
    barrier = threading.Barrier(THREADS)

    def work(order: np.ndarray) -> None:
        try:
            barrier.wait()
            for k in order.tolist():
                if jobs[k].bits() != jobs[k].wanted:
                    wrong.append(f"{jobs[k].kind} of {jobs[k].net!r}, batch {len(jobs[k].x)}")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} calls: {wrong[0]}"
    return f"{THREADS} threads of {CALLS} calls with the same bits"


if __name__ == "__main__":
    sys.exit(running.main(attempt))
