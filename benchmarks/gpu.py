"""What the GPU backend gives, on one GPU: tried step by step, checked against NumPy, then measured, beside PyTorch and JAX.

    python -m benchmarks.gpu --plan
    python -m benchmarks.gpu --floors
    python -m benchmarks.gpu --minutes 9.5 --folder gpu --data DATA

It needs CuPy with NVRTC and cuBLAS, what this project itself needs (NumPy, array-api-compat, tqdm), and pytest's harness in
`tests`; cuDNN with its front end, PyTorch, JAX and compute-sanitizer where they are to be measured. Each row says which path it
took: convolutions by whom, one kernel or how many commands, captured as a graph or not.

Rows come in order of worth, in processes that are ended where they take too long, or where an error leaves CUDA of no use to
them. ``--plan`` prints them with the seconds that each is thought to take. Every result is written to ``--folder`` as it
comes; the next call on that folder goes on with what is missing and what failed, of cases the wrong ones alone, with the
kernels that were compiled before. ``--again`` does the chosen rows anew. ``--data`` is the folder with `mnist` and `cifar10`
($CHAINS_DATA by default); without them, noise is used, and accuracies mean nothing. Without a GPU the script says so and
measures nothing; ``--rehearse`` runs all of it at tiny sizes on an emulated GPU, to see whether it works.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

import chains
from benchmarks import gpu_chains
from benchmarks.gpu_floors import lines
from benchmarks.gpu_goals import goals
from benchmarks.gpu_kept import pack, unpacked
from benchmarks.gpu_problems import Setting
from benchmarks.gpu_processes import Here, Result, Worker
from benchmarks.gpu_report import Report, table
from benchmarks.gpu_rows import SIDE_BY_SIDE, Row, rows

CREW = 12  # processes for rows that measure no time
CHECKING_SHARE = 1 / 3  # of the time, for such rows at most
FACTS_SECONDS = 90.0  # to find the GPU, at most
OPTIONAL = ("torch", "jax", "sanitizer")  # peers that may not be installed
LATE = "not run: the time was over"


class Run:
    """The rows, one after another as long as there is time, those that measure no time side by side."""

    def __init__(
        self, setting: Setting, report: Report, minutes: float, start: Callable[[Setting], Any] = Worker, crew: int = CREW
    ) -> None:
        self._setting, self._report, self._start, self._crew = setting, report, start, crew
        self._begin, self._seconds = time.monotonic(), 60 * minutes
        self._checked = 0.0  # seconds spent on checks
        self._workers: dict[str, Any] = {}
        self._missing: dict[str, Result] = {}  # peers that are not installed, or for processors only

    def __call__(self, chosen: Sequence[Row], packed: Callable[[], object] = lambda: None) -> None:
        """Do the rows; `packed` keeps the kernels, after the checks and at the end."""
        try:
            for together, group in groupby(chosen, lambda row: row.problem in SIDE_BY_SIDE):
                if together:
                    self._checks(list(group))
                    packed()
                    continue
                for row in group:
                    self._one(row, self._workers.setdefault(row.peer, self._start(self._setting)), self._left())
        finally:
            for worker in self._workers.values():
                worker.end()
            packed()
        self._report.goals = goals(self._report.results)
        self._report.save()

    def _left(self) -> float:
        return self._begin + self._seconds - time.monotonic()

    def _checks(self, group: list[Row]) -> None:
        """Rows that measure no time, in several processes at once; a row that is `alone` gets a new one."""
        begin = time.monotonic()
        free: SimpleQueue[Any] = SimpleQueue()
        workers = [self._start(self._setting) for _ in range(min(self._crew, len(group)))]
        for each in workers:
            free.put(each)

        def one(row: Row) -> None:
            worker = free.get()
            try:
                spent = self._checked + time.monotonic() - begin
                self._one(row, worker, min(self._left(), CHECKING_SHARE * self._seconds - spent))
                if row.alone:
                    worker.end()
            finally:
                free.put(worker)

        try:
            with ThreadPoolExecutor(len(workers)) as pool:
                for done in [pool.submit(one, row) for row in group]:
                    done.result()
        finally:
            for each in workers:
                each.end()
        self._checked += time.monotonic() - begin

    def _one(self, row: Row, worker: Any, left: float) -> None:
        if left < 1:
            result: Result = {"failed": LATE}
        elif row.peer in self._missing:
            result = self._missing[row.peer]
        else:
            result = worker(self._work(row), min(left, row.limit))
            if result.get("missing") and row.peer in OPTIONAL:
                self._missing[row.peer] = result
        self._report.add(row.problem, row.who, result)

    def _work(self, row: Row) -> Callable[[Setting], Result]:
        """The row's work; of cases that were checked before, those that were wrong."""
        before = self._report.find(row.problem, row.who)
        return partial(row.work, only=tuple(before["wrong"])) if before and before.get("wrong") else row.work


