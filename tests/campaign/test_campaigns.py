"""Each campaign for some seconds, and that what goes wrong in one is seen."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from tests.campaign import running
from tests.harness import SEED
from tests.house.test_contributing import OPERATIONS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals to threads")

from tests.campaign import drawn, durations, exported, imports, kernels, mutants, programs, reach, watched  # noqa: E402

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
    "interpolants": 2,
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


# Mutants


def test_a_mutant_depends_on_its_number_and_differs_from_the_source():
    for number in range(8):
        mutant, text = mutants.drawn(SEED, number)
        assert mutants.drawn(SEED, number) == (mutant, text)
        ast.parse(text)
        source = (running.ROOT / mutant.file).read_text()
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))
        changed = [k for k, pair in enumerate(zip(source.splitlines(), text.splitlines(), strict=False), 1) if len({*pair}) > 1]
        assert changed[0] >= mutant.line


def test_what_is_changed():
    code = "def f(a: int = 3) -> None:\n    if not a < 2:\n        a += 1\n    raise ValueError(1 + 2)\n"
    found = {mutants.mutated(code, node, new) for node, new in mutants.changes(code)}
    wanted = [("3", "(4)"), ("not a < 2", "(False)"), ("not a < 2", "(True)"), ("not a < 2", "(a < 2)"), ("a < 2", "(a <= 2)")]
    wanted += [("< 2", "< (3)"), ("a += 1", "pass"), ("+= 1", "+= (2)")]
    assert found == {code.replace(old, new, 1) for old, new in wanted}


SOURCE = """\
LIMIT = 3

def f(a):
    if a > LIMIT:
        a = max(
            a, 2)
    return a

class C:
    size: int = 4
