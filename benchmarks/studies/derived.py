"""Derived pullbacks beside those written by hand, of the same layers: ``python -m benchmarks.studies.derived``.

A layer of the library is recorded as it is, and as if its class had no pullback. *step* is a step of training with Adam on
native, *scratch* the memory of that step, *recording* the time until its program is recorded. Ratios are derived over
hand-written, of the shortest times; both take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from chains import GRU, Adam, Attention, Chain, Conv, Dense, Flatten, Layer, LayerNorm, SquaredLoss, num_threads
from chains.backends import backend
from chains.backends.base import Binding
from chains.layers import GRUCell, node
from chains.network import record
from chains.network.network import network_of
from chains.program.program import Program

DTYPE, MILLISECONDS = np.float32, 2  # of a turn of steps, about


class Problem(NamedTuple):
    """A network, the class of the layer whose pullback is compared, and the samples of a step."""

    net: Chain
    layer: type[Layer]
    batch: int


def problems() -> dict[str, Problem]:
    images = Conv(1, 8, (3, 3), "relu"), Conv(8, 16, (3, 3), "tanh"), Flatten(), Dense(16 * 64, 8)
    sequences = Attention(16, 4), Flatten(), Dense(12 * 16, 8)
    return {
        "Dense": Problem(Chain(Dense(16, 64, "tanh"), Dense(64, 64, "gelu"), Dense(64, 8)), Dense, 64),
        "GRU": Problem(Chain(GRU(8, 32, return_sequences=True), input_shape=(20, 8)), GRUCell, 32),
        "GRU, checkpoints": Problem(Chain(GRU(8, 32, checkpoint_every=5), input_shape=(20, 8)), GRUCell, 32),
        "LayerNorm": Problem(Chain(Dense(16, 64, "tanh"), LayerNorm(64), Dense(64, 8)), LayerNorm, 64),
        "Attention": Problem(Chain(*sequences, input_shape=(12, 16)), Attention, 32),
        "Conv": Problem(Chain(*images, input_shape=(1, 12, 12)), Conv, 32),
    }


@contextmanager
def derived(layer: type[Layer]) -> Iterator[None]:
    """A context in which the pullback of a class of layers is derived, though it has one."""
    own = node.derives
    node.derives = lambda each: isinstance(each, layer) or own(each)
    try:
        yield
    finally:
        node.derives = own


def recorded(problem: Problem, by_hand: bool) -> Program:
    """The program of a step of training."""
    net = network_of(problem.net)
    criterion = record.Criterion(SquaredLoss(), net.declaration.output_shape)
    if by_hand:
        return record.training_step(net, criterion, Adam(), DTYPE)
    with derived(problem.layer):
        return record.training_step(net, criterion, Adam(), DTYPE)


def bound(program: Program, problem: Problem) -> Binding:
    """A step that can run, with small parameters and inputs."""
    rng = np.random.default_rng(0)
    binding = backend("native").bind(program, problem.batch, {})
    for name, array in binding.arrays.items():
        if program.buffers[name].data is None:
            array[...] = 0.1 * rng.normal(size=array.shape) ** 2 if array.ndim else 1.0
    return binding


def shortest(runs: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """The shortest seconds of each, in turns."""
    found = [float("inf")] * len(runs)
    for _ in range(repetitions):
        for k, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            found[k] = min(found[k], time.perf_counter() - begin)
    return found


def row(name: str, problem: Problem, repetitions: int) -> str:
    programs = [recorded(problem, by_hand) for by_hand in (False, True)]
    steps = [bound(program, problem) for program in programs]
    once = shortest([steps[1].run], 5)[0]
    turn = range(max(1, int(1e-3 * MILLISECONDS / once)))
    runs = [lambda each=each: [each.run() for _ in turn] for each in steps]  # type: ignore[misc]
    taken = shortest(runs, repetitions)
    recording = shortest([lambda: recorded(problem, False), lambda: recorded(problem, True)], repetitions // 10)
    scratch = [each.scratch.fixed_bytes + problem.batch * each.scratch.bytes_per_sample for each in programs]
    ratios = [f"{1e6 * taken[1] / len(turn):.1f}"] + [f"{a / b:.2f}" for a, b in (taken, scratch, recording)]
    operations = " and ".join(str(len(each.operations)) for each in programs)
    return f"| {name} | {' | '.join(ratios)} | {operations} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = problems()
    parser.add_argument("--only", nargs="+", choices=known, default=list(known))
    parser.add_argument("--repetitions", type=int, default=200, help="of steps; a tenth of recording")
    chosen = parser.parse_args(arguments)
    print("| layer | step by hand, us | step | scratch | recording | operations, derived and by hand |")
    print("| --- | --- | --- | --- | --- | --- |")
    with num_threads(1):
        for name in chosen.only:
            print(row(name, known[name], chosen.repetitions), flush=True)


if __name__ == "__main__":
    main()
