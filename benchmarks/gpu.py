"""What the GPU backend gives, on one GPU: checked against NumPy, then measured, beside PyTorch and JAX where these have one.

    python -m benchmarks.gpu --minutes 10 --data DATA --json gpu.json

Only CuPy, NumPy and this project are needed. Rows come in the order of their importance, each in a process that is ended where
it takes too long, or where an error leaves CUDA of no use to it, so that the others still come; what the time does not allow is
said. ``--data`` is the folder with `mnist` and `cifar10` ($CHAINS_DATA by default); without them, noise is used, and accuracies
mean nothing. At the end stand one table and the goals. Without a GPU the script says so and measures nothing; ``--rehearse``
runs all of it at tiny sizes on an emulated GPU, to see whether it works.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import chains
from benchmarks import gpu_chains, gpu_jax, gpu_products, gpu_torch
from benchmarks.gpu_goals import goals
from benchmarks.gpu_problems import PROBLEMS, NoGpuError, Setting

Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One measurement: `work` makes it, within `limit` seconds, in a process that serves the rows of one `peer`."""

    problem: str
    who: str
    peer: str
    limit: float
    work: Callable[[Setting], Result]

    def __str__(self) -> str:
        return f"{self.problem}: {self.who}"


def rows() -> list[Row]:
    """All rows, the most important ones first."""
    us = gpu_chains
    large = ("wider", "wider_relu", "wide")
    trained = ("matrix_exp", "mnist_mlp", "lenet5", "rosetta_cnn")

    def ours(problem: str, what: str, work: Callable[..., Result], *given: Any, limit: float = 60.0) -> Row:
        return Row(problem, f"chains {what}".strip(), "chains", limit, partial(work, *given))

    def torch(key: str, mode: str, precision: str) -> Row:
        work = partial(gpu_torch.measure, key, mode, precision)
        return Row(key, f"PyTorch {mode} {precision}", "torch", 150.0 if mode == "compile" else 90.0, work)

    def jax(key: str, mode: str, precision: str) -> Row:
        return Row(key, f"JAX {mode} {precision}", "jax", 90.0, partial(gpu_jax.measure, key, mode, precision))

    return [
        ours("correct", "training, streams, pieces", us.check_training),
        *(ours("correct", f"cases {part + 1} of {us.PARTS}", us.check_cases, part, "float32") for part in range(us.PARTS)),
        *(ours(key, "float32", us.measure, key, "float32", limit=90.0) for key in trained),
        *(ours(key, way, us.measure, key, way) for key in trained[:2] for way in us.KERNELS),
        *(ours(key, p, gpu_products.share, key, p, True) for key in large for p in us.PRECISIONS),
        *(ours("allocations", key, us.allocations, key, False) for key in trained),
        ours("allocations", "mnist_mlp, streamed", us.allocations, "mnist_mlp", True),
        ours("overlap", "copies back", us.copy_back),
        *(ours("overlap", f"data streamed, width {width:,}", us.streamed_training, width) for width in (4096, 64)),
        *(ours("overlap", f"outputs streamed, width {width:,}", us.streamed_outputs, width) for width in (4096, 64)),
        *(torch(key, "graph", "float32") for key in trained),
        *(torch(key, "eager", "float32") for key in trained),
        ours("overlap", "processor and GPU", us.both_machines),
        *(ours("async_memory", f"loss read {text}", us.async_memory, every) for text, every in
          (("at every step", True), ("later", False))),
        *(ours(key, f"no epilogues, {p}", gpu_products.share, key, p, False) for key in large for p in us.PRECISIONS),
        *(ours(key, "tf32", us.measure, key, "tf32", limit=90.0) for key in trained[::-1]),
        *(ours("correct", f"convolutions, {way}", us.check_convolutions, way) for way in us.CONVOLUTIONS if "tf32" not in way),
        *(ours(key, way, us.measure, key, way) for key in ("rosetta_cnn", "lenet5") for way in us.CONVOLUTIONS),
        *(ours("correct", f"{way}, cases {part + 1} of {us.PARTS}", us.check_cases, part, way)
          for way in us.KERNELS for part in range(us.PARTS)),
        *(torch(key, "graph", "tf32") for key in ("rosetta_cnn", "wide", "wider", "lenet5")),
        *(torch(key, "compile", "float32") for key in trained),
        *(jax(key, mode, "float32") for key in trained for mode in ("scan", "jit")),
        *(torch(key, "eager", "tf32") for key in ("rosetta_cnn", "wide", "wider", "lenet5")),
        *(torch(key, "compile", "tf32") for key in ("rosetta_cnn", "lenet5", "wide")),
        *(torch(key, mode, "tf32") for key in ("matrix_exp", "mnist_mlp") for mode in gpu_torch.MODES),
        *(torch(key, mode, "float32") for key in ("wide", "wider") for mode in ("graph", "eager")),
        *(jax(key, "scan", "tf32") for key in ("rosetta_cnn", "wide", "lenet5")),
    ]  # fmt: skip


