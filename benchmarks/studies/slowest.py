"""The programs that take longest to compile, worst first: ``python -m benchmarks.studies.slowest [word ...]``.

They are the gradients of the tests' cases and the second derivatives of networks with loops, in float64; with words, those
whose names contain one. Times are of the processor, in seconds, since other work does not change these much. Nothing is
loaded or kept on disk.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import llvmlite.binding as llvm
import numpy as np
from tqdm import tqdm

from benchmarks.harness.machine import describe
from chains import GRU, LSTM, ODE, Chain, Dense, MSELoss, tanh
from chains.backends.native.compiled import is_small
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.jit import assembly, optimised
from chains.backends.native.llvm.target import processor
from chains.backends.native.support import unsupported
from chains.network import record, record_derivatives
from chains.network.network import network_of
from chains.program.program import Program

RHS = Chain(Dense(2, 8, tanh), Dense(8, 2))
LOOPS = {  # with the shape of a sample
    "GRU": (GRU(2, 8), (20, 2)),
    "LSTM": (LSTM(2, 8), (20, 2)),
    "ODE": (ODE(RHS, (0.0, 0.5, 1.0), "rk4", 10), (2,)),
    "ODE, control": (ODE(RHS, (0.0, 0.5, 1.0), rtol=1e-3, max_steps=40), (2,)),
    "ODE, adjoint": (ODE(RHS, (0.0, 0.5, 1.0), steps=5, adjoint=True), (2,)),
    "ODE, kvaerno3": (ODE(RHS, (0.0, 0.5, 1.0), "kvaerno3", rtol=1e-3, max_steps=12), (2,)),
}
SHOWN = 30
PHASES = ("record", "write", "parse", "passes", "emit")


def programs() -> Iterator[tuple[str, Callable[[], Program]]]:
    """Names, and functions that record the programs."""
    from tests.harness import CASES

    for case in CASES:
        yield f"{case}, gradient", lambda case=case: record.gradient(network_of(case.net()), case.criterion(), np.float64, True)
    for name, (layer, shape) in LOOPS.items():
        network = network_of(Chain(layer, input_shape=shape))
        criterion = record.Criterion(MSELoss(), network.declaration.output_shape)
        for make in (record_derivatives.hessian_product, record_derivatives.gauss_newton_product):
            yield f"{name}, {make.__name__}", lambda make=make, n=network, c=criterion: make(n, c, np.float64)
        yield f"{name}, derivatives", lambda n=network: record_derivatives.derivatives(n, 2, 2, np.float64)


def phases(make: Callable[[], Program]) -> tuple[list[float], str]:
    """Seconds of each of `PHASES`, and the assembly; "" for a program that native does not compile."""
    target = processor(None)
    machine, times = target.machine(), [time.process_time()]
    program = make()
    times.append(time.process_time())
    if unsupported(program) is not None:
        return [0.0] * len(PHASES), ""
    text = compile_program(program, target).text
    times.append(time.process_time())
    llvm.parse_assembly(text).verify()
    times.append(time.process_time())
    optimised(text, machine, vectorize=False)
    times.append(time.process_time())
    assembly(text, target, is_small(program))
    times.append(time.process_time())
    recording, writing, parsing, passes, rest = (later - before for before, later in pairwise(times))
    return [
        recording,
        writing,
        parsing,
        max(0.0, passes - parsing),
        max(0.0, rest - passes),
    ], text  # the latter two repeat others


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only programs whose names contain one of these")
    words = parser.parse_args(arguments).words
    print(*(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), sep="\n")
    chosen = [(name, make) for name, make in programs() if not words or any(word in name for word in words)]
    rows = [(name, *phases(make)) for name, make in tqdm(chosen, disable=None)]
    rows.sort(key=lambda row: -sum(row[1]))
    total = sum(sum(seconds) for _, seconds, _ in rows)
    print(
        f"\n{len(rows)} programs, {total:.1f} s\n{'program':44}{'seconds':>8}",
        *(f"{each:>8}" for each in PHASES),
        "    MB functions",
    )
    for name, seconds, text in rows[:SHOWN]:
        parts = " ".join(f"{each:8.2f}" for each in seconds)
        print(f"{name:44}{sum(seconds):8.2f} {parts} {len(text) / 1e6:6.2f} {text.count('define '):9}")


if __name__ == "__main__":
    main()
