"""Calls of several processes together, each with its samples, over a communicator of mpi4py."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import numpy as np

from chains.backends import Executable
from chains.support.communicator import check_communicator, own, words_of
from chains.support.memory import memory_of

FAILED = -1  # the number of samples of a process that has failed


class Agreement:
    """The processes of a call, which all refuse it if one of them does: otherwise the others would wait for it.

    Used as a context around the checks of a call. The first message, `part_of`, follows the last check of this process alone;
    a process that has an error before takes part in it. Raises TypeError unless `comm` is a communicator.
    """

    def __init__(self, comm: Any) -> None:
        self.given, self.comm = comm, own(check_communicator(comm))  # the caller's, and our duplicate
        self._told = False  # whether this process has sent the message

    def part_of(self, samples: int) -> tuple[int, int]:
        """The number of samples of all processes, and of those before this process. RuntimeError if another one has failed."""
        counts = self._exchange(samples, "")
        return int(counts.sum()), int(counts[: self.comm.rank].sum())

    def _exchange(self, samples: int, error: str) -> np.ndarray:
        self._told = True
        counts = np.empty(self.comm.size, np.int64)
        self.comm.Allgather(np.array([samples], np.int64), counts)
        if (counts == FAILED).any():
            texts = self.comm.allgather(error)
            rank = int(np.argmax(counts == FAILED))
            if not error:
                raise RuntimeError(f"process {rank} of {self.comm.size} failed: {texts[rank]}")
        return counts

    def __enter__(self) -> Self:
        self._told = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not self._told:
            self._exchange(FAILED, f"{type(error).__name__}: {error}")


def agreement(comm: Any) -> AbstractContextManager[Agreement | None]:
    """That of the argument `comm` of a call: a communicator of mpi4py, None, or the agreement of a call that makes this one."""
    if comm is None:
        return nullcontext()
    return comm if isinstance(comm, Agreement) else Agreement(comm)


def part_arrays(comm: Any, executable: Executable, total: int, first: int, like: Any) -> dict[str, np.ndarray]:
    """The arrays with a program's part of a batch of `total` samples: it has those from `first` on.

    They are in the memory of `like`, except the communicator, which is for the host. All processes call this.
    """
    dtype, place = executable.program.dtype, memory_of(like)
    executable.backend.join(comm)
    arrays = {
        "communicator": words_of(comm, dtype),
        "inverse_total": place.contiguous(np.array(1.0 / total, dtype)),
        "first_sample": place.contiguous(np.array(first, np.uint64)),
    }
    return {name: array for name, array in arrays.items() if name in executable.program.buffers}
