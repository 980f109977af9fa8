"""Contestants take turns within one process; medians of their times and of the ratios within each round are kept."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any


def _nothing() -> None:
    pass


@dataclass
class Contestant:
    """One way to do the work of a contest."""

    name: str
    start: Callable[[], None]  # back to the starting parameters; not timed
    run: Callable[[int], None]  # do so many units of work; timed
    result: Callable[[], Any]  # what the contest's judge looks at
    chunk: int = 1  # `run` takes multiples of this
    prepare: Callable[[], None] = _nothing  # set the number of threads, say; before each turn


def in_modes(contestant: Contestant, modes: Sequence[tuple[str, Callable[[], None]]]) -> list[Contestant]:
    """The contestant once for each mode: the text that is added to its name, and what sets the mode."""
    return [replace(contestant, name=f"{contestant.name}, {text}", prepare=prepare) for text, prepare in modes]


@dataclass
class Absent:
    """A contestant that cannot take part, and why."""

    name: str
    reason: str


@dataclass
class Contest:
    """The same work for all contestants."""

    key: str  # short name, for files
    title: str
    unit: str  # what is timed: "step"
    contestants: Sequence[Contestant | Absent]
    judged: str  # what the judge returns: "loss after 100 steps"
    judge: Callable[[Any], float]
    check: int = 1  # units of work from the start before the judge looks; a timed run has as many, at least
    longest: int = 2_000  # units of work from one start, at most; further ones could reach denormal numbers
    rounds: int | None = None  # None: as many as the caller wants
    seconds: float | None = None  # length of a turn; None: what the caller wants
    criteria: Callable[[Table], list[Criterion]] = lambda table: []


@dataclass
class Row:
    """What a contestant did; `seconds` are those of one unit in each round."""

    name: str
    seconds: list[float] = field(default_factory=list)
    judged: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass
class Criterion:
    """A number that was promised."""

    text: str
    value: float
    wanted: str  # "<= 1.25" or ">= 20"

    @property
    def ok(self) -> bool:
        relation, bound = self.wanted.split()
        return self.value <= float(bound) if relation == "<=" else self.value >= float(bound)

    def __str__(self) -> str:
        return f"criterion: {self.text}: {self.value:.3g} (wanted {self.wanted}) {'ok' if self.ok else 'MISSED'}"


@dataclass
class Table:
    """The results of a contest."""

    key: str
    title: str
    unit: str
    judged: str
    rows: list[Row]
    criteria: list[Criterion] = field(default_factory=list)

    def best(self, prefix: str) -> Row | None:
        """The fastest row whose name begins so, or None."""
        rows = [row for row in self.rows if row.name.startswith(prefix) and row.seconds]
        return min(rows, key=lambda row: row.median, default=None)

    def compare(self, text: str, slow: Row | None, fast: Row | None, wanted: str) -> list[Criterion]:
        """The criterion on the time of `slow` over that of `fast`; none where one of them is missing."""
        return [Criterion(text, ratio(slow, fast), wanted)] if slow and fast else []


def ratio(slow: Row, fast: Row) -> float:
    """The median over the rounds of the times' ratio: what slows a whole round down cancels."""
    return median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def race(contest: Contest, rounds: int, seconds: float, tick: Callable[[str], None]) -> Table:
    """Let the contestants take turns of at least `seconds` each, in `rounds` rounds after a first run that is judged."""
    seconds = contest.seconds or seconds
    rows: list[Row] = []
    field_: list[tuple[Contestant, Row, int]] = []
    for contestant in contest.contestants:
        tick(contestant.name)
        row = Row(contestant.name)
        rows.append(row)
        if isinstance(contestant, Absent):
            row.note = contestant.reason
            continue
        try:
            row.judged, units = _first_run(contest, contestant, seconds)
        except Exception as error:
            row.note = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        field_.append((contestant, row, units))
    for number in range(contest.rounds or rounds):
        gc.collect()
        # Every other round runs backwards, so that nobody always follows the same neighbour.
        for contestant, row, units in field_ if number % 2 == 0 else field_[::-1]:
            tick(contestant.name)
            row.seconds.append(_turn(contestant, units, seconds))
    table = Table(contest.key, contest.title, contest.unit, contest.judged, rows)
    table.criteria = contest.criteria(table)
    return table


def _first_run(contest: Contest, contestant: Contestant, seconds: float) -> tuple[float, int]:
    """What the judge says after `contest.check` units, and how many units a timed run should have."""
    contestant.prepare()
    contestant.start()
    contestant.run(_multiple(contest.check, contestant.chunk))
    judged = contest.judge(contestant.result())
    units = _multiple(contest.check, contestant.chunk)
    while True:
        contestant.start()
        begin = time.perf_counter()
        contestant.run(units)
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds / 4 or units >= contest.longest:
            break
        units = min(units * 4, _multiple(contest.longest, contestant.chunk))
    wanted = max(contest.check, min(round(units * seconds / elapsed), contest.longest))
    return judged, _multiple(wanted, contestant.chunk)


def _multiple(units: int, chunk: int) -> int:
    """`units` rounded up to a multiple of `chunk`."""
    return -(-units // chunk) * chunk


def _turn(contestant: Contestant, units: int, seconds: float) -> float:
    """Seconds a unit over runs of `units` from the start, which last `seconds` together."""
    contestant.prepare()
    time.sleep(0.03)  # workers of the one before, still spinning, go to sleep
    contestant.start()
    if seconds > 0.05 and units > contestant.chunk:
        contestant.run(contestant.chunk)  # warms caches and wakes its own workers
    total, done = 0.0, 0
    gc.disable()
    try:
        while total < seconds:
            contestant.start()
            begin = time.perf_counter()
            contestant.run(units)
            total += time.perf_counter() - begin
            done += units
    finally:
        gc.enable()
    return total / done
