"""Loops over blocks of one size while they fit and then over the rest, and long sums in several accumulators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.backends.native.llvm.emit import Function, Value, integer

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

        def step(column: Value, _: list[Value]) -> list[Value]:
            run(column, [None] * panel)
            return []

        f.loop(integer(0), integer(whole), width, step)
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


def accumulators_for(sums: int) -> int:
    """The number of accumulators for each of `sums` sums."""
    return max(1, min(MAX_ACCUMULATORS, ADDITIONS_IN_FLIGHT // sums))


def accumulate(
    f: Function,
    count: Value,
    accumulators: int,
    step: Callable[[Value, list[Value]], list[Value]],
    sums: list[Value],
    neutral: Value,
    combine: Callable[[Value, Value], Value],
) -> list[Value]:
    """``for i in range(count): sums = step(i, sums)``, with `accumulators` accumulators per sum, combined at the end."""
    width = len(sums)

    def steps(i: Value, carried: list[Value]) -> list[Value]:
        return [each for k in range(accumulators) for each in step(f.add(i, k), carried[k * width : (k + 1) * width])]

    start = [*sums, *[neutral] * (width * (accumulators - 1))]
    position, carried = f.loop(integer(0), f.add(count, 1 - accumulators), accumulators, steps, start)
    if accumulators == 1:
        return carried
    return f.loop(position, count, 1, step, combined(carried, width, combine))[1]


def combined(accumulators: Sequence[Value], sums: int, combine: Callable[[Value, Value], Value]) -> list[Value]:
    """The sums: the first accumulator of each sum, combined with its second, and so on."""
    result = list(accumulators[:sums])
    for begin in range(sums, len(accumulators), sums):
        result = [combine(x, y) for x, y in zip(result, accumulators[begin : begin + sums], strict=True)]
    return result
