"""Each campaign for some seconds, and that what goes wrong in one is seen."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.campaign import running
from tests.harness import SEED
from tests.house.test_contributing import OPERATIONS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals to threads")

from tests.campaign import drawn, exported, imports, kernels, programs, watched  # noqa: E402

COUNTS = {
    "programs": 12,
    "files": 2000,
    "threads": 2,
    "networks": 6,
    "caches": 1,
    "signals": 3,
    "kill": 1,
    "kernels": 2,
    "watched": 4,
    "ode": 2,
    "imports": 100,
    "exported": 6,
}

MISSING = {
    each: module.missing
    for each, module in (("kernels", kernels), ("watched", watched), ("imports", imports), ("exported", exported))
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", COUNTS)
def test_nothing_fails(name):
    if missing := MISSING.get(name, str)():
        pytest.skip(missing)
    tally = running.run(f"tests.campaign.{name}", COUNTS[name], SEED)
    print(tally)
    assert not tally.failures, f"python -m tests.campaign.{name} --seed {SEED}:\n{tally}"
    assert sum(tally.outcomes.values()) >= COUNTS[name]


def test_a_campaign_that_needs_more_says_so(tmp_path):
    """Without a compiler on the path."""
    command = [sys.executable, "-m", "tests.campaign.watched", "--count", "1"]
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(running.ROOT)}
    done = subprocess.run(command, cwd=running.ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tests.campaign.watched: install GCC or Clang")


def test_drawn_programs_use_the_whole_vocabulary():
    names = set()
    for number in range(400):
        rng = running.draws(SEED, number)
        operations = drawn.Drawn(rng, "float32", number % 2 == 0).ops.operations
        names |= {type(operation).__name__ for operation in operations}
    others = {"Loop", "BatchMatMul"}  # drawn in tests/program/test_random_loops.py and tests/native/test_batch_matmul.py
    assert {operation.__name__ for operation in OPERATIONS} - others <= names


def test_a_wrong_number_is_seen():
    chosen = drawn.Drawn(running.draws(0, 0), "float32", True)
    right = np.arange(6.0).reshape(2, 3)
    programs.compare(right.copy(), right, chosen, "y", "")
    wrong = right.copy()
    wrong[1, 2] = np.nextafter(5.0, 6.0)
    with pytest.raises(AssertionError, match=r"1 of 6 wrong, first at \(1, 2\)"):
        programs.compare(wrong, right, chosen, "y", "")


CRASHING = """
import os, signal, sys
from tests.campaign import running

def attempt(seed, number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    assert number != 5, "five"
    return "fine, even" if number % 2 == 0 else "fine"

if __name__ == "__main__":
    sys.exit(running.main(attempt, lambda: ["that was all"]))
"""


def test_crashes_and_failures_are_counted_and_gone_past(tmp_path, monkeypatch):
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{running.ROOT}")
    tally = running.run("crashing", 8, 0)
    assert tally.outcomes == {"fine": 6, "even": 4}
    assert sorted(tally.failures) == [3, 5]
    assert "ended with -11" in tally.failures[3]
    assert "AssertionError at crashing.py:8: five" in tally.failures[5]
    assert tally.notes == ["that was all"]
