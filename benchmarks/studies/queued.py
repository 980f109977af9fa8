"""Queued calls beside plain ones: ``python -m benchmarks.studies.queued [async_memory] [overlap] [--rounds N] [--steps N]``.

*async_memory*: 100 steps of 512-2048-512-1 on 1,024 samples each, SGD, with the loss read after every step and never: how long
Python takes to queue them, how long they take, and how much memory the process gains. PyTorch, which computes at once on
processors, stands beside. *overlap*: work that shares nothing, one after the other and in one queue with two workers.
Each mode runs in a process of its own, in turns; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import describe
from benchmarks.harness.timing import Criterion

OWN = str(Path(__file__).parents[2])
COMMON = """
import json, os, resource, sys, threading, time, zlib
import numpy as np

mode, steps = sys.argv[1], int(sys.argv[2])
now = time.perf_counter

class Memory(threading.Thread):
    # The most memory that the process has taken while this runs, beyond what it took before.
    def __init__(self):
        super().__init__(daemon=True)
        self.first = self.most = self.resident()
        self.ended = threading.Event()

    def resident(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def run(self):
        while not self.ended.wait(0.002):
            self.most = max(self.most, self.resident())

    def gained(self):
        self.ended.set()
        self.join()
        return max(self.most, self.resident()) - self.first
"""
STEPS = """
rng = np.random.default_rng(0)
def batch():
    return rng.standard_normal((1024, 512), np.float32), np.ones((1024, 1), np.float32)
made = [batch() for _ in range(1 if "made" in mode else steps)]
def batches():
    return (batch() for _ in range(steps)) if "made" in mode else made
"""
CHAINS = """
import chains
from chains import SGD, Chain, Dense, SquaredLoss, relu

net = Chain(Dense(512, 2048, relu), Dense(2048, 512, relu), Dense(512, 1))
p, loss, values = net.init(seed=0), SquaredLoss(), []
update = chains.Updater(SGD(0.005), p)

def queued(q, x, t):
    result = q.value_and_grad(net, p, x, t, loss)
    q.call(update, result[1], writes=p)
    return result[0]

if "queue" in mode:
    with chains.Queue() as q:
        queued(q, *made[0]).wait()
        q.wait()
        memory, start = Memory(), now()
        memory.start()
        for x, t in batches():
            value = queued(q, x, t)
            if "read" in mode:
                values.append(float(value))
        queueing = now() - start
        q.wait()
        seconds = now() - start
        values.append(float(value))
else:
    update(net.value_and_grad(p, *made[0], loss)[1])
    memory, start = Memory(), now()
    memory.start()
    for x, t in batches():
        value, g = net.value_and_grad(p, x, t, loss)
        update(g)
        values.append(value)
    seconds = queueing = now() - start
print(json.dumps({"queueing": queueing, "seconds": seconds, "gained": memory.gained(), "loss": values[-1]}))
"""
TORCH = """
import chains, torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 1))
same = chains.Chain(chains.Dense(512, 2048, "relu"), chains.Dense(2048, 512, "relu"), chains.Dense(512, 1))
with torch.no_grad():
    for own, value in zip(net.parameters(), same.views(same.init(seed=0)).values()):
        own.copy_(torch.from_numpy(value.T))
optimizer = torch.optim.SGD(net.parameters(), 0.005)

