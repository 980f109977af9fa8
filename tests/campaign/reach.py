"""Which tests reach which lines of the package, and the processor time of each: a map, by which `mutants` chooses tests.

``python -m tests.campaign.reach FOLDER -n 2`` runs the quick tests, with ``--rest`` the others, and writes a file of the folder
for each process. It needs Python 3.12, which reports the first time that a line runs, and then no longer slows it.
Lines that run in other processes than that of the test are not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

from tests.campaign.running import ROOT

PACKAGE = f"{ROOT / 'chains'}{os.sep}"
VARIABLE = "CHAINS_REACH"  # names the folder, for the processes of xdist


class Lines:
    """The lines of the package that have run since the last `taken`."""

    def __init__(self) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore] # from 3.12 on
        self._found: list[tuple[CodeType, int]] = []
        tool, events = self._monitoring.COVERAGE_ID, self._monitoring.events
        self._monitoring.use_tool_id(tool, "reach")
        self._monitoring.register_callback(tool, events.PY_START, self._start)
        self._monitoring.register_callback(tool, events.LINE, self._line)
        self._monitoring.set_events(tool, events.PY_START)

    def _start(self, code: CodeType, _: int) -> object:
        if code.co_filename.startswith(PACKAGE):
            self._monitoring.set_local_events(self._monitoring.COVERAGE_ID, code, self._monitoring.events.LINE)
        return self._monitoring.DISABLE

    def _line(self, code: CodeType, number: int) -> object:
        self._found.append((code, number))
        return self._monitoring.DISABLE

    def taken(self) -> list[tuple[str, int]]:
        """The files and numbers of the lines; from now on, each is reported again."""
        found, self._found = self._found, []
        self._monitoring.restart_events()
        return [(code.co_filename.removeprefix(PACKAGE), number) for code, number in found]

    def end(self) -> None:
        """No line is reported from now on."""
        self._monitoring.set_events(self._monitoring.COVERAGE_ID, 0)
        self._monitoring.free_tool_id(self._monitoring.COVERAGE_ID)


class Recorder:
    """A plugin that notes the lines and the processor time of each test, and writes them at the end."""

    def __init__(self, lines: Lines, folder: Path, *, quick: bool) -> None:
        self._lines, self._folder, self._quick = lines, folder, quick
        self._numbers: dict[tuple[str, int], int] = {}
        self._tests: list[tuple[str, float]] = []
        self._reached: list[np.ndarray] = []
        self._failed: set[str] = set()
        self._collected: list[tuple[str, int]] = []

    def pytest_collection_finish(self) -> None:
        self._collected = sorted(set(self._lines.taken()))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        self._lines.taken()  # what ran before belongs to no test
        before = sum(os.times()[:4])
        returned = yield
        self._tests.append((item.nodeid, sum(os.times()[:4]) - before))
        numbers = {self._numbers.setdefault(line, len(self._numbers)) for line in self._lines.taken()}
        self._reached.append(np.array(sorted(numbers), np.int32))
        return returned

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= {report.nodeid} if report.failed else set()

    def pytest_sessionfinish(self) -> None:
        self._lines.end()
        if self._tests:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkstemp(suffix=".npz", dir=self._folder)[1])
            lengths = [len(numbers) for numbers in self._reached]
            found = {"tests": self._tests, "lines": list(self._numbers), "collected": self._collected}
            text = json.dumps(found | {"failed": sorted(self._failed), "quick": self._quick})
            np.savez_compressed(path, text=np.array(text), reached=np.concatenate(self._reached), lengths=np.array(lengths))


LINES = pytest.StashKey[Lines]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    early_config.stash[LINES] = Lines()  # before tests/conftest.py imports the package


def pytest_configure(config: pytest.Config) -> None:
    if not (config.getoption("numprocesses", None) and not hasattr(config, "workerinput")):
        quick = not (config.getoption("--rest") or config.getoption("--all-cases"))
        config.pluginmanager.register(Recorder(config.stash[LINES], Path(os.environ[VARIABLE]), quick=quick))


class Reach:
    """The map that some runs have written, of the tests that passed."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.quick: set[str] = set()
        self.collected: set[tuple[str, int]] = set()  # files and lines that ran while tests were imported and collected
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))  # by file and line
        for path in folder.glob("*.npz"):
            self._read(path)

    def _read(self, path: Path) -> None:
        with np.load(path) as data:
            text, numbers = json.loads(str(data["text"])), data["reached"]
            ends = np.cumsum(data["lengths"])
        failed = set(text["failed"])
        seconds = {test: seconds for test, seconds in text["tests"] if test not in failed}
        self.seconds |= seconds
        self.collected |= {(file, line) for file, line in text["collected"]}
        self.quick |= seconds.keys() if text["quick"] else set()
        lines = [self._tests[file][number] for file, number in text["lines"]]
        for (test, _), part in zip(text["tests"], np.split(numbers, ends[:-1]), strict=True):
            for number in part if test not in failed else ():
                lines[number].add(test)

    def tests(self, lines: Iterable[tuple[str, int]]) -> list[str]:
        """The tests that reach one of these lines, by file in the package and number, those of the least time first."""
        found = {test for file, line in lines if file in self._tests for test in self._tests[file].get(line, ())}
        return sorted(found, key=lambda test: (self.seconds[test], test))

    def inside(self, folders: Iterable[str]) -> list[str]:
        """The tests in these folders, those of the least time first."""
        starts = tuple(folders)
        found = [test for test in self.seconds if test.startswith(starts)]
        return sorted(found, key=lambda test: (self.seconds[test], test))

    def users(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        """The lines of the package, by file and number, that name one of these."""
        words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
        for file in list(self._tests):
            for number, line in enumerate((ROOT / "chains" / file).read_text().splitlines(), 1):
                if words.search(line):
                    yield file, number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.reach", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the map is written")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of pytest")
    given = parser.parse_args()
    if sys.version_info < (3, 12):
        parser.error("needs Python 3.12, whose sys.monitoring says which lines run")
    os.environ[VARIABLE] = str(given.folder.absolute())
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINS_CACHE"] = str(Path(place) / "cache")  # each program is compiled by the first test that has it
        return int(pytest.main(["-p", "tests.campaign.reach", *given.arguments]))


if __name__ == "__main__":
    sys.exit(main())
