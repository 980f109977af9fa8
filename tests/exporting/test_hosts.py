"""The Fortran programs of `examples/hosts`, with MPI and OpenMP: they compute what Python does, on any number of ranks."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.tools import POLITE, fortran_mpi_fault, tool

EXAMPLE = Path(__file__).parents[2] / "examples" / "hosts" / "make.py"


def run(*command, folder, threads=1):
    environment = os.environ | POLITE | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_ranks(ranks, program, *arguments, folder, threads=1):
    """What a program prints that so many ranks run together."""
    mpiexec = Path(tool("mpif90")).with_name("mpiexec")  # of the same MPI
    return run(mpiexec, "-n", ranks, program, *arguments, folder=folder, threads=threads)


@pytest.fixture(scope="module")
def example():
    if reason := fortran_mpi_fault():
        pytest.skip(reason)
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def project(example, tmp_path_factory):
    cmake, folder = tool("cmake"), tmp_path_factory.mktemp("hosts")
    example["make"](folder)
    run(cmake, "-S", ".", "-B", "build", "-DCMAKE_Fortran_FLAGS=-std=f2018 -Wall -Wno-uninitialized", folder=folder)
    run(cmake, "--build", "build", folder=folder)
    return folder


def stepped(net, p, members, steps, dt=0.005):
    """The large variables after some steps of Lorenz 96 with the network, which is kept during a step; (members, 8)."""
    x = 8.0 + 2.0 * np.sin(1.7 * np.arange(1, 9) + 0.9 * np.arange(1, members + 1)[:, None])

    def slopes(x, u):
        return -np.roll(x, 1, -1) * (np.roll(x, 2, -1) - np.roll(x, -1, -1)) - x + 20.0 + u

    for _ in range(steps):
        columns = np.stack([np.roll(x, 2 - i, -1) for i in range(5)], -1)
        u = 10.0 * net((0.1 * columns).astype(np.float32).reshape(-1, 5), p).reshape(x.shape).astype(float)
        k1 = slopes(x, u)
        k2 = slopes(x + dt / 2 * k1, u)
        k3 = slopes(x + dt / 2 * k2, u)
        k4 = slopes(x + dt * k3, u)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def check_state(example, folder, members, steps):
    found = np.fromfile(folder / "state.bin").reshape(members, 8)
    wanted = stepped(example["net"], example["p"], members, steps)
    plain = stepped(example["net"], 0.0 * example["p"], members, steps)
    assert np.abs(plain - wanted).max() > 0.05  # what the network does
    np.testing.assert_allclose(found, wanted, atol=2e-6)


@pytest.mark.parametrize(("ranks", "threads"), [(1, 3), (2, 2)])
def test_ensemble_on_ranks_and_threads(example, project, ranks, threads):
    printed = on_ranks(ranks, "build/host", ".", 14, 40, folder=project, threads=threads)
    assert "us a step" in printed
    check_state(example, project, 14, 40)


def test_training_on_two_ranks_is_training_on_one(example, project):
    trained = []
    for ranks in (1, 2):
        lines = on_ranks(ranks, "build/train", ".", 8, 200, folder=project).splitlines()
        losses = [float(line.split()[1]) for line in lines]
        assert np.mean(losses[-3:]) < 0.2 * losses[0]
        trained.append(np.fromfile(project / "trained.bin", np.float32))
    assert np.abs(trained[0] - example["p"]).max() > 0.05
    np.testing.assert_allclose(*trained, atol=1e-4)


def test_members_that_ranks_cannot_share_are_refused(project):
    mpiexec = Path(tool("mpif90")).with_name("mpiexec")
    done = subprocess.run([mpiexec, "-n", "2", "build/host", ".", "7", "1"], cwd=project, capture_output=True, text=True)
    assert done.returncode != 0
    assert "the number of ranks must divide that of the members" in done.stderr


def test_fpm(example, tmp_path):
    fpm = tool("fpm")
    example["make"](tmp_path)
    flags = ("--compiler", "mpif90", "--profile", "release", "--link-flag", f"-L{tmp_path}")
    run(fpm, "build", *flags, folder=tmp_path)
    shutil.copy(next(tmp_path.glob("build/*/app/host")), tmp_path / "host")
    on_ranks(2, "./host", ".", 4, 40, folder=tmp_path)
    check_state(example, tmp_path, 4, 40)
