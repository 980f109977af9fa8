"""Calls that several processes do together, each with its own samples, over a communicator of mpi4py."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Executable
from chains.backends.places import is_elsewhere
from chains.communicator import check_communicator, own, words_of


def check_comm(comm: Any, beside: Any) -> Any:
    """Our duplicate of a caller's communicator, for work on arrays in the memory of `beside`.

    Raises TypeError for what is none, and where the arrays lie on a GPU.
    """
    check_communicator(comm)
    if is_elsewhere(beside):
        raise TypeError("`comm` needs the arrays in the computer's memory, got one on a GPU: pass cupy.asnumpy(p)")
    return own(comm)


def part_of(comm: Any, samples: int) -> tuple[int, int]:
    """How many samples all processes have together, and how many of them come before those of this one."""
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([samples], np.int64), counts)
    return int(counts.sum()), int(counts[: comm.rank].sum())


def part_arrays(comm: Any, run: Executable, total: int, first: int) -> dict[str, np.ndarray]:
    """The arrays by which a program knows its part of a batch of `total` samples, of which it has those from `first` on."""
    dtype = run.program.dtype
    arrays = {
        "communicator": words_of(comm, dtype),
        "inverse_total": np.array(1.0 / total, dtype),
        "first_sample": np.array(first, np.uint64),
    }
    return {name: array for name, array in arrays.items() if name in run.program.buffers}
