"""What a first call costs: ``python -m benchmarks.studies.first_call [--rounds N] [--tree FOLDER ...]``.

The value and gradient of 4-32-16-4, from `Chain(...)` to the first result and to the second, each time in a process of its
own that has imported chains: with nothing compiled before, and with machine code on the disk. Then, within a process, what
networks and unpickled objectives of a known structure cost. Folders of other checkouts take part in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.harness.machine import describe
from benchmarks.harness.timing import Criterion

BATCHES = (1, 200)
LIMIT = 0.2  # milliseconds, of what is known
OWN = str(Path(__file__).parents[2])

MEASURE = """
import json, pickle, sys, time
import numpy as np
import chains
from chains import Chain, Dense, SquaredLoss, tanh

now, batch = time.perf_counter, int(sys.argv[1])
x, t, loss = np.ones((batch, 4), np.float32), np.zeros((batch, 4), np.float32), SquaredLoss()

def make():
    return Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))

def least(work):
    times = []
    for _ in range(max(5, min(2000, int(0.5 / (seconds(work) + 1e-9))))):
        times.append(seconds(work))
    return min(times)

def seconds(work):
    start = now()
    work()
    return now() - start

start = now()
net = make()
p = net.init(seed=0)
made = now()
net.value_and_grad(p, x, t, loss)
first = now()
net.value_and_grad(p, x, t, loss)
second = now()
found = {"first result": first - start, "of that the call": first - made, "second result": second - start}
p64 = p.astype(np.float64)
sent = pickle.dumps(net.objective(x, t, loss))
found["new Chain, known structure"] = least(lambda: make().value_and_grad(p, x, t, loss))
found["unpickled objective"] = least(lambda: pickle.loads(sent)(p64))
print(json.dumps({name: 1e3 * value for name, value in found.items()}))
"""


def measure(tree: str, batch: int, cache: str) -> dict[str, float]:
    """Milliseconds by what was done, in a fresh process that uses this checkout."""
    command = [sys.executable, "-c", MEASURE, str(batch)]
    environment = {**os.environ, "CHAINS_CACHE": cache, "PYTHONPATH": tree}
    done = subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def rounds(trees: list[str], batch: int, number: int, cached: bool) -> dict[str, dict[str, float]]:
    """The medians of each checkout, which take turns."""
    found: dict[str, list[dict[str, float]]] = {tree: [] for tree in trees}
    with tempfile.TemporaryDirectory() as kept:
        for turn in range(number + cached):
            for tree in trees if turn % 2 == 0 else trees[::-1]:
                own = os.path.join(kept, str(trees.index(tree)))
                found[tree].append(measure(tree, batch, own if cached else "off"))
    used = {tree: turns[cached:] for tree, turns in found.items()}  # the first one fills the disk
    return {tree: {name: median(turn[name] for turn in turns) for name in turns[0]} for tree, turns in used.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.first_call", description="What a first call costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tree", nargs="*", default=[], help="folders of other checkouts, to compare with")
    arguments = parser.parse_args()
    print(*(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), sep="\n")
    trees = [OWN, *arguments.tree]
    criteria: list[Criterion] = []
    for batch in BATCHES:
        for cached in (False, True):
            table = rounds(trees, batch, arguments.rounds, cached)
            print("", f"batch {batch}, {'code on the disk' if cached else 'from nothing'}, milliseconds", sep="\n")
            for name in table[OWN]:
                others = "".join(f"{table[tree][name]:12.3f} ({tree})" for tree in trees[1:])
                print(f"  {name:28}{table[OWN][name]:12.3f}{others}", flush=True)
        for name in ("new Chain, known structure", "unpickled objective"):
            criteria.append(Criterion(f"batch {batch}: milliseconds of {name}", table[OWN][name], f"<= {LIMIT}"))
    print("", *(f"  {criterion}" for criterion in criteria), sep="\n")
    return 0 if all(criterion.ok for criterion in criteria) else 1


if __name__ == "__main__":
    sys.exit(main())
