"""Runs the rows of `benchmarks.gpu`, as long as there is time, or plans when each would run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from queue import SimpleQueue
from threading import Lock
from typing import Any

from benchmarks.gpu.correctness import sanitized
from benchmarks.gpu.goals import goals
from benchmarks.gpu.problems import Result, Setting
from benchmarks.gpu.processes import Worker
from benchmarks.gpu.report import Report
from benchmarks.gpu.rows import UNTIMED, Row

CREW = 14  # rows that measure no time run together
EXAMINED = 5  # cases that spoilt their process: so many are examined
EXAMINING_SECONDS = 60.0
CHECKING_SHARE = 1 / 3  # of the time, for such rows at most
OPTIONAL = ("torch", "jax")  # peers that may not be installed
LATE = "not run: the time was over"


class Run:
    """The rows, one after another; those that measure no time, several together."""

    def __init__(
        self, setting: Setting, report: Report, minutes: float, start: Callable[..., Any] = Worker, crew: int = CREW
    ) -> None:
        self._setting, self._report, self._start, self._crew = setting, report, start, crew
        self._begin, self._seconds = time.monotonic(), 60 * minutes
        self._checked = 0.0  # seconds spent on checks
        self._lock, self._examined_cases = Lock(), 0
        self._workers: dict[str, Any] = {}
        self._missing: dict[str, Result] = {}  # peers that are not installed, or for processors only

    def __call__(self, chosen: Sequence[Row]) -> None:
        timed = any(row.problem not in UNTIMED for row in chosen)
        self._checking = (CHECKING_SHARE if timed else 1.0) * self._seconds
        try:
            for untimed, group in groupby(chosen, lambda row: row.problem in UNTIMED):
                if untimed:
                    self._checks(list(group))
                    continue
                for row in group:
                    self._one(row, self._workers.setdefault(row.peer, self._start(self._setting)), self._left())
        finally:
            for worker in self._workers.values():
                worker.end()
        self._report.goals = goals(self._report.results)
        self._report.save()

    def _left(self) -> float:
        return self._begin + self._seconds - time.monotonic()

    def _checks(self, group: list[Row]) -> None:
        """Rows that measure no time, several together, each worker one after another."""
        begin = time.monotonic()
        idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self._crew):
            idle.put(self._start(self._setting))

        def one(row: Row) -> None:
            worker, spent = idle.get(), self._checked + time.monotonic() - begin
            try:
                self._one(row, worker, min(self._left(), self._checking - spent))
                if row.alone:
                    worker.end()
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(self._crew) as pool:
            list(pool.map(one, group))
        for _ in range(self._crew):
            idle.get().end()
        self._checked += time.monotonic() - begin

    def _one(self, row: Row, worker: Any, left: float) -> None:
        if left < 1:
            result: Result = {"failed": LATE}
        elif row.peer in self._missing:
            result = self._missing[row.peer]
        else:
            limit = min(left, row.limit)
            result = worker(row.work, limit)
            if result.get("missing") and row.peer in OPTIONAL:
                self._missing[row.peer] = result
            if result.get("spoilt") and row.problem == "correct" and self._may_examine():
                result["details"] = "\n\n".join(self._examined(row))
        self._report.add(row.problem, row.who, result)

    def _may_examine(self) -> bool:
        with self._lock:
            self._examined_cases += 1
            return self._examined_cases <= EXAMINED and self._left() > EXAMINING_SECONDS

    def _examined(self, row: Row) -> Iterator[str]:
        """A case that spoilt its process, in another one that waits for each launch; and what compute-sanitizer says of it."""
        worker = self._start(self._setting, {"CUDA_LAUNCH_BLOCKING": "1"})
        again = worker(row.work, EXAMINING_SECONDS)
        worker.end()
        yield f"again, alone, each launch waited for: {again.get('traceback') or again}"
        setting, _, case = row.who.partition(": ")
        yield sanitized(setting, case, EXAMINING_SECONDS)


def is_done(row: Row, report: Report) -> bool:
    """Whether an earlier run did the row, and found nothing wrong."""
    result = report.find(row.problem, row.who)
    return result is not None and "failed" not in result and bool(result.get("holds", True))


def plan(chosen: Sequence[Row], report: Report, minutes: float) -> Iterator[str]:
    """A line for each row: its estimated start and seconds, and whether there is time for it."""
    begin = 0.0
    for untimed, group in groupby(chosen, lambda row: row.problem in UNTIMED):
        free = [0.0] * (CREW if untimed else 1)  # when the next row can begin
        for row in group:
            if is_done(row, report):
                yield f"{'done':>8}{'':8}  {row}"
                continue
            first = free.index(min(free))
            start = begin + free[first]
            free[first] += row.expected
            late = "" if start < 60 * minutes else "  (no time)"
            yield f"{start:7.0f}s{row.expected:7.0f}s  {row}{late}"
        begin += max(free)
    yield f"{begin:7.0f}s         the end of all rows; {60 * minutes:.0f} s are given. The seconds are estimates."
