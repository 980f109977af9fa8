"""What the tests of the GPU backend share: the emulated device and a network."""

from __future__ import annotations

import pytest

from chains import Chain, Dense, Dropout, tanh
from chains.backends import backend
from tests.cupy import emulated


@pytest.fixture
def device():
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    return backend("emulated").on_device.device


@pytest.fixture
def net():
    return Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 4))