def is_done(row: Row, report: Report) -> bool:
    """Whether an earlier run did the row, and found nothing wrong."""
    result = report.find(row.problem, row.who)
    return result is not None and "failed" not in result and bool(result.get("holds", True))


def plan(chosen: Sequence[Row], report: Report, minutes: float) -> Iterator[str]:
    """A line for each row: when it would begin, how long it is thought to take, and whether there is time for it."""
    begin = 0.0
    for together, group in groupby(chosen, lambda row: row.problem in SIDE_BY_SIDE):
        left = [0.0] * (CREW if together else 1)  # when each process is free
        for row in group:
            if is_done(row, report):
                yield f"{'done':>8}{'':8}  {row}"
                continue
            first = left.index(min(left))
            start = begin + left[first]
            left[first] += row.expected
            late = "" if start < 60 * minutes else "  (no time)"
            yield f"{start:7.0f}s{row.expected:7.0f}s  {row}{late}"
        begin += max(left)
    yield f"{begin:7.0f}s         the end of all rows; {60 * minutes:.0f} s are given. The seconds are estimates."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures the GPU backend.")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it (%(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="folder with mnist and cifar10 ($CHAINS_DATA)")
    parser.add_argument(
        "--folder", type=Path, help="results and kernels, written after every row; an earlier run is gone on with"
    )
    parser.add_argument("--peers", nargs="+", choices=("chains", *OPTIONAL), default=["chains", *OPTIONAL])
    parser.add_argument("--problems", nargs="+", metavar="PROBLEM", help=f"of {', '.join(KEYS)}; all by default")
    parser.add_argument("--ladder", action="store_true", help="single steps alone, each in a process of its own")
    parser.add_argument("--again", action="store_true", help="also rows that are done")
    parser.add_argument("--plan", action="store_true", help="print the rows in their order with estimated seconds, and end")
    parser.add_argument("--floors", action="store_true", help="print what steps take at least on an H200, and end")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on an emulated GPU, in this process")
    options = parser.parse_args(arguments)
    problems = ["ladder"] if options.ladder else options.problems or KEYS
    unknown = [key for key in problems if key not in KEYS]
    if unknown:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(KEYS)}")
    folder = options.data or (Path(os.environ["CHAINS_DATA"]) if os.environ.get("CHAINS_DATA") else None)
    setting = Setting(folder, options.rehearse)
    chosen = [row for row in rows() if row.peer in options.peers and row.problem in problems]
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    report = Report({}, None if options.folder is None else options.folder / "results.json")
    if options.floors:
        print("\n".join(lines(setting)))
        return 0
    if options.plan:
        print("\n".join(plan(chosen, report, options.minutes)))
        return 0
    kernels = unpacked(options.folder)
    try:
        return _measured(chosen, setting, report, options, kernels)
    finally:
        shutil.rmtree(kernels, ignore_errors=True)


def _measured(chosen: Sequence[Row], setting: Setting, report: Report, options: Any, kernels: Path) -> int:
    worker = (Here if options.rehearse else Worker)(setting)
    facts = worker(gpu_chains.facts, FACTS_SECONDS)
    worker.end()
    if "failed" in facts:
        print(f"nothing was measured: {facts['failed']}")
        return 0
    facts["libraries"] = f"NumPy {np.__version__}, chains {chains.__version__}, Python {sys.version.split()[0]}"
    report.facts |= facts
    print("\n".join(f"{name:13}{fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
    left = [row for row in chosen if options.again or not is_done(row, report)]
    run = Run(setting, report, options.minutes, *((Here, 1) if options.rehearse else ()))
    run(left, partial(pack, kernels, options.folder))
    print("", table(report.results), "", sep="\n")
    for goal in report.goals:
        print(f"{goal['verdict']:15}{goal['goal']}: {goal['figure']}")
    checks = [result for result in report.results if result["problem"] == "correct"]
    ran = [result for result in checks if result.get("failed") != LATE]
    wrong = [result for result in ran if not result.get("holds")]
    print(f"\ncorrect: {len(ran) - len(wrong)} of {len(ran)} parts" + (": SEE ABOVE" if wrong else ""))
    if len(ran) < len(checks):
        print(f"{len(checks) - len(ran)} parts were not run, for want of time")
    return 1 if any("holds" in result for result in wrong) else 0


KEYS = list(dict.fromkeys(row.problem for row in rows()))


if __name__ == "__main__":
    sys.exit(main())
