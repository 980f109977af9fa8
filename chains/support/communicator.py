"""Communicators of mpi4py, with which programs reach the other processes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from functools import cache
from typing import Any

import numpy as np

from chains.support.messages import shown
from chains.support.threads import limit_default_num_threads, processors

_OWN: dict[str, int] = {}  # the key by which a communicator of a caller keeps ours


def check_communicator(comm: Any) -> Any:
    """`comm`. Raises TypeError unless it is an intracommunicator of mpi4py."""
    mpi = sys.modules.get("mpi4py.MPI")  # imported wherever there is a communicator
    if mpi is not None and isinstance(comm, mpi.Comm) and comm == mpi.COMM_NULL:
        raise ValueError("`comm` is MPI.COMM_NULL, which has no processes")
    if mpi is None or not isinstance(comm, mpi.Intracomm):
        raise TypeError(f"`comm` (={shown(comm)}) must be a communicator of mpi4py, such as MPI.COMM_WORLD")
    return comm


def own(comm: Any) -> Any:
    """A duplicate of a caller's communicator: messages do not mix with the caller's, and an error of MPI ends all processes.

    The first call makes it, on all processes, and divides the processors of each machine among its processes. It is freed with
    the caller's.
    """
    mpi = sys.modules["mpi4py.MPI"]
    if "key" not in _OWN:
        _OWN["key"] = mpi.Comm.Create_keyval(delete_fn=lambda comm, key, duplicate: duplicate.Free())
    found = comm.Get_attr(_OWN["key"])
    if found is None:
        found = comm.Dup()
        found.Set_errhandler(mpi.ERRORS_ARE_FATAL)
        comm.Set_attr(_OWN["key"], found)
        limit_default_num_threads(_fair_share(found))
    return found


def _fair_share(comm: Any) -> int:
    """The default number of threads of this process, so that the processes on its machine use each processor once."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(processors()))
    here = comm.Split_type(sys.modules["mpi4py.MPI"].COMM_TYPE_SHARED)
    users = Counter(number for each in here.allgather(mine) for number in each)
    here.Free()
    return max(1, int(processors() * sum(1 / users[number] for number in mine) / len(mine) + 1e-9))


def words_of(comm: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """The contents of the buffer `COMMUNICATOR`, with which programs sum arrays of this type over the processes of a duplicate.

    The address of MPI_Allreduce, the address that means "in place", and the handles of type, sum and communicator.
    """
    mpi = sys.modules["mpi4py.MPI"]
    kind = {np.dtype(np.float32): mpi.FLOAT, np.dtype(np.float64): mpi.DOUBLE}[dtype]
    words = [_address(mpi.__file__), int(mpi.IN_PLACE), kind.handle, mpi.SUM.handle, comm.handle]
    return np.array([word % (1 << 64) for word in words], np.uint64).view(np.int64)


def handle_of(comm: Any) -> int:
    """The handle of a communicator, as in `words_of`."""
    return int(comm.handle) % (1 << 64)


def communicator_in(words: np.ndarray) -> int | None:
    """The handle of the communicator that the words name, if any."""
    return int(words.view(np.uint64)[4]) if words[0] else None


def largest(comm: Any, numbers: np.ndarray) -> None:
    """Replace each number by the largest of all processes."""
    mpi = sys.modules["mpi4py.MPI"]
    comm.Allreduce(mpi.IN_PLACE, numbers, mpi.MAX)


def all_reduce(words: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
    """out = the sum of `a` over all processes; a copy if the words name no communicator."""
    handle = communicator_in(words)
    if handle is None:
        np.copyto(out, a)
        return
    mpi = sys.modules["mpi4py.MPI"]
    mpi.Comm.fromhandle(handle).Allreduce(mpi.IN_PLACE if a is out else a, out)


@cache
def _address(library: str) -> int:
    """The address of MPI_Allreduce, in the library of mpi4py or in a library that it links."""
    try:
        return int(ctypes.cast(ctypes.CDLL(library).MPI_Allreduce, ctypes.c_void_p).value or 0)
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"MPI_Allreduce was not found through mpi4py's library {library}: {error}") from error
