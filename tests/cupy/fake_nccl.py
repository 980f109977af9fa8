"""CuPy's module for NCCL where there is no GPU: it notes what it is asked for, and sums through MPI, on the host."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

KINDS = {7: np.float32, 8: np.float64}  # as in nccl.h
SUM = 0
STREAM = 0xABC
IDENTITY_BYTES = 128


def memory(address: int, kind: Any, count: int) -> np.ndarray:
    """The numbers at an address."""
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), kind)


class FakeCommunicator:
    """As `cupy.cuda.nccl.NcclCommunicator`; its processes are those of `MPI.COMM_WORLD`."""

    made = ended = 0

    def __init__(self, ndev: int, identity: bytes, rank: int) -> None:
        assert len(identity) == IDENTITY_BYTES
        assert MPI.COMM_WORLD.allgather(identity) == [identity] * ndev
        assert MPI.COMM_WORLD.allgather(rank) == list(range(ndev))
        FakeCommunicator.made += 1

    def allReduce(self, send: int, receive: int, count: int, kind: int, operation: int, stream: int) -> None:
        assert (operation, stream) == (SUM, STREAM)
        total = MPI.COMM_WORLD.allreduce(memory(send, KINDS[kind], count).copy())
        memory(receive, KINDS[kind], count)[...] = total

    def destroy(self) -> None:
        FakeCommunicator.ended += 1


class FakeRuntime:
    memcpyDeviceToDevice = 3  # noqa: N815

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (self.memcpyDeviceToDevice, STREAM)
        ctypes.memmove(target, source, nbytes)


def fake_cupy(bus: str, available: bool = True) -> Any:
    """CuPy on the GPU at this place, which is what ``from cupy.cuda import nccl`` finds from now on."""
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    nccl = SimpleNamespace(available=available)
    if available:  # without its library, CuPy's module has nothing else
        nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64, nccl.NCCL_SUM = *KINDS, SUM
        nccl.get_unique_id = lambda: bytes([MPI.COMM_WORLD.rank]) * IDENTITY_BYTES
        nccl.NcclCommunicator = FakeCommunicator
    cupy.cuda, cuda.nccl = cuda, nccl  # type: ignore[attr-defined]
    cuda.runtime, cuda.Device = FakeRuntime(), lambda: SimpleNamespace(pci_bus_id=bus)  # type: ignore[attr-defined]
    sys.modules |= {"cupy": cupy, "cupy.cuda": cuda}
    return cupy
