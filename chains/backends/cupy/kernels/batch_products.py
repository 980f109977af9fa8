"""A kernel for many small matrix products, of each sample and each of its parts."""

from __future__ import annotations

from dataclasses import replace

from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Pointers, Source, blocks, each_element
from chains.program.operations import BatchMatMul


def batch_matmul(source: Source, operation: BatchMatMul) -> list[Command]:
    """A thread adds up one element of a result. Neighbouring threads read neighbouring numbers of a row of b."""
    (out,), (a, b) = operation.outs, operation.ins
    row = replace(a, shape=(*a.shape[:-1], 1), strides=(*a.strides[:-1], 0))
    column = replace(b, shape=(*b.shape[:-2], 1, b.shape[-1]), strides=(*b.strides[:-2], 0, b.strides[-1]))
    space, pointers = Space(out.shape, [out, row, column]), Pointers()
    into, left, right = pointers(out.buffer, write=True), pointers(a.buffer), pointers(b.buffer)
    if operation.accumulate:
        pointers(out.buffer)
    body = [
        *space.kept_lines,
        f"const Index at = {space.index_of(row)}, beside = {space.index_of(column)};",
        f"{ctype(out.dtype)} total = 0;",
        f"for (Index k = 0; k < {a.shape[-1]}; ++k)",
        f"    total += {left}[at + k * {a.strides[-1]}] * {right}[beside + k * {b.strides[-2]}];",
        f"{into}[{space.index_of(out)}] {'+=' if operation.accumulate else '='} total;",
    ]
    grid = lambda batch: (blocks(count(space.kept, batch)), 1)  # noqa: E731
    return [pointers.launch(source, "batch_matmul", each_element(count_text(space.kept), body), grid, label=operation.label)]
