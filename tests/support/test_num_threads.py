"""How many threads compiled programs use: chosen, limited for a while, or by default."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from chains import get_num_threads, num_threads, set_num_threads
from chains.support import threads

MOST = threads.MAX_THREADS
pytestmark = pytest.mark.usefixtures("number")


@pytest.fixture
def forgotten(number, monkeypatch):
    """As at the start of a process with no variable set, on a computer of five processors."""
    for name in ("CHAINS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "processors", lambda: 5)
    monkeypatch.setattr(threads, "_is_worker", lambda: False)
    number.chosen = number.default = number.current = None
    return number


# Choosing


def test_a_number_that_is_set_is_there():
    for n in (3, 1, np.int64(2), MOST):
        set_num_threads(n)
        assert get_num_threads() == n
        assert type(get_num_threads()) is int


@pytest.mark.parametrize("n", [0, -1, True, False, 1.5, 2.0, "2", None, np.float64(2), [2], MOST + 1, 10**30])
@pytest.mark.parametrize("function", [set_num_threads, num_threads])
def test_other_numbers_are_refused(n, function):
    set_num_threads(2)
    kind = ValueError if isinstance(n, int) and not isinstance(n, bool) else TypeError
    with pytest.raises(kind, match=r"`n` \(=.*\) must be a (positive )?whole number"):
        function(n)
    assert get_num_threads() == 2


def test_blocks():
    set_num_threads(4)
    with num_threads(2):
        assert get_num_threads() == 2
        with num_threads(3):
            assert get_num_threads() == 3
        assert get_num_threads() == 2
    assert get_num_threads() == 4


def test_a_number_that_is_set_within_a_block_ends_with_it():
    set_num_threads(4)
    with num_threads(2):
        set_num_threads(3)
        assert get_num_threads() == 3
    assert get_num_threads() == 4


def test_a_block_that_fails_ends_too():
    set_num_threads(4)
    with pytest.raises(KeyError), num_threads(2):
        raise KeyError
    assert get_num_threads() == 4


def test_blocks_may_overlap():
    """As in two Python threads: each takes back its own."""
    set_num_threads(4)
    first, second = num_threads(1), num_threads(2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert get_num_threads() == 2
    second.__exit__(None, None, None)
    assert get_num_threads() == 4


# By default


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, 5),
        ({"CHAINS_NUM_THREADS": "3"}, 3),
        ({"CHAINS_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": " 4 , 2"}, 4),
        ({"OMP_NUM_THREADS": "1000"}, MOST),
        ({"OMP_NUM_THREADS": "0"}, 5),
        ({"OMP_NUM_THREADS": "-2"}, 5),
        ({"OMP_NUM_THREADS": "many"}, 5),
        ({"OMP_NUM_THREADS": ""}, 5),
        ({"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, 5),  # which speak of NumPy's library
    ],
)
def test_variables(variables, wanted, forgotten, monkeypatch):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert get_num_threads() == wanted


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "100000", " 2", "²"])
def test_nonsense_in_our_own_variable_is_refused(text, forgotten, monkeypatch):
    monkeypatch.setenv("CHAINS_NUM_THREADS", text)
    with pytest.raises(ValueError, match=r"CHAINS_NUM_THREADS \(=.*\) must be a whole number from 1 to 64"):
        get_num_threads()
    set_num_threads(2)  # who chooses needs no variable
    assert get_num_threads() == 2
    set_num_threads(1)


def test_large_computers(forgotten, monkeypatch):
    monkeypatch.setattr(threads, "processors", lambda: 256)
    assert get_num_threads() == MOST


def test_variables_are_read_once_and_at_first_use(forgotten, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert get_num_threads() == 2
    code = "import chains, os; os.environ['CHAINS_NUM_THREADS'] = '7'; print(chains.get_num_threads())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "7\n"


def test_a_worker_of_multiprocessing_has_one(forgotten, monkeypatch):
    monkeypatch.setattr(threads, "_is_worker", lambda: True)
    assert get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    forgotten.default = forgotten.current = None
    assert get_num_threads() == 2


# threadpoolctl


def test_threadpoolctl_sees_and_limits():
    tool = pytest.importorskip("threadpoolctl")
    pytest.importorskip("chains.backends.native", reason="the native backend needs llvmlite")
    set_num_threads(3)
    ours = [info for info in tool.threadpool_info() if info["user_api"] == "chains"]
    assert [info["num_threads"] for info in ours] == [3]
    with tool.threadpool_limits(1):
        assert get_num_threads() == 1
        with tool.threadpool_limits(2, user_api="chains"):
            assert get_num_threads() == 2
        assert get_num_threads() == 1
    assert get_num_threads() == 3
    with tool.threadpool_limits(1, user_api="blas"):
        assert get_num_threads() == 3
    with tool.threadpool_limits(1000):
        assert get_num_threads() == MOST
    assert get_num_threads() == 3


def test_a_limit_that_ends_leaves_the_default_a_default(forgotten):
    tool = pytest.importorskip("threadpoolctl")
    pytest.importorskip("chains.backends.native", reason="the native backend needs llvmlite")
    with tool.threadpool_limits(1):
        assert get_num_threads() == 1
    assert get_num_threads() == 5
    assert forgotten.chosen is None
