"""Steps on 1 and 2 threads, and a prediction for more: ``python -m benchmarks.studies.threads [problem ...] [--rounds N]``.

The model: the computation of one thread, divided by the threads that the backend would take, and the barriers of a step. At a
barrier each thread reads the words of all others, which are taken to arrive one after another: a bound from above. Memory
bandwidth, clocks that fall when all cores work, and the shares that only the first thread does are not in the model.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

import chains
from benchmarks.harness.machine import describe
from benchmarks.studies.scaling import PROBLEMS
from chains import Chain, train
from chains.backends.native import memory_plan
from chains.backends.native.backend import NativeBackend
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan.passes import plan_of
from chains.program.program import Program

# Nanoseconds until a word that another core wrote arrives: AnandTech's review of Zen 4 (Ryzen 9 7950X) for the first two.
SAME_CACHE, OTHER_CHIPLET = 19, 80
CACHE_CORES = 8  # cores that share a cache
CORES = (8, 32)


def barrier(threads: int) -> float:
    """Seconds of a barrier: a word from each other thread, in turn."""
    near = min(threads, CACHE_CORES) - 1
    return (near * SAME_CACHE + (threads - 1 - near) * OTHER_CHIPLET) * 1e-9


def barriers(program: Program, threads: int, batch: int) -> int:
    """The barriers of a step, with the one before it."""
    native = NativeBackend(threads=threads)
    plan = plan_of(program, processor(None), native.compile(program, batch).signature.parts)
    inner = sum(sum(segment.barriers) for segment in plan.segments)
    return len(plan.segments) + inner + (0 if plan.parts > 1 else len(plan.segments))


def threads_of(program: Program, cores: int, batch: int) -> int:
    """The threads that the backend takes of so many cores, whatever this machine has."""
    with mock.patch.object(memory_plan, "processors", return_value=cores):
        return NativeBackend(threads=cores).compile(program, batch).memory_plan(batch, cores).threads


def step_seconds(run: Callable[[int], Any], rounds: int, length: float) -> float:
    """The median of seconds a step, in runs of about `length` seconds."""
    count, taken = 1, 0.0
    while taken < length / 4:
        count *= 4
        begun = time.perf_counter()
        run(count)
        taken = time.perf_counter() - begun
    count = max(1, int(count * length / taken))
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run(count)
        found.append((time.perf_counter() - begun) / count)
    return median(found)


def measured(net: Chain, loss: Any, optimizer: Any, x: Any, t: Any, threads: int, rounds: int, length: float) -> float:
    """The seconds of a step with at most so many threads."""
    p = net.init(0)
    with chains.num_threads(threads):
        return step_seconds(
            lambda count: train(net, p.copy(), x, t, loss, optimizer, epochs=count, check_finite=False), rounds, length
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.threads", description="Steps on 1 and 2 threads, and a prediction for more."
    )
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a timed run")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.problems if name not in PROBLEMS]:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(PROBLEMS)}")
    print("\n".join(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), "", sep="\n", flush=True)
    columns = [f"{n} cores" for n in CORES]
    print(f"| a step, us | 1 thread | 2 | 2 by the model | barriers | {' | '.join(columns)} |")
    print("| --- " * (5 + len(CORES)) + "|")
    for name in chosen.problems or PROBLEMS:
        make, loss, optimizer, batch, labels = PROBLEMS[name]
        net, rng = make(), np.random.default_rng(0)
        x = rng.standard_normal((batch, *net.input_shape), np.float32)
        t = rng.integers(0, labels, batch) if labels else rng.standard_normal((batch, *net.output_shape), np.float32)
        program = net.program(loss, optimizer, dtype=np.float32)
        one, two = (measured(net, loss, optimizer, x, t, n, chosen.rounds, chosen.seconds) for n in (1, 2))

        def predicted(cores: int, one: float = one, program: Program = program, batch: int = batch) -> tuple[int, float]:
            threads = threads_of(program, cores, batch)
            share = math.ceil(batch / threads) / batch if threads <= batch else 1 / threads
            waits = barriers(program, threads, batch) * barrier(threads) if threads > 1 else 0.0
            return threads, one * share + waits

        cells = []
        for cores in CORES:
            threads, seconds = predicted(cores)
            cells.append(f"{seconds * 1e6:,.1f} ({one / seconds:.1f}x on {threads})")
        times = " | ".join(f"{seconds * 1e6:,.1f}" for seconds in (one, two, predicted(2)[1]))
        print(f"| {name} | {times} | {barriers(program, 2, batch)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
