"""What the tests of the GPU backend share: what they need, programs, data, training."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, CrossEntropyLoss, train
from chains.backends.cupy.device.cuda import usable_cupy
from chains.network import record
from chains.network.network import network_of
from chains.program.program import Program
from tests.cupy import emulated, nvrtc
from tests.harness import Case, Problem

needs_compiler = pytest.mark.skipif(emulated.COMPILER is None, reason="no C compiler on this computer")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="neither NVRTC nor nvcc on this computer")
EMULATED = ("emulated", "backwards")


def gradient_program(case: Case, dtype) -> Program:
    net = case.net()
    return record.gradient(network_of(net), case.criterion(), dtype, True)


def arrays_of(problem: Problem) -> dict[str, np.ndarray]:
    """What a gradient's program is given, by buffer name."""
    state = problem.case.net().init_state(np.float64)
    arrays = {"p": problem.p, "x": problem.x, "t": problem.t, "random": np.array([3, 0], np.uint64), "state": state}
    return arrays if problem.w is None else arrays | {"weights": problem.w}


CONVOLUTIONS = {
    "plain": chains.Conv(2, 4, 3),
    "settings": chains.Conv(2, 3, (3, 2), stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2)),
    "one": chains.Conv(2, 3, 1),
    "transposed": chains.ConvTranspose(2, 3, 3, stride=2, padding=1),
    "signal": chains.Conv(2, 3, (4,), padding=2),
}


def data(samples=30):
    rng = np.random.default_rng(0)
    return rng.normal(size=(samples, 3)).astype(np.float32), rng.integers(0, 4, samples)


def trained(net, p, x, t, **settings):
    settings = {"epochs": 3, "batch_size": 7, "seed": 2} | settings
    return train(net, p, x, t, CrossEntropyLoss(), Adam(0.02), **settings)


def gpu() -> str | None:
    """Why there is none, or None."""
    try:
        usable_cupy()
    except ValueError as error:
        return str(error)
    return None


on_gpu = pytest.mark.skipif(gpu() is not None, reason=gpu() or "")
