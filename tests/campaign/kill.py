"""Runs of all kinds, killed with SIGKILL at random moments and resumed from their checkpoints: the bits of one that was not.

Now and then a second process trains in the same folder meanwhile: it is refused, or has come after the first one's end.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CACHE = tempfile.TemporaryDirectory(prefix="chains-kill-")
os.environ["CHAINS_CACHE"] = _CACHE.name  # of this campaign, and killed while it is written too

import numpy as np  # noqa: E402

from chains import (  # noqa: E402
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Checkpoint,
    Conv,
    Dense,
    Dropout,
    EarlyStopping,
    Flatten,
    SquaredLoss,
    num_threads,
    schedules,
    tanh,
    train,
)
from chains.data import Augment, Batches, prefetch  # noqa: E402
from chains.support.storage import UNFINISHED  # noqa: E402
from tests.campaign import running  # noqa: E402

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(203, 6)), RNG.normal(size=(203, 2))
IMAGES = RNG.normal(size=(203, 1, 8, 8)).astype(np.float32)
VALIDATION = {"validation": (X[:50], T[:50]), "metrics": [lambda t, y: float(abs(t - y).max())]}
KILLS = 6  # of one run, at most
INTERVALS = [None, 1, 3, "1 step", "7 steps", "100 steps", 0.001, "0.02 s", 0.2]


class Own:
    """Batches in an order of the pass, which it counts; it cannot begin within one."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self):
        order = np.random.default_rng([7, self.epoch]).permutation(len(X))
        self.epoch += 1
        for start in range(0, len(X), 16):
            yield X[order[start : start + 16]], T[order[start : start + 16]]


def dense(name: str) -> Chain:
    return Chain(Dense(6, 16, tanh), Dropout(0.2), Dense(16, 2), backend=name)


def normal(name: str) -> Chain:
    return Chain(Dense(6, 16, tanh), BatchNorm(16), Dropout(0.1), Dense(16, 2), backend=name)


def images(name: str) -> Chain:
    return Chain(Conv(1, 3, 3, tanh), Flatten(), Dense(108, 2), input_shape=(1, 8, 8), backend=name)


RATE = schedules.cosine(0.02, 2000)
# The network, what gives the data, the optimiser, the epochs, and the other arguments.
RUNS: dict[str, tuple[Callable[[str], Chain], Callable[[], tuple], object, int, dict]] = {
    "full batches": (dense, lambda: (X, T), Adam(0.001), 4000, {}),
    "full batches looked at": (normal, lambda: (X, T), Adam(RATE), 400, VALIDATION),
    "mini-batches": (dense, lambda: (X, T), Adam(RATE), 150, {"batch_size": 16}),
    "mini-batches looked at": (normal, lambda: (X, T), SGD(RATE, momentum=0.9), 100,
                               {"batch_size": 10, "drop_last": True, **VALIDATION}),
    "early stopping": (dense, lambda: (X, T), Adam(0.01), 400, {"batch_size": 50, **VALIDATION, "stop": 60}),
    "list": (dense, lambda: ([(X[k : k + 20], T[k : k + 20]) for k in range(0, 203, 20)], None), Adam(0.01), 100, {}),
    "stream": (normal, lambda: (Batches(X, T, batch_size=16, seed=3), None), Adam(RATE), 80, {}),
    "prefetched": (dense, lambda: (prefetch(Batches(X, T, batch_size=16), 3), None), SGD(RATE, momentum=0.9), 80, {}),
    "augmented": (images, lambda: (prefetch(Batches(IMAGES, T, batch_size=16, augment=Augment(shift=2), scale=0.5)), None),
                  Adam(RATE), 40, {}),
    "source of one's own": (dense, lambda: (prefetch(Own()), None), Adam(0.01), 80, {}),
}  # fmt: skip


def trained(kind: str, backend: str, threads: int, checkpoint: Checkpoint | None) -> dict[str, str]:
    """Train, from the checkpoints that there are; digests of all that is left."""
    network, source, optimizer, epochs, settings = RUNS[kind]
    settings = dict(settings)
    stop = settings.pop("stop", 0)
    net, (x, t) = network(backend), source()
    p, state = net.init(seed=2), net.init_state() if net.n_state else None
    callbacks = [EarlyStopping(stop)] if stop else []
    with num_threads(threads):
        history = train(net, p, x, t, SquaredLoss(), optimizer, epochs=epochs, seed=5, state=state, callbacks=callbacks,
                        checkpoint=checkpoint, resume=checkpoint, **settings)  # fmt: skip
    columns = {name: np.array(values) for name, values in history.columns().items() if name != "seconds"}
    left = {"p": p, **({} if state is None else {"state": state}), **history.optimizer_state, **columns}
    digests = {name: hashlib.sha256(np.ascontiguousarray(array)).hexdigest() for name, array in left.items()}
    return {**digests, "steps": str(history.steps), "stopped": history.stopped}


