"""Sums over processes that have a GPU each, by NCCL through CuPy.

Each communicator of MPI has one of NCCL's, which lives as long. NCCL waits for the graphs that hold its work before it ends a
communicator: so its work is started between graphs.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from typing import Any

import numpy as np

from chains.backends.cupy.device.packages import package
from chains.support.communicator import communicator_in, handle_of

_KEYS: list[int] = []  # the key that marks a communicator of MPI with one of NCCL's
_JOINED: dict[int, Any] = {}  # NCCL's communicators, by the handles of MPI's


def join(cupy: Any, comm: Any) -> None:
    """Make NCCL's communicator for the processes of a duplicate of MPI's, all of which call this; once for each.

    Raises ValueError, on all processes, if CuPy has no NCCL on one of them, or two have the same GPU.
    """
    if not _KEYS:
        _KEYS.append(sys.modules["mpi4py.MPI"].Comm.Create_keyval(delete_fn=_leave))
    if comm.Get_attr(_KEYS[0]) is not None:
        return
    trouble = ""
    try:
        nccl = library()
    except ImportError as error:
        trouble = str(error)
    gpu = platform.node(), cupy.cuda.Device().pci_bus_id
    each = comm.allgather((trouble, gpu))
    for rank, (text, _) in enumerate(each):
        if text:
            raise ValueError(
                f"`comm` needs NCCL on a GPU, which CuPy cannot load in process {rank}: {text}; {package('nvidia-nccl')}"
            )
    (shared, users), *_ = Counter(place for _, place in each).most_common(1)
    if users > 1:
        ranks = [rank for rank, (_, place) in enumerate(each) if place == shared]
        raise ValueError(
            f"`comm` needs a GPU for each process, but processes {ranks[0]} and {ranks[1]} have the same one ({shared[1]} of "
            f"{shared[0]}): begin with cupy.cuda.Device(local_rank).use()"
        )
    identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
    _JOINED[handle_of(comm)] = nccl.NcclCommunicator(comm.size, identity, comm.rank)
    comm.Set_attr(_KEYS[0], handle_of(comm))


def library() -> Any:
    """CuPy's module for NCCL. Raises ImportError if it has none."""
    from cupy.cuda import nccl

    if not getattr(nccl, "available", False):
        raise ImportError("cupy.cuda.nccl is not available")
    return nccl


def _leave(comm: Any, key: int, handle: int) -> None:
    """MPI's communicator is freed: end NCCL's."""
    _JOINED.pop(handle).destroy()


def all_reduce(cupy: Any, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int, stream: int) -> None:
    """Start, on a stream, the sum of `count` numbers over the processes of a communicator; a copy if `words` name none."""
    handle = communicator_in(words)
    if handle is not None:
        nccl = library()
        kind = {np.dtype(np.float32): nccl.NCCL_FLOAT32, np.dtype(np.float64): nccl.NCCL_FLOAT64}[dtype]
        _JOINED[handle].allReduce(source, target, count, kind, nccl.NCCL_SUM, stream)
    elif source != target:
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(target, source, count * dtype.itemsize, runtime.memcpyDeviceToDevice, stream)
