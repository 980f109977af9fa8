"""Long sums in several sets side by side, so that additions need not wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.backends.native.llvm.emit import Function, Value, integer


def independent_sets(sums: int) -> int:
    """How many sets of so many sums to run side by side, so that additions need not wait for one another."""
    return max(1, min(4, 8 // sums))


def in_sets(
    f: Function,
    count: Value,
    sets: int,
    step: Callable[[Value, list[Value]], list[Value]],
    sums: list[Value],
    neutral: Value,
    combine: Callable[[Value, Value], Value],
) -> list[Value]:
    """``for i in range(count): sums = step(i, sums)``, in independent sets of sums, which are combined at the end."""
    width = len(sums)

    def steps(i: Value, carried: list[Value]) -> list[Value]:
        return [each for k in range(sets) for each in step(f.add(i, k), carried[k * width : (k + 1) * width])]

    position, carried = f.loop(integer(0), f.add(count, 1 - sets), sets, steps, [*sums, *[neutral] * (width * (sets - 1))])
    if sets == 1:
        return carried
    return f.loop(position, count, 1, step, joined_sets(carried, width, combine))[1]


def joined_sets(sums: Sequence[Value], width: int, combine: Callable[[Value, Value], Value]) -> list[Value]:
    """Sets of so many sums combined into one."""
    result = list(sums[:width])
    for begin in range(width, len(sums), width):
        result = [combine(x, y) for x, y in zip(result, sums[begin : begin + width], strict=True)]
    return result
