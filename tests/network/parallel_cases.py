"""What several processes compute together, compared with what one computes: run by `test_parallel.py` under mpiexec.

Each process prints nothing unless something is wrong, and then fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from chains import BatchNorm, Chain, Conv, Dense, Dropout, Flatten, L2Penalty, SquaredLoss, tanh
from tests.mpi import check_equal

COMM = MPI.COMM_WORLD
SAMPLES = 11
TOLERANCES = {np.float64: 1e-13, np.float32: 1e-6}


def mine(array: np.ndarray) -> np.ndarray:
    """This process's samples: uneven parts."""
    cuts = np.sort(np.random.default_rng(5).choice(np.arange(1, len(array)), COMM.size - 1, replace=False))
    first, last = np.array([0, *cuts, len(array)])[COMM.rank : COMM.rank + 2]
    return array[first:last]


def networks(backend: str) -> Iterator[Chain]:
    yield Chain(Conv(1, 2, 3), BatchNorm(2), Flatten(), Dropout(0.3), Dense(8, 2), input_shape=(1, 4, 4), backend=backend)
    if backend == "numpy":
        yield Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 2), backend=backend)


def check_gradients(backend: str, kind: type) -> None:
    rng, tolerance = np.random.default_rng(0), TOLERANCES[kind]
    for net in networks(backend):
        p, loss, penalty = net.init(0).astype(kind), SquaredLoss(), L2Penalty(1e-2)
        x, t = rng.normal(size=(SAMPLES, *net.input_shape)).astype(kind), rng.normal(size=(SAMPLES, 2)).astype(kind)
        weights = rng.uniform(0, 2, SAMPLES).astype(kind)
        state, own = (net.init_state(dtype=kind) if net.n_state else None for _ in range(2))
        alone = net.value_and_grad(p, x, t, loss, weights=weights, penalty=penalty, seed=3, state=state)
        given = {"weights": mine(weights), "penalty": penalty, "seed": 3}
        together = net.value_and_grad(p, mine(x), mine(t), loss, comm=COMM, state=own, **given)
        for name, found, wanted in zip(("value", "gradient"), together, alone, strict=True):
            check_equal(COMM, f"{name} of {net!r}", found, wanted, tolerance)
        if state is not None and own is not None:
            check_equal(COMM, f"state of {net!r}", own, state, tolerance)
        whole = net.objective(x, t, loss, penalty, weights=weights, mode="train", seed=3, state=state)
        given = {"weights": mine(weights), "mode": "train", "seed": 3, "state": state}
        divided = net.objective(mine(x), mine(t), loss, penalty, comm=COMM, **given)
        for _ in range(3):  # the third call is machine code's
            for name, found, wanted in zip(("value", "gradient"), divided(p), whole(p), strict=True):
                check_equal(COMM, f"{name} of the objective of {net!r}", found, wanted, 1e-13)


if __name__ == "__main__":
    check_gradients("native", np.float64)
    check_gradients("numpy", np.float32)
