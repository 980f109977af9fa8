"""Which cases run today: compiling the programs of all of them takes longer than a change should wait.

NumPy runs every case of the harness in float64 with a batch of several. Of those in float32 or of one sample, and of a test
with many cases on native, a part runs, another part every day, so that all have run within sixty-four days; likewise of a test
with the mark `by_day`. With ``--all-cases`` all run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from tests.harness import Case

FEW = 2  # cases of a test on native that run every day
FEW_ALONE = 100  # cases of the harness on NumPy in float64 with a batch of one that run every day
FEW_FLOAT32 = 20  # cases of the harness on NumPy in float32 that run every day
MOST_PARTS = 64  # a power of two, as all numbers of parts are: what runs of one in sixty-four is among what runs of one in two


def parts(cases: int, few: float = FEW) -> int:
    """Into how many parts so many cases of a test are divided, of which one runs a day: a quarter is a case in four days."""
    count = 1
    while count < MOST_PARTS and cases > few * count:
        count *= 2
    return count


def of_the_day(number: int, count: int, seed: int) -> bool:
    """Whether something with this number is in the part of the day. Seeds that follow each other go through all parts."""
    return (number + seed) % count == 0


def name_of(parameters: dict) -> str | None:
    """The name of the harness's case among parameters; other things called so may print as addresses."""
    case = parameters.get("case")
    return case.name if isinstance(case, Case) else None


def number_of(test: str, parameters: dict, place: int) -> int:
    """What tells the day of a test's case at this place; all of one case and type share it, as they share programs."""
    case = name_of(parameters)
    return crc32(test.encode()) + place if case is None else crc32(f"{case} {parameters.get('dtype')}".encode())


def few_of(parameters: dict, mark: pytest.Mark | None) -> float | None:
    """About how many cases of a test run a day; None for those that always run."""
    given = None if mark is None else mark.kwargs.get("few", FEW)
    if parameters.get("backend_name") == "native":
        return FEW if given is None else min(given, FEW)
    if given is not None:
        return given
    if name_of(parameters) is None:
        return None
    if parameters.get("dtype") is np.float32:
        return FEW_FLOAT32
    return FEW_ALONE if parameters.get("batch") == 1 else None


def chosen(test: str, calls: Sequence[Any], mark: pytest.Mark | None, seed: int) -> list[Any]:
    """Those of a test's calls, each with `params` and `marks`, that run today."""
    few = [few_of(call.params, next((own for own in call.marks if own.name == "by_day"), mark)) for call in calls]
    cases, today = Counter(few), []
    for place, (call, most) in enumerate(zip(calls, few, strict=True)):
        count = 1 if most is None else parts(cases[most], most)
        if of_the_day(number_of(test, call.params, place), count, seed):
            today.append(call)
    return today


def runs(item: pytest.Item, seed: int) -> bool:
    """Whether an item that was made runs today: cases were chosen before, a test without parameters may have a mark."""
    mark = None if hasattr(item, "callspec") else item.get_closest_marker("by_day")
    if mark is None:
        return item.get_closest_marker("another_day") is None
    return of_the_day(number_of(item.nodeid, {}, 0), parts(1, mark.kwargs.get("few", FEW)), seed)


def neighbours(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items with those of one case next to each other, so that a worker of xdist records and compiles it once."""
    places: dict[tuple, int] = {}
    for item in items:
        places.setdefault(_place(item), len(places))
    return sorted(items, key=lambda item: places[_place(item)])


def _place(item: pytest.Item) -> tuple:
    given = item.callspec.params if hasattr(item, "callspec") else {}
    name = name_of(given)
    return (item.path, item.nodeid) if name is None else (item.path, name, given.get("backend_name"))
