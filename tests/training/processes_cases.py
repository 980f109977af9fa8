"""Training by several processes, compared with training by one, and its ends: run by `test_processes.py` under mpiexec."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from chains import (
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Conv,
    Dense,
    Dropout,
    Flatten,
    History,
    L2Penalty,
    MaxPool,
    SquaredLoss,
    tanh,
    train,
)
from chains.support.memory import HOST
from chains.training.folder_lock import FolderLock
from tests.mpi import check_equal, emulated_gpu, own_gpu

COMM = MPI.COMM_WORLD
LAST = COMM.size - 1
TOLERANCES = {np.float64: 1e-13, np.float32: 1e-6}
SAMPLES = 47  # batches of 13: uneven parts, and a smaller last batch


def check_training(net: Chain, optimizer: Any, kind: type, place: Any = HOST, **settings: Any) -> None:
    """Together, twice, with parameters in the memory of `place`, and alone on the host: the same numbers in the end."""
    rng, tolerance = np.random.default_rng(0), TOLERANCES[kind]
    x = rng.normal(size=(SAMPLES, *net.input_shape)).astype(kind)
    t = rng.normal(size=(SAMPLES, *net.output_shape)).astype(kind)
    weights = rng.uniform(0, 2, SAMPLES if kind is np.float32 else t.shape).astype(kind)
    if weights.ndim == 2:
        weights[::3, 0], t[::3, 0] = 0.0, np.nan
    results = []
    for comm, where in ((None, HOST), (COMM, place), (COMM, place)):
        p, state = where.array(net.init(0).astype(kind)), where.array(net.init_state(dtype=kind)) if net.n_state else None
        given = {"weights": weights, "state": state, "seed": 4, **settings, "comm": comm}
        history = train(net, p, x, t, SquaredLoss(), optimizer, **given)
        results.append((p, history.loss, np.zeros(1) if state is None else state))
    for name, alone, once, twice in zip(("p", "loss", "state"), *results, strict=True):
        check_equal(COMM, f"{name} of {net!r}", once, alone, tolerance)
        assert np.array_equal(once, twice), name


def check_trainings() -> None:
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 13}
    mlp = Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 2))
    check_training(mlp, Adam(1e-2), np.float32, penalty=L2Penalty(1e-3), **settings)
    check_training(Chain(Dense(3, 2, tanh)), SGD(0.1), np.float64, epochs=8)  # whole batches
    images = Chain(Conv(1, 2, 3), BatchNorm(2), MaxPool(2), Flatten(), Dropout(0.5), Dense(8, 2), input_shape=(1, 6, 6))
    check_training(images, SGD(0.1, momentum=0.9), np.float64, drop_last=True, **settings)
    check_training(Chain(Dense(3, 4, tanh), BatchNorm(4), Dense(4, 2), backend="numpy"), Adam(1e-2), np.float64, **settings)


def check_on_gpu() -> None:
    """Parameters on a GPU, whose steps are graphs between sums; and on the host, for a backend that copies them there."""
    gpu = emulated_gpu()
    if gpu is not None:
        graphs = gpu.graphs
        check_trainings_on(gpu)
        assert gpu.graphs >= graphs + 5  # of one step, around four sums
        net = Chain(Dense(3, 2, tanh), backend="one-kernel")
        check_training(net, SGD(0.1), np.float64, epochs=4, batch_size=13)


def check_trainings_on(gpu: Any) -> None:
    net = Chain(Dense(3, 4, tanh), BatchNorm(4), Dropout(0.3), Dense(4, 2))
    check_training(net, Adam(1e-2), np.float64, gpu, penalty=L2Penalty(1e-3), epochs=4, batch_size=13)
    check_training(Chain(Dense(3, 2, tanh)), SGD(0.1), np.float32, gpu, epochs=5)  # whole batches


NET = Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 2))
RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(50, 3)), RNG.normal(size=(50, 2))


def run(**settings: Any) -> History:
    given: dict[str, Any] = {"epochs": 6, "batch_size": 25, "x": X, "p": NET.init(0), "comm": COMM, **settings}
    optimizer = given.pop("optimizer", Adam(1e-2))
    return train(NET, given.pop("p"), given.pop("x"), T, SquaredLoss(), optimizer, **given)


def outcome(**settings: Any) -> list[str]:
    """What came of a training on each process."""
    try:
        history = run(**settings)
        text = f"{history.epochs} epochs, {history.steps} steps: {history.stopped or 'done'}"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return COMM.allgather(text)


class OnLast:
    """A callback that does something on the last process, after two epochs."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    def __call__(self, state: Any) -> Any:
        return self._act() if state.epoch == 2 and COMM.rank == LAST else None


class AtEnd(OnLast):
    def __call__(self, state: Any) -> None: ...

    def finish(self, state: Any) -> None:
        if COMM.rank == LAST:
            self._act()


class AtBegin(AtEnd):
    def finish(self, state: Any) -> None: ...

    def begin(self, names: list[str]) -> None:
        if COMM.rank == LAST:
            self._act()


class AfterBatch(AtBegin):
    def begin(self, names: list[str]) -> None: ...

    def on_batch_end(self, state: Any, loss: float) -> None:
        if COMM.rank == LAST and state.epoch == 2:
            self._act()


