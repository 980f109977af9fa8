"""The problems of PINNacle, solved by `solve` unasked: ``python -m benchmarks.studies.pinnacle --data FOLDER``.

All have the same network, 32 units of tanh in each of three layers, the same number of points, guessed scales and a limit of
seconds of one processor, which other work on the machine does not change; nothing is chosen by problem. A row has the relative
L2 error over all outputs, whether `solve` says that it has succeeded, the errors of the paper's plain network and best method,
the seconds and the iterations. Five of the problems need the folder ``ref`` of
https://github.com/i207M/PINNacle as FOLDER; the others have solutions in closed form or by a numerical method.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from benchmarks.studies.pinnacle_cases import CASES, LEFT_OUT, Context
from chains import Chain, Dense, ResidualProblem, num_threads, solve, tanh

WIDTH = 32
EQUAL = 0.1  # the difference of errors that still counts as equal, as a share of the best
BEST = {
    "Burgers1d-C": 1.45e-2, "Burgers2d-C": 2.60e-1, "Poisson2d-C": 1.23e-2, "Poisson2d-CG": 1.43e-2, "Poisson3d-CG": 9.47e-2,
    "Poisson2d-MS": 5.90e-1, "Heat2d-VC": 2.12e-1, "Heat2d-MS": 6.21e-2, "Heat2d-CG": 2.39e-2, "Heat2d-LT": 9.99e-1,
    "NS2d-C": 3.60e-2, "NS2d-CG": 8.24e-2, "NS2d-LT": 9.70e-1, "Wave1d-C": 9.79e-2, "Wave2d-CG": 7.94e-1,
    "Wave2d-MS": 9.82e-1, "GS": 7.99e-2, "KS": 9.57e-1, "PNd": 4.67e-4, "HNd": 1.19e-4, "PInv": 2.45e-2, "HInv": 5.26e-2,
}  # fmt: skip
PLAIN = {"Burgers1d-C": 1.45e-2, "Heat2d-MS": 6.21e-2, "NS2d-C": 4.70e-2, "HNd": 3.61e-1, "HInv": 1.57}


@contextmanager
def processor_seconds() -> Iterator[None]:
    """Within it `solve` runs on one thread, and its limit of seconds counts those of the processor."""
    with (
        num_threads(1),
        patch.object(sys.modules["chains.solving.solve"], "time", SimpleNamespace(perf_counter=time.process_time)),
    ):
        yield


@dataclass(frozen=True)
class Outcome:
    """What `solve` ended with."""

    error: float  # relative L2, over all outputs
    seconds: float  # of the processor
    iterations: int
    success: bool
    message: str


def solved(name: str, folder: Path, seed: int, seconds: float, iterations: int) -> Outcome:
    """The outcome of one problem."""
    case = CASES[name](Context(np.random.default_rng(seed), folder))
    places, solution = case.solution
    problem = ResidualProblem(tuple(case.coordinates), tuple(solution), case.terms, scales={})
    hidden = [Dense(WIDTH, WIDTH, tanh), Dense(WIDTH, WIDTH, tanh)]
    net = Chain(Dense(len(case.coordinates), WIDTH, tanh), *hidden, Dense(WIDTH, len(solution)))
    begin = time.process_time()
    with processor_seconds():
        found = solve(
            net, net.init(seed, np.float64), problem, seconds=seconds, every=100, iterations=iterations, progress=False
        )
    taken = time.process_time() - begin
    values, exact = problem.evaluate(net, found.p, places), np.stack([*solution.values()])
    error = np.linalg.norm(np.stack([values[each] for each in solution]) - exact) / np.linalg.norm(exact)
    return Outcome(float(error), taken, found.iterations[-1], found.success, found.message)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", choices=[*BEST, []], help="problems, by default all: " + ", ".join(BEST)
    )
    parser.add_argument("--data", type=Path, default=Path("ref"), help="the folder of reference solutions")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of a processor; no round of 100 iterations begins after them"
    )
    parser.add_argument("--iterations", type=int, default=10**6, help="the most iterations, on a machine with other work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--messages", action="store_true", help="print the message of each solution")
    given = parser.parse_args(arguments)
    print("| problem | error | success | plain network | best of eleven methods | | seconds | iterations |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, best in BEST.items():
        if given.names and name not in given.names:
            continue
        plain = f"{PLAIN[name]:.1e}" if name in PLAIN else ""
        if name in LEFT_OUT:
            print(f"| {name} | {LEFT_OUT[name]} | | {plain} | {best:.1e} | | | |")
            continue
        try:
            found = solved(name, given.data, given.seed, given.seconds, given.iterations)
        except FileNotFoundError as error:
            print(f"| {name} | there is no {error.filename}: pass --data | | {plain} | {best:.1e} | | | |")
            continue
        close = abs(found.error - best) <= EQUAL * best
        words = "yes" if found.success else "no", "equal" if close else "won" if found.error < best else "lost"
        print(
            f"| {name} | {found.error:.1e} | {words[0]} | {plain} | {best:.1e} | {words[1]} | {found.seconds:.0f} "
            f"| {found.iterations} |",
            flush=True,
        )
        if given.messages:
            print(f"  {found.message}")


if __name__ == "__main__":
    main()
