"""Training by several processes over MPI: ``python -m benchmarks.studies.scaling [problem ...] [--ranks 1 2] [--rounds N]``.

Each process has one thread. For each problem and number of processes: a step of all together; what it is made of, the step of
one process on its part of the batch, by all at once, and the message, as many numbers summed over the processes in a loop of
machine code; and what the step takes beyond the sum of both. A model goes past that: up to how many processes each is used to
four fifths, by latency and bandwidth of a network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.machine import describe
from benchmarks.harness.timing import Criterion
from chains import SGD, Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, MSELoss, SquaredLoss, relu, tanh, train, σ
from chains.backends import backend
from chains.program.recorder import Recorder
from chains.support.communicator import check_communicator, own, words_of

# Latency in seconds and bytes a second of a message; `docs/scaling.md` names the sources.
NETWORKS = {
    "Ethernet, 10 Gbit/s": (30e-6, 1.1e9),
    "InfiniBand, 200 Gbit/s": (2e-6, 24e9),
    "NVLink 4 (one machine)": (10e-6, 370e9),
}


def _dense(*layers: Any) -> Callable[[], Chain]:
    return lambda: Chain(*layers)


# Network, loss, optimiser, samples of a batch, and of the target: numbers or labels below so many.
PROBLEMS: dict[str, tuple[Callable[[], Chain], Any, Any, int, int]] = {
    "matrix_exp_10000": (_dense(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), MSELoss(), Adam(1e-3), 10_000, 0),
    "matrix_exp_200": (_dense(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), MSELoss(), Adam(1e-3), 200, 0),
    "mnist_mlp_10": (_dense(Dense(784, 30, σ), Dense(30, 10, σ)), SquaredLoss(), SGD(0.1), 10, 0),
    "lenet5_256": (
        lambda: Chain(
            Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 5, relu), MaxPool(2), Flatten(), Dense(256, 120, relu),
            Dense(120, 84, relu), Dense(84, 10), input_shape=(1, 28, 28),
        ), CrossEntropyLoss(), Adam(3e-4), 256, 10,
    ),
    "wide_1024": (
        _dense(Dense(2048, 4096, relu), Dense(4096, 4096, relu), Dense(4096, 10)), CrossEntropyLoss(), SGD(0.01), 1024, 10,
    ),
}  # fmt: skip


def measure(name: str, rounds: int, seconds: float) -> None:
    """On each process: print, on the first, the seconds of a step, of its computation and of its message as JSON."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    make, loss, optimizer, batch, labels = PROBLEMS[name]
    net, rng = make(), np.random.default_rng(0)
    x = rng.standard_normal((batch, *net.input_shape), np.float32)
    t = rng.integers(0, labels, batch) if labels else rng.standard_normal((batch, *net.output_shape), np.float32)
    own = slice(batch * comm.rank // comm.size, batch * (comm.rank + 1) // comm.size)
    start = net.init(0)

    def steps(x: Any, t: Any, comm: Any) -> Callable[[int], None]:
        p = start.copy()
        return lambda count: void(train(net, p, x, t, loss, optimizer, epochs=count, comm=comm, check_finite=False))

    works = {"step": steps(x, t, comm), "compute": steps(x[own], t[own], None), "message": messages(comm, net.n_params + 1)}
    found = {work: timed(comm, run, rounds, seconds) for work, run in works.items()}
    if comm.rank == 0:
        print(json.dumps({**found, "numbers": net.n_params + 1}), flush=True)


def void(_: object) -> None: ...


def messages(comm: Any, numbers: int) -> Callable[[int], None]:
    """Sums over the processes in a loop of machine code."""
    ops = Recorder("message", np.float32, parallel=True)
    sums = ops.external("p", (numbers,), role="state")
    ops.all_reduce(sums, sums)
    ops.fill(ops.external("value", (), role="output"), 0.0)
    arrays = {"p": np.zeros(numbers, np.float32), "communicator": words_of(own(check_communicator(comm)), np.dtype(np.float32))}
    native = backend("native")
    feed = native.feed(native.bind(ops.finish(), 1, arrays), {}, np.arange(1))
    return lambda count: void(feed(0, np.empty(count)))


def timed(comm: Any, run: Callable[[int], None], rounds: int, length: float) -> float:
    """The median of seconds a unit, the slowest process's, in runs of about `length` seconds."""
    from mpi4py import MPI

    def seconds(count: int) -> float:
        comm.barrier()
        begun = time.perf_counter()
        run(count)
        return float(comm.allreduce(time.perf_counter() - begun, MPI.MAX))

    run(2)
    count = 2
    while (taken := seconds(count)) < length / 4:
        count *= 4
    count = max(2, int(count * length / taken))
    return median(seconds(count) for _ in range(rounds)) / count


def together(name: str, ranks: int, rounds: int, seconds: float, level: str = "funneled") -> dict[str, float]:
    """What `measure` prints, from so many processes."""
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise SystemExit("there is no mpiexec: pip install 'chains-nn[mpi]'")
    cores = len(os.sched_getaffinity(0))
    polite = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if ranks > cores else {}
    bind = ["-bind-to", "core"] if ranks <= cores else []
    own = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.studies.scaling", name, "--measure"]
    own += ["--rounds", str(rounds), "--seconds", str(seconds)]
    settings = os.environ | polite | {"CHAINS_NUM_THREADS": "1", "MPI4PY_RC_THREAD_LEVEL": level}
    done = subprocess.run([mpiexec, *bind, "-n", str(ranks), *own], env=settings, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def predicted(compute: float, numbers: float, ranks: int, latency: float, bandwidth: float) -> float:
    """The seconds of a step: its computation divided, and a sum over the processes in a ring or a tree, whichever is faster."""
    nbytes, rounds = 4 * numbers, int(np.ceil(np.log2(ranks)))
    tree = rounds * (latency + nbytes / bandwidth)
    ring = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * nbytes / bandwidth
    return compute / ranks + min(tree, ring)


def most_useful(compute: float, numbers: float, latency: float, bandwidth: float) -> int:
    """The largest power of two of processes that still makes use of four fifths of each; 1 where no number does."""
    useful = [2**k for k in range(1, 13) if compute / 2**k >= 0.8 * predicted(compute, numbers, 2**k, latency, bandwidth)]
    return max(useful, default=1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.scaling", description="Training by several processes over MPI."
    )
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a timed run")
    parser.add_argument("--levels", action="store_true", help="also messages with MPI_THREAD_MULTIPLE, mpi4py's default")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    unknown = [name for name in chosen.problems if name not in PROBLEMS]
    if unknown:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(PROBLEMS)}")
    if chosen.measure:
        measure(chosen.problems[0], chosen.rounds, chosen.seconds)
        return 0
    print("\n".join(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), "", sep="\n", flush=True)
    columns = "".join(f"{text:>13}" for text in ("numbers", "processes", "step", "compute", "message", "rest"))
    print(f"{'us, one thread a process':26}{columns}{'speed':>7}")
    criteria, alone = [], {}
    for name in chosen.problems or PROBLEMS:
        for ranks in chosen.ranks:
            crowded = ranks > len(os.sched_getaffinity(0))  # MPICH gives way to others with this level only
            row = together(name, ranks, chosen.rounds, chosen.seconds, "multiple" if crowded else "funneled")
            step, compute, message = (row[each] * 1e6 for each in ("step", "compute", "message"))
            alone.setdefault(name, row)
            speed, rest = alone[name]["step"] / row["step"], step - compute - message
            print(
                f"{name:26}{row['numbers']:13,}{ranks:13}{step:13,.1f}{compute:13,.1f}{message:13,.1f}{rest:13,.1f}{speed:7.2f}",
                flush=True,
            )
            if chosen.levels and ranks > 1 and not crowded:
                multiple = together(name, ranks, chosen.rounds, chosen.seconds, "multiple")
                slower = f"{multiple['step'] * 1e6:13,.1f}{'':13}{multiple['message'] * 1e6:13,.1f}"
                print(f"{'  MPI_THREAD_MULTIPLE':52}{slower}", flush=True)
            if ranks == 2:
                criteria += _criteria(name, step, compute, message, speed)
    print("\nProcesses of which each is still used to four fifths, by the model")
    print(f"{'':26}" + "".join(f"{network:>25}" for network in NETWORKS))
    for name, row in alone.items():
        counts = [most_useful(row["step"], row["numbers"], *network) for network in NETWORKS.values()]
        print(f"{name:26}" + "".join(f"{count:25,}" for count in counts))
    print("", *criteria, sep="\n")
    return 0


def _criteria(name: str, step: float, compute: float, message: float, speed: float) -> list[Criterion]:
    """What is wanted of two processes."""
    if name == "matrix_exp_200":
        return [Criterion("matrix_exp_200: us a step beyond computation and MPI's own time", step - compute - message, "<= 1")]
    if name == "matrix_exp_10000":
        return [Criterion("matrix_exp_10000: two processes against one", speed, ">= 1.6")]
    if name == "wide_1024":
        return [Criterion("wide_1024: a step over its computation", step / compute, "<= 1.05")]
    return []


if __name__ == "__main__":
    sys.exit(main())
