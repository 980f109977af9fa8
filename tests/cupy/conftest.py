"""What the tests of the GPU backend share: the emulated device, a network, its library of products."""

from __future__ import annotations

import pytest

from chains import Chain, Dense, Dropout, tanh
from chains.backends import backend
from chains.backends.cupy.kernels import bfloat16
from tests.cupy import emulated
from tests.cupy.fake_cublas import FakeCublasLt


@pytest.fixture
def device():
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    return backend("emulated").on_device.device


@pytest.fixture
def net():
    return Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 4))


@pytest.fixture
def library(request):
    """The cublasLt of the device "emulated", and of "backwards", with nothing noted yet."""
    libraries = [backend(name).on_device.device.lt for name in ("emulated", "backwards")]
    for each in libraries:
        each.ran.clear()
    yield libraries[0]
    for each in libraries:
        each.refuse = FakeCublasLt.refuse


@pytest.fixture
def large(monkeypatch):
    """Lengths from 8 on count as large."""
    from chains.backends.cupy import backend as module

    monkeypatch.setattr(bfloat16, "LEAST_BFLOAT16_LENGTH", 8)
    monkeypatch.setattr(module, "LEAST_BFLOAT16_LENGTH", 8)
