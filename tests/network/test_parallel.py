"""Work that several processes do together over MPI. They are started by mpiexec: one start checks many cases."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, BatchNorm, Chain, Dense, SquaredLoss
from chains.program.operations import AllReduce
from tests.mpi import together


def test_processes_together_compute_what_one_does():
    done = together(3, "tests.network.parallel_cases")
    assert not done.returncode, done.stdout + done.stderr


def test_a_printed_program_shows_what_goes_between_processes():
    net = Chain(Dense(3, 4), BatchNorm(4), Dense(4, 1))
    alone, parallel = (net.program(SquaredLoss(), Adam(), parallel=each) for each in (False, True))
    sums = [operation for operation in parallel.operations if isinstance(operation, AllReduce)]
    assert [operation.outs[0].sample_size for operation in sums] == [4, 4, 8, net.n_params + 1]
    assert str(parallel).count("all_reduce(") == 4
    assert "all_reduce" not in str(alone)
    assert parallel.operations.index(sums[-1]) < min(
        k for k, operation in enumerate(parallel.operations) if operation.label == "Adam"
    )


def test_a_communicator_must_be_one():
    net = Chain(Dense(3, 1))
    p, x, t = net.init(0), np.ones((2, 3)), np.ones((2, 1))
    for wrong in (3, "MPI.COMM_WORLD"):
        with pytest.raises(TypeError, match=r"`comm` \(=.*\) must be a communicator of mpi4py"):
            net.value_and_grad(p, x, t, SquaredLoss(), comm=wrong)
        with pytest.raises(TypeError, match=r"`comm` \(=.*\) must be a communicator of mpi4py"):
            net.objective(x, t, SquaredLoss(), comm=wrong)
    with pytest.raises(TypeError, match="`parallel`"):
        net.program(SquaredLoss(), parallel=1)
    with pytest.raises(TypeError, match="`loss` is missing: `parallel`"):
        net.program(parallel=True)
