"""Checks the GPU backend against NumPy and measures it, with PyTorch and JAX as peers, on one GPU.

    python -m benchmarks.gpu --plan
    python -m benchmarks.gpu --floors
    python -m benchmarks.gpu --minutes 9.5 --out results --data DATA

It needs CuPy with NVRTC and cuBLAS, and pytest. cuDNN with its front end, PyTorch and JAX are measured if installed.
Rows run in order of worth, in processes that are ended after a time limit or after an error of CUDA. A case that spoils its
process is repeated alone, with launches that are waited for, and under compute-sanitizer. Every result is written to ``--out``
as it comes, in `results.json`; sources of wrong kernels and reports of errors in `details.txt`. The next call with that folder
does what is missing and what failed; ``--again`` repeats the chosen rows. ``--data`` is the folder with `mnist` and `cifar10`
($CHAINS_DATA by default); without it, noise is used, and accuracies mean nothing. Without a GPU the command says so and
measures nothing; ``--rehearse`` runs every row at tiny sizes on an emulated GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import chains
from benchmarks.gpu.backends import facts
from benchmarks.gpu.floors import lines
from benchmarks.gpu.problems import Setting
from benchmarks.gpu.processes import Here, Worker
from benchmarks.gpu.report import Report, table
from benchmarks.gpu.rows import Row, rows
from benchmarks.gpu.running import LATE, OPTIONAL, Run, is_done, plan

FACTS_SECONDS = 90.0  # to find the GPU, at most
PEERS = ("chains", *OPTIONAL, "native")
KEYS = list(dict.fromkeys(row.problem for row in rows()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures the GPU backend.")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it (%(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="folder with mnist and cifar10 ($CHAINS_DATA)")
    parser.add_argument("--out", type=Path, help="folder of the results, written after every row; a later run continues there")
    parser.add_argument("--kernels", type=Path, help="file of kernels that were compiled beforehand, by benchmarks.gpu.kernels")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--problems", nargs="+", metavar="PROBLEM", help=f"of {', '.join(KEYS)}; all by default")
    parser.add_argument("--ladder", action="store_true", help="single steps, each in a new process")
    parser.add_argument("--again", action="store_true", help="also rows that are done")
    parser.add_argument("--plan", action="store_true", help="print the rows in their order with estimated seconds, and end")
    parser.add_argument("--floors", action="store_true", help="print launches and least times of steps, and end")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on an emulated GPU, in this process")
    options = parser.parse_args(arguments)
    problems = ["ladder"] if options.ladder else options.problems or KEYS
    unknown = [key for key in problems if key not in KEYS]
    if unknown:
        parser.error(f"`--problems` (={unknown[0]!r}) must be one of {', '.join(KEYS)}")
    folder = options.data or (Path(os.environ["CHAINS_DATA"]) if os.environ.get("CHAINS_DATA") else None)
    setting = Setting(folder, options.rehearse)
    chosen = [row for row in rows(setting.tiny) if row.peer in options.peers and row.problem in problems]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    report = Report({}, None if options.out is None else options.out / "results.json")
    if options.floors:
        print("\n".join(lines(setting)))
        return 0
    if options.plan:
        print("\n".join(plan(chosen, report, options.minutes)))
        return 0
    return _measured(chosen, setting, report, options)


def _measured(chosen: Sequence[Row], setting: Setting, report: Report, options: Any) -> int:
    start = Here if options.rehearse else Worker
    cache = Path(tempfile.mkdtemp(prefix="chains-kernels-"))
    os.environ["CUPY_CACHE_DIR"] = str(cache)
    try:
        return _in_cache(cache, start, chosen, setting, report, options)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _in_cache(
    cache: Path, start: Callable[..., Any], chosen: Sequence[Row], setting: Setting, report: Report, options: Any
) -> int:
    worker = start(setting)
    machine = worker(facts, FACTS_SECONDS)
    if options.kernels is not None and "failed" not in machine:
        from benchmarks.gpu.kernels import unpacking  # which imports the tests

        unpacked = worker(partial(unpacking, options.kernels, cache), FACTS_SECONDS)
        machine["kernels"] = unpacked.get("failed") or unpacked["note"]
    worker.end()
    known = len(list(cache.iterdir()))
    if "failed" in machine:
        print(f"nothing was measured: {machine['failed']}")
        return 0
    machine["libraries"] = f"NumPy {np.__version__}, chains {chains.__version__}, Python {sys.version.split()[0]}"
    report.facts |= machine
    print("\n".join(f"{name:13}{fact}" for name, fact in machine.items()), "", sep="\n", flush=True)
    left = [row for row in chosen if options.again or not is_done(row, report)]
    Run(setting, report, options.minutes, *((Here, 1) if options.rehearse else ()))(left)
    print("", table(report.results), "", sep="\n")
    print(f"kernels: {known} modules were there, {len(list(cache.iterdir())) - known} were compiled\n")
    for goal in report.goals:
        print(f"{goal['verdict']:15}{goal['goal']}: {goal['figure']}")
    checks = [result for result in report.results if result["problem"] == "correct"]
    ran = [result for result in checks if result.get("failed") != LATE]
    wrong = [result for result in ran if not result.get("holds")]
    print(f"\ncorrect: {len(ran) - len(wrong)} of {len(ran)} cases" + (": SEE ABOVE" if wrong else ""))
    if len(ran) < len(checks):
        print(f"{len(checks) - len(ran)} cases were not run: the time was over")
    return 1 if any("holds" in result for result in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
