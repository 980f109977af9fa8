"""What every test file shares: the backends under test, the seed of the day, and hypothesis without a deadline."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from chains import backends, threads
from chains.network import programs
from tests import harness, sampling
from tests.cupy import emulated

settings.register_profile("chains", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chains")
emulated.register(backends._BACKENDS)


@pytest.fixture(autouse=True)
def nothing_recorded():
    """Every test records and compiles programs of its own, whatever others have changed while theirs were made."""
    programs.RECORDED.clear()
    compiled = sys.modules.get("chains.backends.native.compiled")
    if compiled is not None:
        compiled.COMPILED.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """One seed for hypothesis and for the harness, and for all of xdist's workers, which may start on another day.

    Workers side by side have one thread each for NumPy's products.
    """
    os.environ["CHAINS_TEST_SEED"] = str(harness.SEED)
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(harness.SEED)


def pytest_addoption(parser):
    parser.addoption("--all-cases", action="store_true", help="run every case on native, not the part of the day")


def every_case(config):
    """Whether all cases run: where that, or a test by its name, was asked for."""
    return config.getoption("--all-cases") or any("::" in name for name in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Make no items of cases that do not run today, which are two of three."""
    yield
    test, calls = metafunc.definition, getattr(metafunc, "_calls", None)  # pytest's own; without it, all cases run
    if calls and not every_case(metafunc.config):
        today = sampling.chosen(test.nodeid, calls, test.get_closest_marker("by_day"), harness.SEED)
        if not today:  # without any, pytest would take the test for one without parameters
            today = calls[:1]
            today[0].marks.append(pytest.mark.another_day.mark)
        calls[:] = today


def pytest_collection_modifyitems(config, items):
    """Leave out tests of which nothing runs today; one case after the other."""
    today = [item for item in items if every_case(config) or sampling.runs(item, harness.SEED)]
    config.hook.pytest_deselected(items=[*{*items} - {*today}])
    items[:] = sampling.neighbours(today)


def pytest_sessionstart(session):
    """Say the seed, which `-q` would keep out of pytest's header."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"random cases of seed {harness.SEED}, set CHAINS_TEST_SEED to repeat")


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


@pytest.fixture
def number():
    """The number of threads, which is as before afterwards."""
    state = threads._number
    before = state.chosen, state.default, state.blocks
    yield state
    state.chosen, state.default, state.blocks = before
    state.settle()