# Processes


def serve(connection: Any, setting: Setting) -> None:
    """Answer each piece of work with its result, or with the error in a sentence, until no more can come."""
    with suppress(EOFError):  # where the script itself was ended
        while True:
            connection.send(attempt(connection.recv(), setting))


def attempt(work: Callable[[Setting], Result], setting: Setting) -> Result:
    """The result, or the error in a sentence."""
    try:
        return work(setting)
    except ImportError as error:
        return {"failed": f"not installed: {error}", "missing": True}
    except NoGpuError as error:
        return {"failed": str(error), "missing": True}
    except Exception as error:  # a row that fails is a row too
        return {"failed": f"{type(error).__name__}: {error}"[:300], "spoilt": isinstance(error, RuntimeError)}


@dataclass
class Worker:
    """A process for one peer's rows, begun when it is needed, and anew after a row that took too long, ended or spoilt it.

    For an error in a kernel, say, is one of all that its process asks of CUDA afterwards.
    """

    setting: Setting
    _process: Any = None
    _connection: Any = None

    def __call__(self, work: Callable[[Setting], Result], limit: float) -> Result:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self.setting))
            self._process.start()
            theirs.close()
        try:
            self._connection.send(work)
            if self._connection.poll(limit):
                result = self._connection.recv()
                if result.get("spoilt"):
                    self.end()
                return result
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            self.end()
            return {"failed": f"the process ended with the code {code}"}
        self.end()
        return {"failed": f"took longer than {limit:.3g} s, and was ended"}

    def end(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = self._connection = None


class Here:
    """In place of a worker: the work is done in this process, with no limit."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __call__(self, work: Callable[[Setting], Result], limit: float) -> Result:
        return attempt(work, self.setting)

    def end(self) -> None:
        pass


# What is told


@dataclass
class Report:
    """The results so far, printed as they come and kept in a file that can be read at any moment."""

    facts: dict[str, str]
    path: Path | None
    results: list[Result] = field(default_factory=list)
    goals: list[Result] = field(default_factory=list)

    def add(self, row: Row, result: Result) -> None:
        self.results.append({"problem": row.problem, "who": row.who} | result)
        print(line(self.results[-1]), flush=True)
        self.save()

    def save(self) -> None:
        if self.path is not None:
            content = {"machine": self.facts, "results": self.results, "goals": self.goals}
            self.path.write_text(json.dumps(content, indent=1, default=float) + "\n")


def line(result: Result) -> str:
    """A result as a line."""
    if "failed" in result:
        return f"{result['problem']:13}{result['who']:34}{result['failed']}"
    parts = []
    if "seconds" in result:
        parts.append(f"{result['seconds']:.4g} s")
    if "us_a_step" in result:
        parts.append(f"{result['us_a_step']:,.1f} us a step")
    parts += [f"{name} {result[name]:.4g}" for name in ("value", "loss", "accuracy") if result.get(name) is not None]
    parts += ["holds" if result["holds"] else "DOES NOT HOLD"] if "holds" in result else []
    parts += [result["note"]] if result.get("note") else []
    return f"{result['problem']:13}{result['who']:34}{'; '.join(parts)}"


def table(results: Sequence[Result]) -> str:
    """What was trained: a row for each way, with its time in units of the fastest of this project's."""
    lines = [f"{'problem':13}{'who':28}{'seconds':>10}{'us a step':>12}{'x chains':>10}{'loss':>11}{'accuracy':>10}"]
    for key in PROBLEMS:
        done = [result for result in results if result["problem"] == key and "seconds" in result]
        ours = min((result["seconds"] for result in done if result["who"].startswith("chains")), default=None)
        for result in done:
            times = f"{result['seconds'] / ours:.2f}" if ours else "-"
            accuracy = f"{result['accuracy']:.4f}" if result.get("accuracy") is not None else "-"
            lines.append(
                f"{key:13}{result['who']:28}{result['seconds']:>10.4g}{result['us_a_step']:>12,.1f}{times:>10}"
                f"{result['loss']:>11.4g}{accuracy:>10}"
            )
    return "\n".join(lines)


def run(
    chosen: Sequence[Row], setting: Setting, report: Report, minutes: float, start: Callable[[Setting], Any] = Worker
) -> None:
    """Do the rows, as many as there is time for; checks of correctness take at most a third of it."""
    begin, checking, workers = time.monotonic(), 0.0, {}
    missing: dict[str, Result] = {}  # peers that are not installed, or for processors only
    try:
        for row in chosen:
            now = time.monotonic()
            left = begin + 60 * minutes - now
            if row.problem == "correct":
                left = min(left, 20 * minutes - checking)
            if left < 1:
                report.add(row, {"failed": "not run: the time was over"})
            elif row.peer in missing:
                report.add(row, missing[row.peer])
            else:
                worker = workers.setdefault(row.peer, start(setting))
                result = worker(row.work, min(left, row.limit))
                if result.get("missing"):
                    missing[row.peer] = result
                report.add(row, result)
            checking += time.monotonic() - now if row.problem == "correct" else 0.0
    finally:
        for worker in workers.values():
            worker.end()
    report.goals = goals(report.results)
    report.save()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures the GPU backend.")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it (%(default)s)")
    parser.add_argument("--data", type=Path, default=None, help="folder with mnist and cifar10 ($CHAINS_DATA)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, after every row")
    parser.add_argument("--peers", nargs="+", choices=("chains", "torch", "jax"), default=["chains", "torch", "jax"])
    parser.add_argument("--problems", nargs="+", metavar="PROBLEM", help=f"of {', '.join(KEYS)}; all by default")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on an emulated GPU, in this process")
    options = parser.parse_args(arguments)
    unknown = [key for key in options.problems or () if key not in KEYS]
    if unknown:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(KEYS)}")
    folder = options.data or (Path(os.environ["CHAINS_DATA"]) if os.environ.get("CHAINS_DATA") else None)
    setting = Setting(folder, options.rehearse)
    try:
        facts = gpu_chains.facts(setting)
    except ValueError as error:
        print(f"nothing was measured: {error}")
        return 0
    facts["libraries"] = f"NumPy {np.__version__}, chains {chains.__version__}, Python {sys.version.split()[0]}"
    print("\n".join(f"{name:13}{fact}" for name, fact in facts.items()), "", sep="\n")
    chosen = [row for row in rows() if row.peer in options.peers and row.problem in (options.problems or KEYS)]
    report = Report(facts, options.json)
    run(chosen, setting, report, options.minutes, Here if options.rehearse else Worker)
    print("", table(report.results), "", sep="\n")
    for goal in report.goals:
        print(f"{goal['verdict']:15}{goal['goal']}: {goal['figure']}")
    checks = [result for result in report.results if result["problem"] == "correct"]
    wrong = [result for result in checks if not result.get("holds")]
    print(f"\ncorrect: {len(checks) - len(wrong)} of {len(checks)} parts" + (": SEE ABOVE" if wrong else ""))
    return 1 if any("holds" in result for result in wrong) else 0


KEYS = list(dict.fromkeys(row.problem for row in rows()))


if __name__ == "__main__":
    sys.exit(main())
