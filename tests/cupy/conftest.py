"""What the tests of the GPU backend share: the emulated device, a network, and calls of as many steps on any computer."""

from __future__ import annotations

import pytest

from chains import Chain, Dense, Dropout, tanh
from chains.backends import backend
from chains.training import source_steps, steps
from tests.cupy import emulated


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """Training takes no look at the clock. On a slow computer it would do one step a call, and the host, which then reads
    every loss immediately, would wait for everything else on the way: a missing event would go unnoticed.
    """
    for module in (steps, source_steps):
        monkeypatch.setattr(module, "RUN_SECONDS", 3600.0)


@pytest.fixture
def device():
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    return backend("emulated").on_device.device


@pytest.fixture
def net():
    return Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 4))
