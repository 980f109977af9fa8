"""Several accumulators for each of a few long sums, so that additions do not wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.backends.native.llvm.emit import Function, Value, integer

ADDITIONS_IN_FLIGHT = 8  # additions under way at once: about their latency in cycles times the additions begun per cycle
MAX_ACCUMULATORS = 4  # accumulators per sum


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
