"""Calls that several processes do together, each with its own samples, over a communicator of mpi4py."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Executable
from chains.support.communicator import check_communicator, own, words_of
from chains.support.memory import memory_of


def check_comm(comm: Any) -> Any:
    """Our duplicate of a caller's communicator. Raises TypeError for what is none."""
    return own(check_communicator(comm))


def part_of(comm: Any, samples: int) -> tuple[int, int]:
    """How many samples all processes have together, and how many of them come before those of this one."""
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([samples], np.int64), counts)
    return int(counts.sum()), int(counts[: comm.rank].sum())


def part_arrays(comm: Any, run: Executable, total: int, first: int, beside: Any) -> dict[str, np.ndarray]:
    """The arrays by which a program knows its part of a batch of `total` samples, of which it has those from `first` on.

    They lie in the memory of `beside`, but for the communicator, which is for the host. All processes call this.
    """
    dtype, place = run.program.dtype, memory_of(beside)
    run.backend.join(comm)
    arrays = {
        "communicator": words_of(comm, dtype),
        "inverse_total": place.contiguous(np.array(1.0 / total, dtype)),
        "first_sample": place.contiguous(np.array(first, np.uint64)),
    }
    return {name: array for name, array in arrays.items() if name in run.program.buffers}
