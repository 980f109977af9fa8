"""Processes that tests start by mpiexec; and what these check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from chains import backends
from chains.support.memory import memory_named
from tests.cupy import emulated
from tests.tools import POLITE, mpiexec

ROOT = Path(__file__).parents[1]


def together(processes: int, module: str, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """A module run by this number of processes; the test is skipped where MPI does not start them together."""
    command = [mpiexec(), "-n", str(processes), sys.executable, "-m", "mpi4py", "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | POLITE, capture_output=True, text=True, timeout=seconds)


def check_equal(comm: Any, what: str, found: Any, wanted: Any, tolerance: float) -> None:
    """Raise AssertionError unless the numbers agree with those of one process, and to the bit with the other processes."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * (1 + np.abs(wanted).max()), err_msg=what)
    assert all(np.array_equal(found, other) for other in comm.allgather(found)), what


def emulated_gpu() -> Any:
    """The emulated GPU, as a place of arrays; None where there is no C compiler."""
    if emulated.COMPILER is None:
        return None
    emulated.register(backends.registry._BACKENDS)
    return backends.backend("emulated").on_device.device


def own_gpu() -> Any:
    """This process's GPU, as a place of arrays."""
    import cupy
    from mpi4py import MPI

    cupy.cuda.Device(MPI.COMM_WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()
    return memory_named("cuda")
