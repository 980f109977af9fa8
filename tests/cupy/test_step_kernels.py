"""A training step has two kernels more than its program: one gathers the samples, one stores the loss and counts."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, Dropout, L2Penalty, SquaredLoss, tanh, train
from chains.backends.cupy import compiler, feed
from chains.backends.cupy.backend import DeviceBackend
from chains.backends.cupy.feed import DeviceFeed
from chains.backends.cupy.fused import tiling_policy
from tests.cupy.emulated import EmulatedDevice
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

FLOAT = np.float32


def layers(dropout: bool) -> tuple:
    return (Dense(3, 6, tanh), *([Dropout(0.3)] if dropout else []), Dense(6, 2))


def program_of(dropout: bool, optimizer):
    return Chain(*layers(dropout), input_shape=(3,)).program(SquaredLoss(), optimizer)


def data_of(samples: int = 22) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, 3), FLOAT), rng.standard_normal((samples, 2), FLOAT)


@needs_compiler
@pytest.mark.parametrize(
    ("fused", "batch", "dropout"), [(False, 8, False), (False, 8, True), (True, 8, True), (True, 40, True)]
)
def test_a_step_has_two_kernels_more_than_its_program(monkeypatch, fused, batch, dropout):
    """One gathers the samples, one stores the loss: by one kernel, by several blocks, and kernel by kernel."""
    if batch > 8:
        monkeypatch.setattr(tiling_policy, "MAX_ONE_BLOCK_OPERATIONS", 0)
    device, (x, t) = EmulatedDevice(), data_of(2 * batch)
    binding = DeviceBackend(device, fused).bind(program_of(dropout, Adam(0.01)), batch, {})
    work = DeviceFeed(binding, {"x": device.array(x), "t": device.array(t)}, np.arange(2 * batch))._work()
    assert len(work) == len(binding.work) + 2
    assert len(binding.work) == {8: 1, 40: 4}[batch] if fused else len(binding.work) > 8


def trained(name: str, dropout: bool, optimizer, streamed: bool) -> tuple[np.ndarray, list[float]]:
    x, t = data_of()
    net = Chain(*layers(dropout), backend=name)
    p = net.init(seed=1)
    batches = [(x[k : k + 8], t[k : k + 8]) for k in range(0, 16, 8)], None
    data, rest = (batches, {}) if streamed else ((x, t), {"batch_size": 8})
    history = train(net, p, *data, SquaredLoss(), optimizer, epochs=3, seed=4, penalty=L2Penalty(1e-3), **rest)
    return p, history.loss


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dropout", "streamed"),
    [
        ("emulated", True, False),
        ("backwards", False, True),
        ("one-kernel", True, True),
        ("one-kernel-backwards", False, True),
    ],
)
def test_losses_and_parameters_are_numpys(name, dropout, streamed):
    found, wanted = (trained(each, dropout, Adam(0.01), streamed) for each in (name, "numpy"))
    assert_close(found[0], wanted[0], 1e-5)
    assert_close(np.array(found[1]), np.array(wanted[1]), 1e-5)


@needs_compiler
def test_wide_indices(monkeypatch):
    wanted = trained("emulated", True, SGD(0.1), False)
    for module in (compiler, feed):
        monkeypatch.setattr(module, "MIN_WIDE_ELEMENTS", 4)
    found = trained("emulated", True, SGD(0.1), False)
    assert found[0].tobytes() == wanted[0].tobytes()
    assert found[1] == wanted[1]
