"""The native backend on 1, 2, 4, 8 and 16 threads, beside PyTorch and JAX on as many processors.

    python -m benchmarks.gpu.processors 4 8

measures on the processors 8, 9, 10 and 11 alone. The numbers of threads up to half of the machine are measured at the same
time, on processors of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.gpu.problems import Result, Setting

COUNTS = (1, 2, 4, 8, 16)
PROBLEMS = ("matrix_exp", "mnist_mlp", "lenet5", "recurrent", "ensemble", "rosetta_cnn", "wide", "rosetta_rnn")
ROUNDS, SECONDS = 2, 0.02
LIMIT = 50.0  # seconds of the processes that start together
SLOW = ("compile", "tree", "unrolled", "float64", "by itself", "exact Adam")  # parts of names of contestants that are left out


def measure(setting: Setting) -> Result:
    """The best time of chains and of each peer, by contest and number of processors."""
    count = len(os.sched_getaffinity(0))
    counts = [each for each in COUNTS if each <= count]
    small = [each for each in counts if 2 * each <= count]
    runs = [_begun(each, sum(small[:k]), setting) for k, each in enumerate(small)]
    end = time.monotonic() + LIMIT
    found = {each: _ended(run, end) for each, run in zip(small, runs, strict=True)}
    found |= {each: _ended(_begun(each, 0, setting), time.monotonic() + LIMIT) for each in counts if each not in small}
    tables: dict[str, dict[str, Any]] = {}
    for each, times in found.items():
        for key, row in times.items():
            tables.setdefault(key, {})[str(each)] = row
    lines = [f"\n{'':14}{key:34}" + "  ".join(_text(n, row) for n, row in table.items()) for key, table in tables.items()]
    note = "us of chains, and times of PyTorch and JAX, by processors" + "".join(lines)
    return {"value": float(count), "note": note, "tables": tables}


def _text(processors: str, row: dict[str, float]) -> str:
    if "chains" not in row:
        return f"{processors}: -"
    ratios = [f"{row[name] / row['chains']:.1f}" for name in ("PyTorch", "JAX") if name in row]
    return " ".join([f"{processors}: {row['chains']:.4g}", *ratios])


def _begun(threads: int, first: int, setting: Setting) -> subprocess.Popen[str]:
    processors = sorted(os.sched_getaffinity(0))[first : first + threads]
    command = [sys.executable, "-m", "benchmarks.gpu.processors", ",".join(map(str, processors)), *(["tiny"] * setting.tiny)]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if setting.folder is not None:
        environment["CHAINS_DATA"] = str(setting.folder)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _ended(run: subprocess.Popen[str], end: float) -> dict[str, dict[str, float]]:
    """The times of a process by contest; of one that has to be ended, those that it has printed."""
    try:
        out, _ = run.communicate(timeout=max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        run.kill()
        out, _ = run.communicate()
    return dict(json.loads(line) for line in out.splitlines() if line.startswith("["))


def _race(tiny: bool) -> None:
    """Print the best times in microseconds of each contest as it ends."""
    from benchmarks.harness.peers import Options
    from benchmarks.harness.timing import race

    for problem in PROBLEMS[:1] if tiny else PROBLEMS:
        try:
            contests = import_module(f"benchmarks.problems.{problem}").contests(
                Options(True, peers=("chains", "torch", "jax"), backends=["native"])
            )
        except Exception as error:  # no data
            print(f"{problem}: {error}", file=sys.stderr, flush=True)
            continue
        for contest in contests:
            left_out = (*SLOW, "1 thread") if len(os.sched_getaffinity(0)) > 1 else SLOW
            contest.contestants = [each for each in contest.contestants if not any(text in each.name for text in left_out)]
            contest.rounds, contest.seconds, contest.criteria = None, None, lambda table: []
            table = race(contest, 1 if tiny else ROUNDS, SECONDS, lambda name: None)
            best: dict[str, float] = {}
            for row in table.rows:
                name = next((each for each in ("chains", "PyTorch", "JAX") if row.name.startswith(each)), None)
                if row.note:
                    print(f"{contest.key}: {row.name}: {row.note}", file=sys.stderr, flush=True)
                if name is not None and row.seconds:
                    best[name] = min(best.get(name, float("inf")), *(1e6 * each for each in row.seconds))
            print(json.dumps([contest.key, best]), flush=True)


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(each) for each in sys.argv[1].split(",")})
    _race("tiny" in sys.argv[2:])
