"""Loops over blocks of one size while they fit, then over the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.backends.native.llvm.emit import Function, Value, integer


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