"""


def test_where_a_mutant_is_reached():
    """By the lines of its statement; what an import runs, by the lines with the names that it binds."""
    found = {line: mutants.lines_of(SOURCE, line) for line in (1, 3, 4, 6, 10)}
    assert found == {1: ({1}, {"LIMIT"}), 3: ({3}, {"f"}), 4: ({4}, set()), 6: ({5, 6}, set()), 10: ({10}, {"size"})}


def test_the_map_of_a_run_is_read(tmp_path):
    found = {"tests": [["a", 0.5], ["b", 0.25], ["c", 0.1]], "lines": [["x.py", 1], ["x.py", 2]], "collected": [["y.py", 3]]}
    text = json.dumps(found | {"failed": ["c"], "quick": True})
    np.savez(tmp_path / "of a process.npz", text=np.array(text), reached=[0, 0, 1, 1], lengths=[1, 2, 1])
    read = reach.Reach(tmp_path)
    assert [read.tests([("x.py", line)]) for line in (1, 2, 3)] == [["b", "a"], ["b"], []]  # the shortest first; c has failed
    assert (read.quick, read.collected, read.inside(["a"])) == ({"a", "b"}, {("y.py", 3)}, ["a"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12")
def test_the_lines_that_a_test_reaches_are_noted(tmp_path):
    command = [sys.executable, "-m", "tests.campaign.reach", str(tmp_path), "-n", "0", "tests/support/test_axes.py"]
    subprocess.run(command, cwd=running.ROOT, check=True, capture_output=True)
    read = reach.Reach(tmp_path)
    assert read.quick
    assert read.collected


class OneLine:
    """A map in which four tests reach each line, of which two are quick."""

    seconds: ClassVar = {
        "tests/layers/b.py::far": 1.0,
        "tests/layers/a.py::near": 2.0,
        "tests/x.py::rest": 1.0,
        "tests/x.py::long": 90.0,
    }
    quick: ClassVar = {"tests/layers/a.py::near", "tests/layers/b.py::far"}

    collected: ClassVar = {("b.py", 7)}

    def tests(self, lines):
        return list(self.seconds) if lines == [("a.py", 1)] else []

    def inside(self, folders):
        starts = tuple(folders)
        return [test for test in self.seconds if test.startswith(starts)]


def test_the_first_tests_that_find_a_mutant_are_named(tmp_path, monkeypatch):
    mutant = mutants.Mutant(0, "layers", "a.py", 1, "x", "y")
    (tmp_path / "a.py").write_text("def f(): x\n")
    ran = []

    def failing(place, tests, seconds, *, rest):
        text = (place / "a.py").read_text()
        ran.append((text, tests, seconds, rest))
        return "tests/x.py::rest" if rest and text == "def f(): y\n" else ""

    monkeypatch.setattr(mutants, "failing", failing)
    monkeypatch.setattr(mutants, "FIRST", (1, 15))
    judge = mutants.Judge(tmp_path, OneLine(), ["quick", "rest"])
    found = judge.judged(mutant, "def f(): y\n")
    assert (found.found_by, found.test) == ("rest", "tests/x.py::rest")
    first, second, third = (["tests/layers/b.py::far"], ["tests/layers/a.py::near"], ["tests/x.py::rest"])
    changed, same = "def f(): y\n", "def f(): x\n"
    assert ran == [
        (changed, first, 1.0, False),
        (changed, second, 2.0, False),
        (changed, third, 1.0, True),
        (same, third, 1.0, True),
    ]
    assert judge.judged(mutant, changed).found_by == "rest"
    assert ran[4:] == ran[:3]  # the test is known to pass without the change
    assert (tmp_path / "a.py").read_text() == same
    assert mutants.table([found]).splitlines()[1].split() == ["layers", "0", "1", "0"]


@pytest.mark.parametrize("few", [0, 1])
def test_what_runs_while_tests_are_collected_or_in_few_is_reached_by_those_of_its_room(few, monkeypatch):
    monkeypatch.setattr(mutants, "FEW", few)
    source = "def f():\n" + 6 * "    g()\n"
    found = {
        number: mutants.reaching(mutants.Mutant(0, "layers", "chains/b.py", number, "", ""), source, OneLine())
        for number in (6, 7)
    }
    near = ["tests/layers/b.py::far", "tests/layers/a.py::near"]
    assert found == {6: near if few else [], 7: near}


def test_files_of_tests_take_turns():
    assert mutants.in_turn(["a.py::1", "a.py::2", "a.py::3", "b.py::1", "c.py::1", "b.py::2"]) == [
        "a.py::1", "b.py::1", "c.py::1", "a.py::2", "b.py::2", "a.py::3"
    ]  # fmt: skip


def test_a_test_that_fails_anyway_finds_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("def f(): x\n")
    monkeypatch.setattr(mutants, "failing", lambda place, tests, seconds, *, rest: tests[0])
    mutant = mutants.Mutant(0, "layers", "a.py", 1, "x", "y")
    assert mutants.Judge(tmp_path, OneLine(), ["quick", "rest"]).judged(mutant, "def f(): y\n").found_by == "none"


def test_every_room_has_tests():
    rooms = {mutants.room_of(path) for path in (running.ROOT / "chains").rglob("*.py")}
    assert mutants.TESTS.keys() <= rooms
    assert [folder for room in rooms for folder in mutants.folders_of(room) if not (running.ROOT / folder).is_dir()] == []
    page = (running.ROOT / "CONTRIBUTING.md").read_text()
    for room in mutants.TESTS:
        name = "backends/*.py" if room == "backends/" else room if room.endswith(".py") else f"{room}/"
        row = f"| `chains/{name}` | {', '.join(f'`{folder}`' for folder in mutants.folders_of(room))} |"
        assert row in page, f"CONTRIBUTING.md, The tests of each room, needs the row {row}"


def test_cases_that_fit():
    assert [durations.fitting(each) for each in ([0.1, 0.1], [0.125] * 6, [0.1, 0.3], [1.0])] == [2, 1, 1, 0]
