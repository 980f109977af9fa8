"""Sums and maxima without atomics: every number is added in an order that depends on the shapes alone.

A block is `width` results wide and `depth` threads deep: each thread sums its part of the terms, and the threads of one result
then add up in shared memory, pair by pair. Long sums are split among blocks; a second kernel adds their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype, literal
from chains.backends.cupy.source.commands import THREADS, Command, Grid, Pointers, Source, indented
from chains.backends.cupy.source.maps import Run, run_lines
from chains.lowering.axes import Axis
from chains.lowering.c_language import converted
from chains.program.operations import Reduce
from chains.program.view import Batch, Buffer, View

MIN_THREAD_TERMS = 8  # numbers that a thread adds at least, if a sum is split
MIN_BLOCKS = 528  # at least, if there is enough work: four for each multiprocessor of a large GPU
MAX_THREAD_TERMS = 32  # a single thread does sums up to this length

Temporary = Callable[[str, "np.dtype[Any]", Callable[[int], int]], Buffer]  # a name, a type, how many elements


@dataclass(frozen=True)
class Shape:
    """The division of a reduction: a block is `width` threads wide and `depth` threads deep; long sums are `split`."""

    width: int
    depth: int
    results: Callable[[int], int]
    terms: Callable[[int], int]
    split: bool = True

    def columns(self, batch: int) -> int:
        return -(-self.results(batch) // self.width)

    def parts(self, batch: int) -> int:
        """The number of blocks that share a result."""
        if not self.split:
            return 1
        most = -(-self.terms(batch) // (self.depth * MIN_THREAD_TERMS))
        return max(1, min(most, -(-MIN_BLOCKS // self.columns(batch)), 1024))

    def grid(self, batch: int) -> Grid:
        return self.columns(batch), self.parts(batch)


@dataclass(frozen=True)
class Terms:
    """Statements that compute one term, and the variable with its value."""

    lines: Sequence[str]
    value: str


def reduction(
    source: Source, operation: Reduce, run: Run | None, stored: Callable[[Buffer], bool], temporary: Temporary
) -> list[Command]:
    """The launches for a reduction, of the results of `run` if it is given."""
    (out,), (a,) = operation.outs, operation.ins
    missing = a.ndim - out.ndim
    reduced = {k for k in range(a.ndim) if k < missing or out.shape[k - missing] != a.shape[k]}
    views = [*run.outs, *run.ins, a, out] if run else [a, out]
    space = Space(a.shape, views, reduced, kept="o", inner="r")
    pointers = Pointers()
    if run:
        lines, known = run_lines(run, space, pointers, stored)
        terms = Terms(lines, known[a])
    else:
        terms = Terms([], converted(f"{pointers(a.buffer)}[{space.index_of(a)}]", ctype(a.dtype), ctype(out.dtype)))
    shape = spread(space, a)
    return reduce_commands(source, operation.kind, space, pointers, terms, out, operation.label, temporary, shape)


def reduce_commands(
    source: Source,
    kind: str,
    space: Space,
    pointers: Pointers,
    terms: Terms,
    out: View,
    label: str,
    temporary: Temporary,
    shape: Shape | None = None,
    hint: str = "",
) -> list[Command]:
    """Launches that fill `out` with the reduction of the `terms`, one for each element of `space`; `hint` names the kernel."""
    shape = shape or spread(space, None)
    type_ = ctype(out.dtype)
    into = f"{pointers(out.buffer, write=True)}[{space.index_of(out)}]"
    if not shape.split:
        finish = [f"{into} = total;"]
    else:
        partial = temporary("partial", out.dtype, lambda batch: shape.parts(batch) * shape.results(batch))
        part = f"{pointers(partial, write=True)}[blockIdx.y * results + o]"
        finish = [f"if (parts == 1) {into} = total;", f"else {part} = total;"]
    body = [
        f"const Index results = {count_text(space.kept)};",
        f"const Index terms = {count_text(space.inner)};",
        f"const Index o = blockIdx.x * (Index){shape.width} + threadIdx.x;",
        f"{type_} total = {start(kind, type_)};",
        "const Index each = (terms + parts - 1) / parts;",
        "const Index first = blockIdx.y * each;",
        "const Index last = first + each < terms ? first + each : terms;",
        "if (o < results) {",
        *indented(space.kept_lines),
        f"    for (Index r = first + threadIdx.y; r < last; r += {shape.depth}) {{",
        *indented([*space.inner_lines, *terms.lines, f"total = {join(kind, type_, 'total', terms.value)};"], 2),
        "    }",
        "}",
        *_across(kind, type_, shape),
        "if (o < results && threadIdx.y == 0) {",
        *indented([*space.kept_lines, *finish]),
        "}",
    ]
    commands: list[Command] = [
        pointers.launch(
            source,
            hint or kind,
            body,
            shape.grid,
            block=(shape.width, shape.depth),
            extra=["parts"],
            numbers=lambda batch: (shape.parts(batch),),
            label=label,
        )
    ]
    if shape.split:
        commands.append(_second(source, kind, space, shape, partial, out, label))
    return commands


def _second(source: Source, kind: str, space: Space, first: Shape, partial: Buffer, out: View, label: str) -> Command:
    """The launch that adds up the parts; left out for a single part."""
    shape = Shape(8, 32, first.results, first.parts)
    type_ = ctype(out.dtype)
    pointers = Pointers()
    into, parts = pointers(out.buffer, write=True), pointers(partial)
    body = [
        f"const Index results = {count_text(space.kept)};",
        f"const Index o = blockIdx.x * (Index){shape.width} + threadIdx.x;",
        f"{type_} total = {start(kind, type_)};",
        "if (o < results) {",
        f"    for (Index r = threadIdx.y; r < parts; r += {shape.depth}) {{",
        f"        total = {join(kind, type_, 'total', f'{parts}[r * results + o]')};",
        "    }",
        "}",
        *_across(kind, type_, shape),
        "if (o < results && threadIdx.y == 0) {",
        *indented(space.kept_lines),
        f"    {into}[{space.index_of(out)}] = total;",
        "}",
    ]

    def grid(batch: int) -> Grid | None:
        return (shape.columns(batch), 1) if first.parts(batch) > 1 else None

    return pointers.launch(
        source, f"{kind}_parts", body, grid, block=(8, 32), extra=["parts"], numbers=lambda b: (first.parts(b),), label=label
    )


def _across(kind: str, type_: str, shape: Shape) -> list[str]:
    """Statements that bring the totals of a block's threads together, in those with ``threadIdx.y == 0``."""
    if shape.depth == 1:
        return []
    lines = [
        f"SHARED {type_} shared[{THREADS}];",
        "const int lane = threadIdx.y * blockDim.x + threadIdx.x;",
        "shared[lane] = total;",
    ]
    step = shape.depth // 2
    while step:
        joined = join(kind, type_, "shared[lane]", f"shared[lane + {step * shape.width}]")
        lines += ["__syncthreads();", f"if (threadIdx.y < {step}) shared[lane] = {joined};"]
        step //= 2
    return [*lines, "total = shared[lane];"]


