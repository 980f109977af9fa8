"""Programs that some tests run: compilers, emulators, MPI. One that is missing, too old or does not work skips the test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

OLDEST = {"cmake": (3, 16), "node": (14, 0)}  # versions; the examples say 3.16, and import modules
PATIENCE = 120  # seconds for a program to say its version
# Processes on few processors: one that waits lets others run, and OpenMPI may start more than there are, also as root.
POLITE = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "CHAINS_NUM_THREADS": "1",
}


def tool(name: str) -> str:
    """The path of a program; the test is skipped if it cannot be used."""
    if reason := fault(name):
        pytest.skip(reason)
    return str(shutil.which(name))


@cache
def fault(name: str) -> str:
    """Why a program cannot be used; empty if it can."""
    found = shutil.which(name)
    if found is None:
        return f"{name} is not installed"
    reason, printed = _tried(found, "--version")
    if reason:
        return f"{name} does not work here: {reason}"
    version = re.search(r"(\d+)\.(\d+)", printed)
    if name in OLDEST and (version is None or (int(version[1]), int(version[2])) < OLDEST[name]):
        return f"{name} is older than {'.'.join(map(str, OLDEST[name]))}"
    return ""


@cache
def emulator_fault(compiler: tuple[str, ...], emulator: tuple[str, ...]) -> str:
    """Why programs of a compiler do not run in an emulator; empty if they do."""
    for name in (compiler[0], emulator[0]):
        if reason := fault(name):
            return reason
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "main.c"
        source.write_text('#include <stdio.h>\nint main(void) { return fclose(fopen("found", "wb")); }\n')
        reason, _ = _tried(*compiler, "main.c", "-o", "main.exe", folder=folder)
        reason = reason or _tried(*emulator, "./main.exe", folder=folder)[0]
    return f"programs of {compiler[0]} do not run in {emulator[0]}: {reason}" if reason else ""


@cache
def mpiexec() -> str:
    """The mpiexec of the MPI that mpi4py uses; the test is skipped if two processes do not find each other."""
    pytest.importorskip("mpi4py", reason="processes together need mpi4py: pip install 'chains-nn[mpi]'")
    beside = Path(sys.executable).with_name("mpiexec")  # where the package mpich puts it
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec: pip install mpich")
    code = "from mpi4py import MPI; print('together', MPI.COMM_WORLD.size)"
    reason, printed = _tried(found, "-n", "2", sys.executable, "-c", code)
    if reason or printed.count("together 2") != 2:
        pytest.skip(f"{found} does not start processes of mpi4py's MPI together: {reason or 'each is alone'}")
    return found


@cache
def fortran_mpi_fault() -> str:
    """Why two processes of a Fortran program do not find each other; empty if they do."""
    for name in ("gfortran", "mpif90", "cmake"):
        if reason := fault(name):
            return reason
    program = "use mpi_f08; integer :: n; call mpi_init(); call mpi_comm_size(mpi_comm_world, n); print *, 'together', n\n"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "main.f90").write_text(f"{program}call mpi_finalize()\nend\n")
        reason, _ = _tried("mpif90", "main.f90", "-o", "main", folder=folder)
        start = str(Path(str(shutil.which("mpif90"))).with_name("mpiexec"))  # of the same MPI
        reason, printed = (reason, "") if reason else _tried(start, "-n", "2", "./main", folder=folder)
    if not reason and len(re.findall(r"together +2", printed)) != 2:
        reason = "each is alone"
    return f"mpif90 does not make programs that run together: {reason}" if reason else ""


def _tried(*command: str, folder: str | None = None) -> tuple[str, str]:
    """Why a command failed, empty if it did not; and what it printed."""
    environment = os.environ | POLITE | {"WINEPREFIX": str(Path(folder or tempfile.gettempdir()) / "wine"), "WINEDEBUG": "-all"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), ""
    lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    return (lines[-1] if done.returncode else ""), done.stdout