def in_child(result: Path, *arguments: object) -> int:
    """Train in a process of its own, which writes what came of it to a file; its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        found = trained(*arguments)  # type: ignore[arg-type]
        part = result.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(result)
        status = 0
    except BaseException:
        result.with_suffix(".error").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def ended(child: int, result: Path) -> dict[str, str]:
    """What a process that was left alone wrote."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    error = result.with_suffix(".error")
    assert status == 0, f"it ended with {status}: {error.read_text() if error.exists() else ''}"
    return json.loads(result.read_text())


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    kind = list(RUNS)[(seed + number) % len(RUNS)]
    backend, threads = ("native", int(rng.integers(1, 3))) if rng.random() < 0.8 else ("numpy", 1)
    every, keep = INTERVALS[rng.integers(len(INTERVALS))], int(rng.integers(1, 4))
    outcomes = [kind, f"{backend}, {threads} thread{'s' * (threads > 1)}".replace(", ", " on ")]
    with tempfile.TemporaryDirectory(prefix="chains-kill-run-") as name:
        folder = Path(name)
        for result in ("first", "wanted"):  # the first run compiles, the second one is timed
            start = time.monotonic()
            wanted = ended(in_child(folder / result, kind, backend, threads, None), folder / result)
            taken = time.monotonic() - start
        checkpoint = Checkpoint(folder / "run", every=every, keep=keep)
        for _ in range(KILLS):
            before = written(checkpoint.folder)
            child = in_child(folder / "found", kind, backend, threads, checkpoint)
            patience = time.monotonic() + 20 * taken
            if rng.random() < 0.8:  # under way: the first thing that a run does is to write a checkpoint
                while written(checkpoint.folder) == before and time.monotonic() < patience:
                    time.sleep(0.001)
            second = in_child(folder / "second", kind, backend, threads, checkpoint) if rng.random() < 0.2 else None
            if second is not None and rng.random() < 0.8:
                while not os.waitid(os.P_PID, second, os.WEXITED | os.WNOHANG | os.WNOWAIT) and time.monotonic() < patience:
                    time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.5 * taken))
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if second is not None:
                outcomes.append(refused(second, folder / "second", child))
                if (folder / "found.error").exists():  # the second one was first
                    check_refusal(folder / "found.error", second)
            if status == -signal.SIGKILL:
                outcomes.append("KILLED")
                outcomes.append(moment(checkpoint.folder))
            assert not (folder / "found.error").exists(), (folder / "found.error").read_text()
        found = ended(in_child(folder / "found", kind, backend, threads, checkpoint), folder / "found")
    wrong = [part for part in wanted if found.get(part) != wanted[part]]
    assert not wrong, f"{kind}, {backend}, {threads} threads, every={every!r}, keep={keep}: {', '.join(wrong)} differ"
    return ", ".join(outcomes)


def refused(child: int, result: Path, first: int) -> str:
    """What has happened to a second process, which ends now."""
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    error = result.with_suffix(".error")
    if error.exists():
        check_refusal(error, first)
        return "a second one was refused"
    assert status in (0, -signal.SIGKILL), status
    return "a second one was killed" if status else "a second one went to the end"


def check_refusal(error: Path, first: int) -> None:
    """Raise AssertionError unless a process was refused because of the first one; remove its error."""
    text = error.read_text()
    assert not text or "is being written by another training, " in text, text
    assert not text or f"process {first} on" in text or "that has not given its number" in text, text
    error.unlink()


def written(folder: Path) -> set[tuple[str, int]]:
    """The checkpoints in a folder, and when each was written."""
    found = set()
    for path in folder.glob("step-*.safetensors"):
        with suppress(FileNotFoundError):  # it may be deleted meanwhile
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def moment(folder: Path) -> str:
    """What a run that was killed was doing, as far as its folder tells."""
    if not folder.is_dir() or not any(folder.glob("step-*.safetensors")):
        return "killed before a checkpoint was whole"
    unfinished = list(folder.glob(UNFINISHED))
    assert len(unfinished) <= 1, f"the file of an earlier run was left: {unfinished}"
    if not unfinished:
        return "killed between checkpoints"
    unfinished[0].unlink()  # so that the next one is known
    return "killed while one was written"


if __name__ == "__main__":
    sys.exit(running.main(attempt))