def start(kind: str, type_: str) -> str:
    return literal(0.0 if kind == "sum" else -np.inf, type_)


def join(kind: str, type_: str, a: str, b: str) -> str:
    return f"{a} + {b}" if kind == "sum" else f"max_{type_[0]}({a}, {b})"


def spread(space: Space, a: View | None) -> Shape:
    """The width and depth of the blocks: neighbouring threads should read neighbouring numbers."""

    def results(batch: int) -> int:
        return count(space.kept, batch)

    def terms(batch: int) -> int:
        return count(space.inner, batch)

    grows = any(isinstance(axis.extent, Batch) for axis in space.inner)
    fixed_results = None if any(isinstance(axis.extent, Batch) for axis in space.kept) else results(1)
    if not grows and terms(1) <= MAX_THREAD_TERMS:
        return Shape(THREADS, 1, results, terms, split=False)
    along = a is None or not space.kept or step_in_memory(space.inner, space, a) < step_in_memory(space.kept, space, a)
    if along:
        depth = THREADS if grows else min(THREADS, 1 << (-(-terms(1) // 4) - 1).bit_length())
        return Shape(THREADS // depth, depth, results, terms)
    width = 32
    if fixed_results is not None:
        width = min(width, 1 << max(0, (fixed_results - 1).bit_length()))
    return Shape(width, THREADS // width, results, terms)


def step_in_memory(axes: Sequence[Axis], space: Space, a: View) -> int:
    """The shortest step in memory along some of these axes."""
    steps = [space.step(axis, a) for axis in axes]
    return min((step for step in steps if step), default=1 << 62)
