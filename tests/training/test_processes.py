"""Training by several processes over MPI."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, SquaredLoss, train
from tests.mpi import together


def test_processes_train_as_one_does_and_end_together():
    done = together(2, "tests.training.processes_cases")
    assert not done.returncode, done.stdout + done.stderr


def test_a_killed_process_ends_the_others():
    done = together(2, "tests.training.processes_cases", "killed")
    assert done.returncode
    assert "KILLED BY SIGNAL: 9" in (done.stdout + done.stderr).upper() or "SIGNAL 9" in (done.stdout + done.stderr).upper()


@pytest.mark.parametrize("wrong", [2, "MPI.COMM_WORLD", SGD(0.1)])
def test_a_communicator_must_be_one(wrong):
    net = Chain(Dense(2, 1))
    with pytest.raises(TypeError, match=r"`comm` \(=.*\) must be a communicator of mpi4py, such as MPI.COMM_WORLD"):
        train(net, net.init(0), np.ones((4, 2)), np.ones((4, 1)), SquaredLoss(), Adam(1e-2), comm=wrong)
