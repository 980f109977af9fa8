"""Which cases run today: compiling the programs of all of them takes longer than a change should wait.

NumPy runs every case. Of a test with many cases on native a part runs, by the type of the parameters and the case, another part
every day, so that all have run within sixty-four days; likewise of a test with the mark `by_day`. With ``--all-cases`` all run.
"""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

from tests.harness import Case

FEW = 4  # cases of a test that run every day
MOST_PARTS = 64  # a power of two, as all numbers of parts are: what runs of one in sixty-four is among what runs of one in two


def parts(cases: int, few: int = FEW) -> int:
    """Into how many parts so many cases of a test are divided, of which one runs a day."""
    count = 1
    while count < MOST_PARTS and cases // count > few:
        count *= 2
    return count


def of_the_day(key: str, count: int, seed: int) -> bool:
    """Whether something is in the part of the day. Seeds that follow each other go through all parts."""
    return (crc32(key.encode()) + seed) % count == 0


def parameters(item: pytest.Item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}


def case_of(item: pytest.Item) -> str | None:
    """The name of the harness's case that an item is of; other things called so may print as addresses."""
    case = parameters(item).get("case")
    return case.name if isinstance(case, Case) else None


def subject(item: pytest.Item) -> str:
    """What an item compiles: tests of one case and type share their programs, whatever the batch."""
    name = case_of(item)
    return item.nodeid if name is None else f"{name} {parameters(item).get('dtype')}"


def few_of(item: pytest.Item) -> int | None:
    """About how many cases of an item's test run a day; None for those of a test that always run."""
    mark = item.get_closest_marker("by_day")
    if mark is not None:
        return mark.kwargs.get("few", FEW)
    return FEW if parameters(item).get("backend_name") == "native" else None


def chosen(items: list[pytest.Item], seed: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that run today, and the others."""
    cases = Counter(item.function for item in items if few_of(item))
    today, others = [], []
    for item in items:
        few = few_of(item)
        runs = few is None or of_the_day(subject(item), parts(cases[item.function], few), seed)
        (today if runs else others).append(item)
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