def step(x, t):
    optimizer.zero_grad()
    loss = 0.5 * ((net(torch.from_numpy(x)) - torch.from_numpy(t)) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss

step(*made[0])
memory, start = Memory(), now()
memory.start()
for x, t in batches():
    value = step(x, t).item()
seconds = now() - start
print(json.dumps({"queueing": seconds, "seconds": seconds, "gained": memory.gained(), "loss": value}))
"""
OVERLAP = """
import chains
from chains import Adam, Chain, Dense, SquaredLoss, tanh

workers = 2 if "queue" in mode else 1
if "products" in mode:
    from threadpoolctl import threadpool_limits
    threadpool_limits(1)
    a, b = np.random.default_rng(0).standard_normal((2, 2000, 2000), np.float32)
    outs = [np.empty_like(a) for _ in range(2)]
    np.dot(a, b, out=outs[0])

    def work(q):
        for out in outs:
            for _ in range(10):
                q.call(np.dot, a, b, out=out, writes=out) if q else np.dot(a, b, out=out)
    found = outs
else:
    chains.set_num_threads(workers)
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    x, t = np.random.default_rng(0).standard_normal((2, 10000, 4), np.float32)
    found = [net.init(seed=seed) for seed in range(2)]
    with chains.num_threads(1):
        chains.train(net, found[0].copy(), x, t, SquaredLoss(), Adam(), epochs=10)

    def work(q):
        for p in found:
            (q.train if q else chains.train)(net, p, x, t, SquaredLoss(), Adam(), epochs=steps * 10)
start = now()
if "queue" in mode:
    with chains.Queue(workers) as q:
        work(q)
else:
    work(None)
seconds = now() - start
print(json.dumps({"seconds": seconds, "bits": zlib.crc32(b"".join(each.tobytes() for each in found))}))
"""


def measured(code: str, modes: list[str], rounds: int, steps: int) -> dict[str, dict[str, Any]]:
    """What the code prints in each mode: medians of numbers; the modes take turns."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode in modes:
            command = [sys.executable, "-c", COMMON + code, mode, str(steps)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=OWN, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            found[mode].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        mode: {
            key: median(run[key] for run in runs) if not isinstance(value, list) else value for key, value in runs[0].items()
        }
        for mode, runs in found.items()
    }


def async_memory(rounds: int, steps: int) -> list[Criterion]:
    """Print the table. Returns what is wanted of it."""
    modes = ["plain", "queue, read", "queue", "plain, made", "queue, made"]
    found = measured(STEPS + CHAINS, modes, rounds, steps)
    rows = {
        "chains, calls": found["plain"],
        "chains, queued, every loss read": found["queue, read"],
        "chains, queued": found["queue"],
        "chains, calls, batches made as it goes": found["plain, made"],
        "chains, queued, batches made as it goes": found["queue, made"],
    }
    try:
        rows["PyTorch, eager"] = measured(STEPS + TORCH, ["plain"], rounds, steps)["plain"]
    except RuntimeError as error:
        if "No module named 'torch'" not in str(error):
            raise
    print(f"async_memory, {steps} steps\n{'':42}{'queueing ms':>12}{'seconds':>10}{'MB gained':>11}{'loss':>11}")
    for name, row in rows.items():
        print(f"{name:42}{row['queueing'] * 1e3:12.2f}{row['seconds']:10.3f}{row['gained'] / 2**20:11.1f}{row['loss']:11.3e}")
    plain, queue = found["plain"], found["queue"]
    return [
        Criterion("async_memory: milliseconds to queue 100 steps", queue["queueing"] * 1e5 / steps, "<= 2"),
        Criterion("async_memory: time of queued steps over that of calls", queue["seconds"] / plain["seconds"], "<= 1.02"),
        Criterion("async_memory: memory gained over that of calls", queue["gained"] / max(1, plain["gained"]), "<= 1.1"),
    ]


def overlap(rounds: int, steps: int) -> list[Criterion]:
    """Print the table. Returns what is wanted of it."""
    found = measured(OVERLAP, ["trainings", "trainings, queue", "products", "products, queue"], rounds, steps)
    print(f"overlap, one thread each\n{'':42}{'seconds':>10}{'ratio':>8}")
    criteria = []
    kinds = (("trainings", "two trainings of matrix_exp", 1.8), ("products", "2 x 10 products of 2000 x 2000", 1.1))
    for kind, name, wanted in kinds:
        alone, together = found[kind], found[f"{kind}, queue"]
        assert alone["bits"] == together["bits"]
        ratio = alone["seconds"] / together["seconds"]
        print(f"{name + ', one after the other':42}{alone['seconds']:10.3f}")
        print(f"{name + ', in a queue':42}{together['seconds']:10.3f}{ratio:8.2f}")
        criteria.append(Criterion(f"overlap: {name}, one after the other over in a queue", ratio, f">= {wanted}"))
    return criteria


CONTESTS: dict[str, Callable[[int, int], list[Criterion]]] = {"async_memory": async_memory, "overlap": overlap}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.queued", description="Queued calls beside plain ones.")
    parser.add_argument("contests", nargs="*", metavar="contest", help=f"of {', '.join(CONTESTS)}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    unknown = [name for name in chosen.contests if name not in CONTESTS]
    if unknown:
        parser.error(f"no contest is called {unknown[0]!r}: choose of {', '.join(CONTESTS)}")
    print("\n".join(f"{name:>9}  {fact}" for name, fact in describe().items()), "", sep="\n", flush=True)
    criteria = []
    for name in chosen.contests or CONTESTS:
        criteria += CONTESTS[name](chosen.rounds, chosen.steps)
        print()
    print("\n".join(str(criterion) for criterion in criteria))
    return 0


if __name__ == "__main__":
    sys.exit(main())
