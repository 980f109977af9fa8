"""Processes that train together agree how far to train, so that none waits for a process that has ended.

Between two runs of steps, all processes synchronise: they exchange how far each may train, and whether one has to stop. A
process that fails elsewhere takes part in the next exchange of the others. Nothing else is exchanged outside of steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from chains.optimizers import Optimizer
from chains.support.communicator import check_communicator, largest, own
from chains.support.memory import on_host
from chains.support.messages import listed
from chains.training.batches import ArrayBatches
from chains.training.history import History
from chains.training.interrupts import Interrupts

CONTINUES, STOPS, INTERRUPTED, FAILED = range(4)  # the status of a process in an exchange; the largest counts


class Processes:
    """The processes of a communicator during a run. Use as a context: its end is the last exchange."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.interrupted_in = ""  # which process got the signal that ended training
        self._shared_error: BaseException | None = None  # the error that the others know
        self._over = False  # whether the last exchange was done
        self._signalled = False  # whether Ctrl-C came during an exchange, and the others do not know
        self._history: History | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that shows progress and writes checkpoints."""
        return bool(self.comm.rank == 0)

    def begin(self, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray | None]) -> None:
        """Continue if all processes have reached this point. Raises ValueError on all if settings or arrays differ."""
        identity = {name: repr(value) for name, value in settings.items()} | _checksums(arrays)
        self._exchange(CONTINUES)
        with self._held():
            each = self.comm.allgather(identity)
        for rank, other in enumerate(each):
            names = dict.fromkeys([*each[0], *other])
            wrong = [f"`{name}`" for name in names if each[0].get(name) != other.get(name)]
            if wrong:
                self._raise(ValueError(f"all processes must begin with the same {listed(wrong)}: {rank} and 0 differ"))
        if self._signalled:
            self._signalled = False
            raise KeyboardInterrupt

    def agree(self, limits: tuple[int, int, int], history: History, interrupts: Interrupts) -> tuple[int, int, int]:
        """The smallest of all processes' limits. If one has a reason to end training, all get it.

        Raises KeyboardInterrupt if one was interrupted, RuntimeError if one has failed.
        """
        self._history = history
        status, text = (STOPS, history.stopped) if history.stopped else (CONTINUES, "")
        try:
            interrupts.check()
        except KeyboardInterrupt:
            status = INTERRUPTED
        text, limits = self._exchange(status, text, limits)
        if status == INTERRUPTED:
            self._raise(KeyboardInterrupt())
        history.stopped = text
        return limits

    def leave(self, error: BaseException) -> None:
        """Take part in the next exchange with an error, unless the others know it."""
        if error is self._shared_error or self._over:
            return
        self._shared_error = error
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        self._exchange(status, f"{type(error).__name__}: {error}")

    def _exchange(
        self, status: int, text: str = "", limits: tuple[int, int, int] = (0, 0, 0), *, last: bool = False
    ) -> tuple[str, tuple[int, int, int]]:
        """The text of the first process with the largest status, and the smallest limits.

        Raises RuntimeError if another process has failed, and KeyboardInterrupt if one was interrupted before the last
        exchange, unless this process has the same status.
        """
        numbers = np.array([status, last, *(-limit for limit in limits)], np.int64)
        rank = 0
        with self._held():
            largest(self.comm, numbers)
            most, self._over = int(numbers[0]), bool(numbers[1])
            if most > CONTINUES:
                each_status = self.comm.allgather((status, text))
                rank = next(rank for rank, (each, _) in enumerate(each_status) if each == most)
                text = each_status[rank][1]
        if most == INTERRUPTED:
            self.interrupted_in = f" (process {rank} of {self.comm.size})"
            if status < most and not self._over:
                self._raise(KeyboardInterrupt())
        if most == FAILED:
            self._over = True
            if status < most:
                self._raise(RuntimeError(f"process {rank} of {self.comm.size} failed: {text}"))
        epochs, steps, chunk = (-int(number) for number in numbers[2:])
        return text, (epochs, steps, chunk)

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise an error that the other processes know."""
        self._shared_error = error
        raise error

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold Ctrl-C back while processes wait for each other: none of them may leave."""
        interrupts = Interrupts()
        interrupts.__enter__()
        try:
            yield
        finally:
            try:
                interrupts.__exit__()
            except KeyboardInterrupt:
                self._signalled = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.leave(error)
        elif not self._over:
            self._exchange(CONTINUES, last=True)
            if self._signalled and self._history is not None and not self._history.stopped:
                self._history.stopped = "interrupted by the user at the end"


def processes_of(comm: Any) -> AbstractContextManager[Processes | None]:
    """The processes of the argument `comm` of train. Raises TypeError unless it is a communicator or None."""
    return nullcontext() if comm is None else Processes(own(check_communicator(comm)))


def check_divided(batches: ArrayBatches, optimizer: Optimizer, processes: int) -> None:
    """Raise ValueError for a batch with fewer samples than processes, and for an optimiser that they cannot share."""
    batch_size = batches.batch_size
    if batch_size < processes:
        raise ValueError(f"`batch_size` (={batch_size}) must be at least {processes}, the processes of `comm`, which divide it")
    rest = 0 if batches.drop_last else batches.samples % batch_size
    if 0 < rest < processes:
        raise ValueError(f"the last batch (={rest} samples) is too small for {processes} processes: use drop_last=True")
    if optimizer.sparse == "lazy":
        raise ValueError("`comm` needs sparse='exact': the rows that ids name differ between the processes")


def _checksums(arrays: Mapping[str, np.ndarray | None]) -> dict[str, int]:
    """A checksum of each array, by name."""
    return {name: zlib.crc32(np.ascontiguousarray(on_host(a)).data) for name, a in arrays.items() if a is not None and a.size}
