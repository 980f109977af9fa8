"""Which cases run today: compiling the programs of all of them takes longer than a change should wait.

NumPy runs every case in float64. Of the harness's cases in float32, and of a test with many cases on native, a part runs,
another part every day, so that all have run within sixty-four days; likewise of a test with the mark `by_day`. With
``--all-cases`` all run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from zlib import crc32

import numpy as np
import pytest

from tests.harness import Case

FEW = 2  # cases of a test on native that run every day
FEW_FLOAT32 = 20  # cases of the harness on NumPy in float32 that run every day
MOST_PARTS = 64  # a power of two, as all numbers of parts are: what runs of one in sixty-four is among what runs of one in two


def parts(cases: int, few: int = FEW) -> int:
    """Into how many parts so many cases of a test are divided, of which one runs a day."""
    count = 1
    while count < MOST_PARTS and cases > few * count:
        count *= 2
    return count


def of_the_day(number: int, count: int, seed: int) -> bool:
    """Whether something with this number is in the part of the day. Seeds that follow each other go through all parts."""
    return (number + seed) % count == 0


def parameters(item: pytest.Item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}


def case_of(item: pytest.Item) -> str | None:
    """The name of the harness's case that an item is of; other things called so may print as addresses."""
    case = parameters(item).get("case")
    return case.name if isinstance(case, Case) else None


def number_of(item: pytest.Item, seen: int) -> int:
    """What tells the day of an item, the `seen`-th of its test; all of one case and type share it, as they share programs."""
    case, test = case_of(item), item.nodeid.partition("[")[0]
    return crc32(test.encode()) + seen if case is None else crc32(f"{case} {parameters(item).get('dtype')}".encode())


def few_of(item: pytest.Item) -> int | None:
    """About how many cases of an item's test run a day; None for those of a test that always run."""
    given, mark = parameters(item), item.get_closest_marker("by_day")
    if given.get("backend_name") == "native":
        return FEW
    if mark is not None:
        return mark.kwargs.get("few", FEW)
    return FEW_FLOAT32 if case_of(item) is not None and given.get("dtype") is np.float32 else None


def chosen(items: list[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that run today, and the others."""
    few = [few_of(item) for item in items]
    cases = Counter((item.function, most) for item, most in zip(items, few, strict=True))
    seen: Counter[Callable[..., None]] = Counter()
    today, others = [], []
    for item, most in zip(items, few, strict=True):
        count = 1 if most is None else parts(cases[item.function, most], most)
        runs = of_the_day(number_of(item, seen[item.function]), count, seed)
        (today if runs else others).append(item)
        seen[item.function] += 1
    return today, others


def neighbours(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items with those of one case next to each other, so that a worker of xdist records and compiles it once."""
    places: dict[tuple, int] = {}
    for item in items:
        places.setdefault(_place(item), len(places))
    return sorted(items, key=lambda item: places[_place(item)])


def _place(item: pytest.Item) -> tuple:
    name = case_of(item)
    return (item.path, item.nodeid) if name is None else (item.path, name, parameters(item).get("backend_name"))
