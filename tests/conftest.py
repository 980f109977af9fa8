"""What every test file shares: the backends under test, and hypothesis without a deadline."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from chains import backends
from chains.network import programs
from tests import harness
from tests.cupy import emulated

settings.register_profile(
    "chains", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("chains")
emulated.register(backends._BACKENDS)


@pytest.fixture(autouse=True)
def nothing_recorded():
    """Every test records programs of its own, whatever others have changed while theirs were recorded."""
    programs.RECORDED.clear()


@pytest.fixture(params=harness.BACKENDS)
def backend_name(request):
    """Each backend under test."""
    return request.param


@pytest.fixture(params=harness.DTYPES, ids=["float32", "float64"])
def dtype(request):
    """The types of parameters."""
    return request.param


@pytest.fixture(params=harness.BATCHES, ids=lambda batch: f"batch{batch}")
def batch(request):
    """A batch of one and one of several."""
    return request.param
