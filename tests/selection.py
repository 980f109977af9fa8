"""Which cases run: ``pytest`` runs a quick choice, ``pytest --rest`` what it leaves out, ``pytest --all-cases`` every case.

Three rules choose the quick cases, the same ones every time:

1. Of a test with ``pytest.mark.few(n)``, `n` cases run, chosen so that each value of each parameter is among them as far as
   that goes. Of a test without the mark run all cases, but `FEW` of those on native.
2. `tests/thorough.txt` lists the tests that take long, with the number of their cases that remain, which may be 0. The cases
   are chosen likewise, among those of rule 1; the others are the rest. Instead of the number may be the name of the only case
   that remains. A file with the number 0 is not even imported for the quick command.
3. A test that is named in the command runs with all its cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.harness import Case

# Where every network of the quick cases on the backend "auto" runs in machine code. A program that falls to NumPy there, which
# users see as a slow call alone, fails its test. Elsewhere are tests of what cannot be compiled.
NATIVE = (
    "tests/jets/", "tests/layers/", "tests/minimize/", "tests/network/", "tests/optimizers/", "tests/population/",
    "tests/residuals/", "tests/sampling/", "tests/solving/", "tests/training/",
)  # fmt: skip
FEW = 2  # cases on native of a test without a mark
LONG = 2.0  # seconds of processor time of a quick case, also if it compiles its programs
SECONDS = "seconds of processor time"  # the name of what a report says about its case
LIST = Path(__file__).with_name("thorough.txt")


@cache
def remaining() -> dict[str, int | str]:
    """The number of quick cases of the tests that take long, or the name of one, by the test's path and name, or by a file."""
    lines = [line.split(" ", 1) for line in LIST.read_text().splitlines() if not line.startswith("#")]
    return {test: int(quick) if quick.isdecimal() else quick for test, quick in lines}


def kept(test: str) -> int | str | None:
    """The entry of a test, or of its file; None if all of its cases are quick."""
    return remaining().get(test, remaining().get(test.partition("::")[0]))


def test_of(item: Any) -> str:
    """The path and name of an item's test, without parameters."""
    return item.nodeid.partition("[")[0]


def chosen(calls: Sequence[Any], mark: pytest.Mark | None, most: int | str | None = None) -> list[Any]:
    """Those of a test's calls, each with `params`, `indices` and an `id`, that run: `most` at most, or the one of this id.

    The mark is ``few(n)``, or ``few(n, always=condition)``, which adds the cases whose parameters fulfil a condition.
    """
    if mark is None:
        found = _with_few(calls, FEW, lambda **given: given.get("backend_name") != "native")
    else:
        found = _with_few(calls, *mark.args, mark.kwargs.get("always", lambda **given: False))
    if isinstance(most, str):
        return [call for call in calls if call.id == most]
    return found if most is None else _with_few(found, most, lambda **given: False)


def _with_few(calls: Sequence[Any], count: int, always: Callable[..., bool]) -> list[Any]:
    places = {place for place, call in enumerate(calls) if always(**call.params)}
    places |= _varied([place for place in range(len(calls)) if place not in places], calls, count)
    return [calls[place] for place in sorted(places)]


def _varied(places: list[int], calls: Sequence[Any], count: int) -> set[int]:
    """As many places of calls as `count`, each of which adds as many new values of parameters as any that is left."""
    if len(places) <= count:
        return set(places)
    found: set[int] = set()
    seen: set[tuple[str, int]] = set()
    shuffled = sorted(places, key=lambda place: crc32(calls[place].id.encode()))
    for new in range(max((len(calls[place].indices) for place in places), default=0), -1, -1):
        for place in shuffled:
            values = calls[place].indices.items()
            if len(found) < count and place not in found and len(values - seen) >= new:
                found.add(place)
                seen |= values
    return found


def processor_time() -> float:
    """The seconds of processor time of this process, and of processes that it started and that have ended."""
    return sum(os.times()[:4])


def too_long(reports: Sequence[Any]) -> list[str]:
    """A line for each case that took more than `LONG` seconds of processor time, from the reports of its call."""
    seconds = {report.nodeid: dict(report.user_properties).get(SECONDS, 0.0) for report in reports if report.when == "call"}
    return [
        f"{case} takes {taken:.1f} s of processor time: propose a line for {LIST.name} by `python -m tests.campaign.durations`"
        for case, taken in seconds.items()
        if taken > LONG
    ]


def must_be_native(test: str) -> bool:
    """Whether the networks of a test, of this path and name, must run in machine code."""
    return test.startswith(NATIVE)


def neighbours(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items with those of one case next to each other, so that a worker of xdist finds once what all of them compare."""
    places: dict[tuple, int] = {}
    for item in items:
        places.setdefault(_place(item), len(places))
    return sorted(items, key=lambda item: places[_place(item)])


def _place(item: pytest.Item) -> tuple:
    given = item.callspec.params if hasattr(item, "callspec") else {}
    case = given.get("case")
    return (item.path, case.name) if isinstance(case, Case) else (item.path, item.nodeid)
