"""Beside its program, a training step has one kernel that fetches; the last kernel of the program notes the loss."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, Dropout, L2Penalty, SquaredLoss, tanh, train
from chains.backends.cupy import compiler, feed, step_kernels
from chains.backends.cupy.backend import DeviceBackend
from chains.backends.cupy.feed import DeviceFeed
from chains.backends.cupy.fused import tiling_policy
from chains.backends.cupy.source.commands import Launch
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
def test_a_step_has_one_kernel_beside_its_program(monkeypatch, fused, batch, dropout):
    """That for the samples; with one kernel, with the tiles of several blocks and their sums, and kernel by kernel."""
    if batch > 8:
        monkeypatch.setattr(tiling_policy, "MOST_ONE_BLOCK_OPERATIONS", 0)
    device, (x, t) = EmulatedDevice(), data_of(2 * batch)
    binding = DeviceBackend(device, fused).bind(program_of(dropout, Adam(0.01)), batch, {})
    work = DeviceFeed(binding, {"x": device.array(x), "t": device.array(t)}, np.arange(2 * batch))._work()
    assert len(work) == len(binding.work) + 1
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
def test_where_the_loss_is_noted_changes_nothing(monkeypatch, name, dropout, streamed):
    """By the program's last kernel or by one of its own: the same bits, which are about NumPy's."""
    noted = trained(name, dropout, Adam(0.01), streamed)
    wanted = trained("numpy", dropout, Adam(0.01), streamed)
    monkeypatch.setattr(step_kernels, "_place", lambda binding: None)
    alone = trained(name, dropout, Adam(0.01), streamed)
    assert noted[0].tobytes() == alone[0].tobytes()
    assert noted[1] == alone[1]
    assert_close(noted[0], wanted[0], 1e-5)
    assert_close(np.array(noted[1]), np.array(wanted[1]), 1e-5)


@needs_compiler
def test_wide_indices(monkeypatch):
    wanted = trained("emulated", True, SGD(0.1), False)
    for module in (compiler, feed):
        monkeypatch.setattr(module, "LEAST_WIDE_ELEMENTS", 4)
    found = trained("emulated", True, SGD(0.1), False)
    assert found[0].tobytes() == wanted[0].tobytes()
    assert found[1] == wanted[1]


@needs_compiler
@pytest.mark.parametrize(("fused", "dropout"), [(False, True), (True, True), (False, False)])
def test_the_place_is_the_last_that_may_be(fused, dropout):
    """Nothing behind it, or in it unless one block alone ends it, has to do with the loss or the random numbers."""
    device = EmulatedDevice()
    binding = DeviceBackend(device, fused).bind(program_of(dropout, Adam(0.01)), 8, {})
    place = step_kernels._place(binding)
    steps = [step for step, _ in binding.commands]
    assert isinstance(steps[place], Launch)

    def touches(step) -> bool:
        names = {buffer.name for buffer in step.writes} & {"value", "random"}
        return bool(names) or "random" in {buffer.name for buffer in step.reads}

    assert not any(map(touches, steps[place + 1 :]))
    assert steps[place].one_block or not touches(steps[place])
    last = next(k for k in reversed(range(len(steps))) if touches(steps[k]))
    binding.commands = binding.commands[: last + 1]
    assert step_kernels._place(binding) == (last if steps[last].one_block else None)
    binding.commands = [(step, (0,)) for step in steps]
    assert step_kernels._place(binding) is None
