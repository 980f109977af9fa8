"""Loops over blocks of one size while they fit and then over the rest, and long sums in several accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce

from chains.backends.native.llvm.emit import Function, Value, integer, number

Step = Callable[[Value, list[Value]], list[Value]]
MaskedStep = Callable[[Value, Sequence[Value], Value | None], list[Value]]
Combine = Callable[[Value, Value], Value]

ADDITIONS_IN_FLIGHT = 8  # about their latency in cycles times the additions begun per cycle
MAX_ACCUMULATORS = 4  # accumulators of each of a few sums: additions do not wait for one another


def blocks(f: Function, length: int, size: int, body: Callable[[Value, int], None]) -> None:
    """Call `body` for blocks of `size`, then for the rest."""
    whole = length // size * size
    if whole:
        f.loop(integer(0), integer(whole), size, lambda i, _: body(i, size))
    if length > whole:
        body(integer(whole), length - whole)


def panels(f: Function, columns: int, lanes: int, panel: int, run: Callable[[Value, list[Value | None]], None]) -> None:
    """Call `run` for panels of up to `panel` vectors of columns, with the first column and a mask for each vector."""
    width = lanes * panel
    whole = columns // width * width
    if whole > width:
        f.loop(integer(0), integer(whole), width, lambda column, _: run(column, [None] * panel))
    elif whole:
        run(integer(0), [None] * panel)
    if columns > whole:
        run(integer(whole), [f.lane_mask(lanes, columns - k) for k in range(whole, columns, lanes)])


def row_blocks(f: Function, begin: Value, end: Value, sizes: Sequence[int], body: Callable[[Value, int], None]) -> None:
    """Call `body` with the start and size of blocks from `begin` to `end`: the first size while it fits, then the next."""
    for size in sizes:

        def step(i: Value, _: list[Value], size: int = size) -> None:
            body(i, size)

        begin, _ = f.loop(begin, f.add(end, 1 - size), size, step)


def accumulators_for(sums: int, waits: bool = False) -> int:
    """The number of accumulators for each of `sums` sums, in a function that `waits` or not."""
    return max(1, min(ADDITIONS_IN_FLIGHT if waits else MAX_ACCUMULATORS, ADDITIONS_IN_FLIGHT // sums))


def accumulate(
    f: Function,
    count: Value,
    accumulators: int,
    step: Step,
    sums: list[Value],
    combine: Combine | None = None,
    neutral: float = 0.0,
) -> list[Value]:
    """``for i in range(count): sums = step(i, sums)``, with `accumulators` accumulators per sum, combined at the end."""
    width = len(sums)

    def steps(i: Value, carried: list[Value]) -> list[Value]:
        return [each for k in range(accumulators) for each in step(f.add(i, k), carried[k * width : (k + 1) * width])]

    start = [*sums, *[number(sums[0].type, neutral)] * (width * (accumulators - 1))]
    position, carried = f.loop(integer(0), f.add(count, 1 - accumulators), accumulators, steps, start)
    if accumulators == 1:
        return carried
    return f.loop(position, count, 1, step, combined(f, carried, width, combine))[1]


def combined(f: Function, accumulators: Sequence[Value], sums: int, combine: Combine | None = None) -> list[Value]:
    """The sums: the first accumulator of each sum, combined with its second, and so on; by default they are added.

    In a function that waits, neighbours are combined, then the results of these, and so on.
    """
    combine = combine or partial(f.binary, "fadd")

    def together(a: list[Value], b: list[Value]) -> list[Value]:
        return [combine(x, y) for x, y in zip(a, b, strict=True)]

    sets = [list(accumulators[k : k + sums]) for k in range(0, len(accumulators), sums)]
    while f.waits and len(sets) > 2:
        sets = [together(*sets[k : k + 2]) if k + 1 < len(sets) else sets[k] for k in range(0, len(sets), 2)]
    return reduce(together, sets)


def along_vectors(f: Function, length: int, lanes: int, step: MaskedStep, sums: Sequence[Value]) -> Sequence[Value]:
    """Carry sums along a run of numbers: `step` gets the start of each vector, the sums, and a mask for the last vector."""
    whole = length // lanes * lanes
    sums = f.loop(integer(0), integer(whole), lanes, lambda k, sums: step(k, sums, None), sums)[1]
    return step(integer(whole), sums, f.lane_mask(lanes, length - whole)) if length > whole else sums


def multiply_add(f: Function, numbers: Iterable[Value], vectors: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
    """The sums, with the products of every number and every vector added."""
    results = []
    for r, x in enumerate(numbers):
        repeated = f.splat(x, vectors[0].type.lanes)
        results += [f.fma(repeated, vector, sums[r * len(vectors) + c]) for c, vector in enumerate(vectors)]
    return results
