"""The processor time of each test: which tests are too long for the quick command, and how many of their cases fit into it.

``python -m tests.campaign.durations tests/layers`` runs the quick cases of a folder one after another, with an empty cache,
and prints a line of `tests/thorough.txt` for each test whose cases take more than `MOST` seconds together. It measures the
processor, so it may run on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from tests import selection

MOST = 0.2  # seconds of processor time for all quick cases of a test


class Clock:
    """A plugin that notes the processor time of each case, with that of the processes it started."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)  # by test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        before = selection.processor_time()
        returned = yield
        self.seconds[selection.test_of(item)].append(selection.processor_time() - before)
        return returned


def fitting(seconds: list[float]) -> int:
    """The number of a test's cases that take `MOST` seconds at most; 0 if one takes longer."""
    mean = sum(seconds) / len(seconds)
    return len(seconds) if sum(seconds) <= MOST else int(MOST / mean)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="files and folders, by default all tests")
    given, clock = parser.parse_args(), Clock()
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINS_CACHE"] = str(Path(place) / "cache")
        code = pytest.main(["-n", "0", *given.tests], plugins=[clock])
    for test, seconds in sorted(clock.seconds.items()):
        if (count := fitting(seconds)) < len(seconds):
            print(f"{test} {count}  # {sum(seconds):.2f} s for {len(seconds)} cases")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
