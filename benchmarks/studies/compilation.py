"""How long it takes to compile programs, from nothing and from the cache on disk: ``python -m benchmarks.studies.compilation``.

It takes some two minutes.

Each is made in a process of its own, which has imported everything and compiled what all programs share. The peak of memory is
what the process gained while it compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from statistics import median

from tqdm import tqdm

from benchmarks.harness.machine import describe
from benchmarks.harness.timing import Criterion

NETWORKS = {  # with their losses, optimisers and batch sizes
    "matrix_exp": "Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), MSELoss(), Adam(1e-3), 10_000",
    "latency": "Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), SquaredLoss(), None, 1",
    "mnist_mlp": "Chain(Dense(784, 30, σ), Dense(30, 10, σ)), SquaredLoss(), SGD(3.0), 10",
    "wide": "Chain(Dense(2048, 4096, relu), Dense(4096, 4096, relu), Dense(4096, 10)), CrossEntropyLoss(), SGD(0.01), 1024",
}
DEPTHS = (4, 8, 16, 32, 64)
BASE = 2  # the depth from which growth is judged; smaller programs take less a layer
DEEP = "Chain(*(Dense(16 + k % 7, 16 + (k + 1) % 7, tanh) for k in range({})))"
WIDTHS = "Chain(*(Dense(16 + k, 17 + k, tanh) for k in range(24))), MSELoss(), Adam(1e-3), 1000"  # no layer like another
ROUNDS = 3
COLD, CACHED, COLD_WIDTHS = 0.7, 0.05, 3.75  # seconds

MEASURE = """
import json, resource, sys, time
from chains import *  # the names in NETWORKS
from chains.backends import backend
from chains.backends.native.compiler import compile_program
from chains.backends.native.runtime.shared import worker_pool, runtime
net, loss, optimizer, batch = {}
native = backend("native")
runtime(), worker_pool()
native.compile(Chain(Dense(3, 2)).program(MSELoss())).code
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
program = net.program(loss, optimizer)
recorded = time.perf_counter()
made = native.compile(program, batch)
made.code
end = time.perf_counter()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([recorded - start, end - recorded, memory, len(compile_program(program, native.processor).text)]))
"""


def measure(network: str, cache: str) -> tuple[float, float, float, int]:
    """Seconds to record and to compile, MiB gained, and characters of assembly."""
    command = [sys.executable, "-c", MEASURE.format(network)]
    out = subprocess.run(command, env={**os.environ, "CHAINS_CACHE": cache}, check=True, capture_output=True, text=True).stdout
    recording, compiling, memory, length = json.loads(out)
    return recording, compiling, memory / 1024, length


def row(name: str, network: str) -> tuple[str, float, float, int]:
    """A line of the table; seconds cold and from the cache, and the length of the assembly."""
    cold, warm, memory, length = [], [], [], 0
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            recording, compiling, gained, length = measure(network, cache)
            cold.append(recording + compiling)
            memory.append(gained)
            warm.append(sum(measure(network, cache)[:2]))
    text = f"  {name:12} {median(cold):8.2f} s {median(warm) * 1e3:8.1f} ms {median(memory):8.1f} MiB {length / 1e3:8.0f} kB"
    return text, median(cold), median(warm), length


def main() -> None:
    print(*(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), sep="\n")
    found: list[Criterion] = []
    print("", f"  {'program':12} {'from nothing':>10} {'cached':>11} {'memory':>12} {'assembly':>11}", sep="\n", flush=True)
    named = tqdm(
        {
            **NETWORKS,
            "24 widths": WIDTHS,
            **{f"{n} layers": f"{DEEP.format(n)}, MSELoss(), Adam(1e-3), 1000" for n in DEPTHS},
        }.items(),
        disable=None,
    )
    deep = []
    for name, network in named:
        text, cold, cached, length = row(name, network)
        print(text, flush=True)
        if network == WIDTHS:
            found.append(Criterion(f"{name}: seconds to compile", cold, f"<= {COLD_WIDTHS}"))
        elif name in NETWORKS:
            found.append(Criterion(f"{name}: seconds to compile", cold, f"<= {COLD}"))
            found.append(Criterion(f"{name}: seconds from the cache", cached, f"<= {CACHED}"))
        else:
            deep.append((cold, length))
    first, last = deep[BASE], deep[-1]
    layers = DEPTHS[-1] / DEPTHS[BASE]
    for k, what in enumerate(("time", "assembly")):
        text = f"{what} of {DEPTHS[-1]} layers over that of {DEPTHS[BASE]}, over the layers"
        found.append(Criterion(text, last[k] / first[k] / layers, "<= 1.2"))
    print(*(f"  {criterion}" for criterion in found), sep="\n")


if __name__ == "__main__":
    main()
