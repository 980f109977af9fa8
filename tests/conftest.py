"""What every test file shares: the backends under test, the seed of random cases, and hypothesis without a deadline."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from chains import backends
from chains.network import programs
from chains.support import threads
from tests import harness, selection, state
from tests.cupy import emulated

settings.register_profile(
    "chains", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("chains"), derandomize=False)
settings.load_profile("chains")
emulated.register(backends.registry._BACKENDS)


@pytest.fixture(autouse=True)
def nothing_recorded():
    """Every test records and compiles programs of its own, whatever others have changed while theirs were made."""
    programs.forget()
    compiled = sys.modules.get("chains.backends.native.compiled")
    if compiled is not None:
        compiled.COMPILED.clear()


@pytest.fixture(autouse=True)
def nothing_changed():
    """Every test leaves the state of the process as it was: types, threads, variables of the environment and the like."""
    before = state.of_process()
    yield
    assert not (found := state.changes(before, state.of_process())), "the test has changed " + "; ".join(found)


@pytest.fixture
def jax64():
    """JAX, in double precision. The test is skipped without it."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield jax


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Every run draws the same random cases, but with ``--random-seed``. Workers side by side have one thread each for
    NumPy's products, and PyTorch's threads do not spin. Ctrl-C ends processes also where a shell started the tests in the
    background, which ignores it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if (seed := config.getoption("--random-seed")) is not None:
        harness.SEED = seed  # before test modules are imported
        settings.load_profile("search")
        config.option.hypothesis_seed = str(seed)


def pytest_addoption(parser):
    parser.addoption("--rest", action="store_true", help="run what the quick tests leave out (tests/selection.py)")
    parser.addoption("--all-cases", action="store_true", help="run every case, not a choice of them (tests/selection.py)")
    parser.addoption("--random-seed", type=int, metavar="N", help="draw other random cases than those of every run")


def pytest_ignore_collect(collection_path, config):
    """Import no file of which no case runs, unless the command names it."""
    if not has_choice(config) or config.getoption("--rest") or collection_path in map(Path.absolute, map(Path, config.args)):
        return None
    place = collection_path.relative_to(config.rootpath) if collection_path.is_relative_to(config.rootpath) else collection_path
    return True if selection.kept(place.as_posix()) == 0 else None


QUICK = pytest.StashKey[dict[str, set[str]]]()  # the identifiers of the quick cases of tests with parameters


def has_choice(config) -> bool:
    """Whether a choice of cases runs."""
    return not config.getoption("--all-cases") and not any("::" in name for name in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Make no items of cases that do not run, which are most."""
    yield
    test, calls = metafunc.definition, getattr(metafunc, "_calls", None)  # pytest's own; without it, all cases run
    if calls and has_choice(metafunc.config):
        name, mark = selection.test_of(test), test.get_closest_marker("few")
        every, most = selection.chosen(calls, mark), selection.kept(name)
        quick = selection.chosen(calls, mark, most)
        metafunc.config.stash.setdefault(QUICK, {})[name] = {call.id for call in quick}
        if not every:  # without a call, pytest would take the test for one without parameters
            calls[0].marks.append(pytest.mark.skip(reason="runs with --all-cases").mark)
        calls[:] = (every if metafunc.config.getoption("--rest") else quick) or calls[:1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Note the processor time of each case, with that of the processes it started."""
    before = selection.processor_time()
    try:
        return (yield)
    finally:
        item.user_properties.append((selection.SECONDS, selection.processor_time() - before))


def pytest_terminal_summary(terminalreporter, config):
    """Name quick cases that take long. Of the cases that -k names, most are left out like others: whoever adds a case should
    know.
    """
    if has_choice(config) and not config.getoption("--rest"):
        for line in selection.too_long(terminalreporter.stats.get("passed", [])):
            terminalreporter.write_line(line)
    if config.getoption("keyword") and not config.getoption("--all-cases"):
        terminalreporter.write_line("-k selects among the cases of every run; add --all-cases for all cases of that name")


def pytest_collection_modifyitems(config, items):
    """The quick tests, or the rest, one case after the other; programs that fall to NumPy fail where none should."""
    if has_choice(config):
        rest, quick = config.getoption("--rest"), config.stash.get(QUICK, {})
        left_out = [item for item in items if is_quick(item, quick) == rest]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_quick(item, quick) != rest]
    items[:] = selection.neighbours(items)
    some = not config.getoption("--rest") and not config.getoption("--all-cases")
    for item in items:
        if some and selection.must_be_native(item.nodeid):
            item.add_marker(pytest.mark.filterwarnings("error::chains.FallbackWarning"))


def is_quick(item, quick: dict[str, set[str]]) -> bool:
    """Whether an item is among the quick ones; `quick` has the identifiers of those with parameters."""
    name = selection.test_of(item)
    if name in quick and hasattr(item, "callspec"):
        return item.callspec.id in quick[name] or (not quick[name] and selection.kept(name) != 0)
    return selection.kept(name) != 0


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected is no garbage. Later collections, which some tests request, skip it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
    number = threads._number
    before = number.chosen, number.default, number.blocks
    yield number
    number.chosen, number.default, number.blocks = before
    number.resolve()
