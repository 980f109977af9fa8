"""What several processes compute together, compared with what one computes: run by `test_parallel.py` under mpiexec.

Each process prints nothing unless something is wrong, and then fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from chains import BatchNorm, Chain, Conv, Dense, Dropout, Flatten, L2Penalty, SquaredLoss, tanh
from chains.backends.cupy.device import nccl
from chains.support.communicator import own, words_of
from chains.support.memory import HOST
from tests.cupy.fake_nccl import STREAM, FakeCommunicator, fake_cupy
from tests.mpi import check_equal, emulated_gpu, own_gpu

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


def check_gradients(backend: str, kind: type, place: Any = HOST) -> None:
    """Together, with arrays in the memory of `place`, and alone on the host."""
    rng, tolerance, put = np.random.default_rng(0), TOLERANCES[kind], place.array
    for net in networks(backend):
        p, loss, penalty = net.init(0).astype(kind), SquaredLoss(), L2Penalty(1e-2)
        x, t = rng.normal(size=(SAMPLES, *net.input_shape)).astype(kind), rng.normal(size=(SAMPLES, 2)).astype(kind)
        weights = rng.uniform(0, 2, t.shape if net.n_state else SAMPLES).astype(kind)  # of targets, or of samples
        if weights.ndim == 2:
            weights[::3, 0], t[::3, 0] = 0.0, np.nan
        state, own = (put(net.init_state(dtype=kind)) if net.n_state else None for put in (HOST.array, place.array))
        alone = net.value_and_grad(p, x, t, loss, weights=weights, penalty=penalty, seed=3, state=state)
        given = {"weights": put(mine(weights)), "penalty": penalty, "seed": 3}
        together = net.value_and_grad(put(p), put(mine(x)), put(mine(t)), loss, comm=COMM, state=own, **given)
        for name, found, wanted in zip(("value", "gradient"), together, alone, strict=True):
            check_equal(COMM, f"{name} of {net!r}", found, wanted, tolerance)
        if state is not None and own is not None:
            check_equal(COMM, f"state of {net!r}", own, state, tolerance)
        whole = net.objective(x, t, loss, penalty, weights=weights, mode="train", seed=3, state=state)
        given = {"weights": put(mine(weights)), "mode": "train", "seed": 3, "state": state if own is None else put(state)}
        divided = net.objective(put(mine(x)), put(mine(t)), loss, penalty, comm=COMM, **given)
        for _ in range(3):  # the third call is machine code's; on a GPU, the second one makes graphs
            for name, found, wanted in zip(("value", "gradient"), divided(p), whole(p), strict=True):
                check_equal(COMM, f"{name} of the objective of {net!r}", found, wanted, TOLERANCES[np.float64])


def check_refusals() -> None:
    """One process has an error before the first message: it raises that, and the others an error that names it."""
    net, wrong = Chain(Dense(3, 2), BatchNorm(2)), COMM.rank == 1
    p, x, t = net.init(0, np.float64), np.ones((4, 3)), np.ones((4, 2))
    state = net.init_state(np.float64)
    given = {"p": p, "x": x, "t": t, "loss": SquaredLoss(), "state": state}
    bad = {
        "x": np.ones((4, 2)), "p": p[:-1], "t": np.full((4, 2), np.nan), "state": None, "out": np.ones(3), "mode": "trian",
        "seed": -1, "weights": np.ones(7),
    }  # fmt: skip
    for name, value in bad.items():
        refused = r"`(check_finite|" + name + ")`" if wrong else r"^process 1 of 3 failed: (Type|Value)Error: .*`" + name + "`"
        kinds = (TypeError, ValueError) if wrong else RuntimeError
        here = given | ({name: value} if wrong else {})
        with pytest.raises(kinds, match=refused):
            net.value_and_grad(**here, check_finite=True, comm=COMM)
        if name not in ("p", "out"):
            with pytest.raises(kinds, match=refused):
                net.objective(**{key: each for key, each in here.items() if key != "p"}, comm=COMM)
    with pytest.raises(ValueError if wrong else RuntimeError, match="`x`"):
        net.value_and_grad(
            np.stack([p, p]), bad["x"] if wrong else x, t, SquaredLoss(), state=np.stack([state, state]), comm=COMM
        )
    check_equal(COMM, "value after refusals", net.value_and_grad(**given, comm=COMM)[0], net.value_and_grad(**given)[0], 1e-12)


def check_nccl() -> None:
    """One communicator of NCCL's for each of MPI's, which ends with it; the sums that are asked of it; what is refused."""
    comm = COMM.Dup()
    last = COMM.rank == COMM.size - 1
    refused = {
        f"CuPy cannot load in process {COMM.size - 1}: cupy.cuda.nccl is not available; pip install": ("", not last),
        "a GPU for each process, but processes 0 and 2 have the same one (0:0 of ": (f"{COMM.rank % 2}:0", True),
    }
    for text, gpu in refused.items():
        with pytest.raises(ValueError, match=re.escape(text)):
            nccl.join(fake_cupy(*gpu), own(comm))
    assert FakeCommunicator.made == 0
    cupy = fake_cupy(f"{COMM.rank}:0")
    for _ in range(2):
        nccl.join(cupy, own(comm))
    assert FakeCommunicator.made == 1
    for dtype in map(np.dtype, TOLERANCES):
        words, a, out = words_of(own(comm), dtype), np.arange(5, dtype=dtype) + COMM.rank, np.zeros(5, dtype)
        wanted = COMM.allreduce(a)
        ends = a.ctypes.data, out.ctypes.data
        nccl.all_reduce(cupy, words, dtype, 5, *ends, STREAM)
        assert np.array_equal(out, wanted)
        nccl.all_reduce(cupy, words, dtype, 5, ends[0], ends[0], STREAM)
        assert np.array_equal(a, wanted)
        out[...] = 0
        nccl.all_reduce(cupy, 0 * words, dtype, 3, *ends, STREAM)  # no processes: a copy
        assert np.array_equal(out, [*wanted[:3], 0, 0])
    comm.Free()
    assert FakeCommunicator.ended == 1


if __name__ == "__main__":
    if sys.argv[1:] == ["gpu"]:
        TOLERANCES[np.float64] = 1e-11
        check_gradients("numpy", np.float64, own_gpu())
        sys.exit()
    check_gradients("native", np.float64)
    check_gradients("numpy", np.float32)
    gpu = emulated_gpu()
    if gpu is not None:
        check_gradients("native", np.float64, gpu)
        assert gpu.joined
    check_refusals()
    check_nccl()