def check_waiting() -> None:
    """Ctrl-C reaches a process that waits for another one, which is still in its callbacks."""

    def interrupt_first() -> None:
        time.sleep(0.3)  # until the first one waits
        os.kill(first, signal.SIGINT)
        time.sleep(0.3)

    first = COMM.bcast(os.getpid())
    for callback, wanted in (
        (AtBegin(interrupt_first), ["0 epochs, 0 steps: interrupted by the user in epoch 1 (process 0 of 2)"] * 2),
        (
            AtEnd(interrupt_first),
            ["6 epochs, 12 steps: interrupted by the user at the end", "6 epochs, 12 steps: done"],
        ),
    ):
        found = outcome(callbacks=[callback])
        assert found == wanted, found
    assert outcome() == ["6 epochs, 12 steps: done"] * COMM.size


def fail() -> None:
    raise OSError("no disk")


def interrupt() -> None:
    raise KeyboardInterrupt


def check_ends() -> None:
    """One process ends training: all do, with its reason, and the next training finds all of them together."""
    failed = f"RuntimeError: process {LAST} of {COMM.size} failed: OSError: no disk"
    interrupted = "interrupted by the user in epoch"
    whose = f"(process {LAST} of {COMM.size})"
    everywhere = {
        f"2 epochs, 4 steps: {interrupted} 3 {whose}": {"callbacks": [OnLast(lambda: os.kill(os.getpid(), signal.SIGINT))]},
        f"2 epochs, 4 steps: {interrupted} 3 {whose} ": {"callbacks": [OnLast(interrupt)]},
        f"0 epochs, 0 steps: {interrupted} 1 {whose}": {"callbacks": [AtBegin(interrupt)]},
        "2 epochs, 4 steps: enough": {"callbacks": [OnLast(lambda: "enough")]},
        f"ValueError: all processes must begin with the same `p`: {LAST} and 0 differ": {"p": NET.init(COMM.rank)},
        f"ValueError: all processes must begin with the same `seed`: {LAST} and 0 differ": {"seed": COMM.rank // LAST},
        f"ValueError: all processes must begin with the same `penalty`: {LAST} and 0 differ": {
            "penalty": L2Penalty(1.0 + COMM.rank // LAST)
        },
        f"ValueError: all processes must begin with the same `optimizer`, `moments`: {LAST} and 0 differ": {
            "optimizer": SGD(0.1) if COMM.rank == LAST else Adam(1e-2)
        },
        f"ValueError: all processes must begin with the same `x`: {LAST} and 0 differ": {"x": X + COMM.rank // LAST},
        f"ValueError: `batch_size` (={LAST}) must be at least {COMM.size}, the processes of `comm`, which divide it": {
            "batch_size": LAST
        },
        "ValueError: the last batch (=1 samples) is too small for 2 processes: use drop_last=True": {"batch_size": 49},
        "ValueError: `comm` is for one network: the members of an ensemble need no messages, divide them instead": {
            "p": NET.init_many(2)
        },
    }
    for wanted, settings in everywhere.items():
        found = outcome(**settings)
        assert found == [wanted.strip()] * COMM.size, found
    for callback in (OnLast(fail), AtEnd(fail), AtBegin(fail), AfterBatch(fail)):
        found = outcome(callbacks=[callback])
        assert found == [failed] * LAST + ["OSError: no disk"], found
    found = outcome(x=X[: 50 - COMM.rank // LAST])
    assert "failed: ValueError: `t` has shape (50, 2)" in found[0], found
    found = outcome(callbacks=[AtEnd(interrupt)])  # the others have finished
    assert found[0] == "6 epochs, 12 steps: done", found
    found = outcome(weights=np.full(50, 1e38))
    assert "FloatingPointError" in found[0], found
    assert len(set(found)) == 1, found
    assert outcome() == ["6 epochs, 12 steps: done"] * COMM.size


def check_checkpoints() -> None:
    """A run that is begun by two processes goes on, to the bit, by two, and by one but for rounding."""
    folder = COMM.bcast(tempfile.mkdtemp() if COMM.rank == 0 else None)
    whole, parts, alone = (NET.init(0) for _ in range(3))
    run(p=whole)
    run(p=parts, checkpoint=folder, epochs=3)
    if COMM.rank == 0:
        run(p=alone, resume=folder, comm=None)
        with FolderLock(Path(folder)):
            found = outcome(checkpoint=folder, resume=folder)
    else:
        found = outcome(checkpoint=folder, resume=folder)
    assert "ValueError: `checkpoint`" in found[0], found
    assert all("process 0 of" in text and "is being written by another training, process " in text for text in found[1:]), found
    COMM.barrier()
    assert run(p=parts, checkpoint=folder, resume=folder).epochs == 6
    check_equal(COMM, "p resumed", parts, whole, 0.0)
    if COMM.rank == 0:
        np.testing.assert_allclose(alone, whole, rtol=1e-5, atol=1e-6)


def killed() -> None:
    """One process is killed in the midst of training."""
    run(epochs=10**7, callbacks=[OnLast(lambda: os.kill(os.getpid(), signal.SIGKILL))])


if __name__ == "__main__":
    if sys.argv[1:] == ["killed"]:
        killed()
    if sys.argv[1:] == ["gpu"]:
        TOLERANCES[np.float64] = 1e-11
        check_trainings_on(own_gpu())
        sys.exit()
    check_trainings()
    check_on_gpu()
    check_ends()
    check_waiting()
    check_checkpoints()
