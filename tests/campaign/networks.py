"""Networks made, called and dropped, each of another shape: the memory of the process stays flat."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterator

import numpy as np

from chains import Adam, Chain, Dense, Dropout, LayerNorm, SquaredLoss, relu, tanh, train
from tests.campaign import running

SETTLED = 100  # attempts until what is kept for good, such as LLVM itself, is there
MOST = 64 << 20  # bytes that may be added afterwards
_memory: list[int] = []


def resident() -> int:
    """Bytes of memory that this process takes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    a, b, c, d = rng.integers(1, 60, 4).tolist()
    middle = [[], [Dropout(0.2)], [LayerNorm()]][int(rng.integers(3))]
    f = (tanh, relu)[int(rng.integers(2))]
    net = Chain(Dense(a, b, f), *middle, Dense(b, c, f), Dense(c, d))
    p = net.init(seed=number, dtype=("float32", "float64")[int(rng.integers(2))])
    x, t = rng.normal(size=(20, a)), rng.normal(size=(20, d))
    way = ("call", "gradient", "training")[int(rng.integers(3))]
    if way == "call":
        net(x, p)
    elif way == "gradient":
        net.value_and_grad(p, x, t, SquaredLoss())
    else:
        train(net, p, x, t, SquaredLoss(), Adam(), epochs=2, batch_size=7)
    del net
    if len(_memory) % 10 == 0:
        gc.collect()
    _memory.append(resident())
    if len(_memory) > SETTLED:
        more = _memory[-1] - _memory[SETTLED - 1]
        assert more < MOST, f"{more / 2**20:.0f} MiB more than {len(_memory) - SETTLED} networks before"
    return f"{way}: made and dropped"


def notes() -> Iterator[str]:
    tenths = np.linspace(0, len(_memory) - 1, 11).astype(int)
    yield "MiB by tenths: " + " ".join(f"{_memory[k] / 2**20:.0f}" for k in tenths)


if __name__ == "__main__":
    sys.exit(running.main(attempt, notes))
