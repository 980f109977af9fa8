"""Sums and maxima without atomics: every number is added in an order that depends on the shapes alone.

A block is `width` results wide and `depth` threads deep: each thread goes through its part of what is summed, and the
threads of one result then add up in shared memory, pair by pair. Long sums are split among blocks, whose parts
a second kernel adds. Where memory allows it, a thread takes several terms of a result at a time, or several results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.backends.cupy.source.axes import Axis, Space, count, count_text
from chains.backends.cupy.source.c_source import converted, ctype, literal
from chains.backends.cupy.source.commands import THREADS, Command, Grid, Pointers, Source, indented
from chains.backends.cupy.source.fusion import Run, run_lines
from chains.backends.cupy.source.lanes import Begins, Lanes, divides, in_lanes, lane_count, read_by
from chains.program.operations import Reduce
from chains.program.view import Batch, Buffer, View

LEAST_THREAD_TERMS = 8  # numbers a thread adds at least, where a sum is split
LEAST_BLOCKS = 528  # wanted at least: four for each multiprocessor of a large GPU
MOST_THREAD_TERMS = 32  # sums as short as this are a thread's work

Temporary = Callable[[str, "np.dtype[Any]", Callable[[int], int]], Buffer]  # a name, a type, how many elements


@dataclass(frozen=True)
class Shape:
    """How a reduction is spread: a block is `width` threads wide and `depth` threads deep; long sums are `split`.

    A thread takes `lanes` terms at a time where it goes `along` them in memory, otherwise so many results.
    """

    width: int
    depth: int
    results: Callable[[int], int]
    terms: Callable[[int], int]
    split: bool = True
    along: bool = False
    lanes: int = 1

    @property
    def own(self) -> int:
        """How many results a thread has."""
        return 1 if self.along else self.lanes

    def wider(self, lanes: int) -> Shape:
        """The same with so many lanes; a block has as many results as before."""
        width = self.width if self.along else self.width // lanes
        return replace(self, width=width, depth=THREADS // width, lanes=lanes)

    def columns(self, batch: int) -> int:
        return -(-self.results(batch) // (self.width * self.own))

    def parts(self, batch: int) -> int:
        """How many blocks share a result."""
        if not self.split:
            return 1
        most = -(-self.terms(batch) // (self.depth * LEAST_THREAD_TERMS))
        return max(1, min(most, -(-LEAST_BLOCKS // self.columns(batch)), 1024))

    def grid(self, batch: int) -> Grid:
        return self.columns(batch), self.parts(batch)


@dataclass(frozen=True)
class Terms:
    """What is reduced: statements for one term and the variable that holds it then; where there are `lanes`, for several."""

    lines: Sequence[str]
    value: str
    lanes: Lanes | None = None
    lane: str = ""


def reduction(
    source: Source,
    operation: Reduce,
    run: Run | None,
    stored: Callable[[Buffer], bool],
    temporary: Temporary,
    begins: Begins,
) -> list[Command]:
    """The launches for a reduction, of what `run` computes where that is given."""
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
    read, written = (read_by(run), run.stored(stored)) if run else ([a], [])
    axes = space.inner if shape.along else space.kept
    lanes = lane_count(space, axes, read, written, begins) if shape.split else 1
    if lanes > 1 and (shape.along or divides(axes[-1], lanes)):
        several = in_lanes(run, read, space, axes[-1], lanes, begins, pointers, stored)
        value = several.values[a] if run else converted(several.values[a], ctype(a.dtype), ctype(out.dtype))
        terms, shape = replace(terms, lanes=several, lane=value), shape.wider(lanes)
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
    type_, own = ctype(out.dtype), shape.own
    place = space.index_of(out) + (f" + u * {space.step(space.kept[-1], out)}" if own > 1 else "")
    into = f"{pointers(out.buffer, write=True)}[{place}]"
    if not shape.split:
        finish = [f"{into} = total;"]
    else:
        partial = temporary("partial", out.dtype, lambda batch: shape.parts(batch) * shape.results(batch))
        part = f"{pointers(partial, write=True)}[blockIdx.y * results + o{' + u' if own > 1 else ''}]"
        finish = [f"if (parts == 1) {into} = total;", f"else {part} = total;"]
    if own > 1:
        finish = [f"for (int u = 0; u < {own}; ++u) {{", f"    const {type_} total = totals[u];", *indented(finish), "}"]
    unit = shape.lanes if shape.along else 1
    body = [
        f"const Index results = {count_text(space.kept)};",
        f"const Index terms = {count_text(space.inner)};",
        f"const Index o = (blockIdx.x * (Index){shape.width} + threadIdx.x) * {own};",
        *_zeros(kind, type_, shape),
        f"const Index each = (terms + parts * {unit} - 1) / (parts * {unit}) * {unit};",
        "const Index first = blockIdx.y * each;",
        "const Index last = first + each < terms ? first + each : terms;",
        "if (o < results) {",
        *indented([*space.kept_lines, *_own_terms(kind, type_, space, shape, terms)]),
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


def _zeros(kind: str, type_: str, shape: Shape) -> list[str]:
    """A thread's total, or one for each lane, with nothing in it."""
    if shape.lanes == 1:
        return [f"{type_} total = {start(kind, type_)};"]
    return [f"{type_} totals[{shape.lanes}] = {{ {', '.join([start(kind, type_)] * shape.lanes)} }};"]


def _own_terms(kind: str, type_: str, space: Space, shape: Shape, terms: Terms) -> list[str]:
    """Statements that add a thread's share of the terms, of those from number `first` to before number `last`."""

    def loop(begin: str, end: str, step: int, lines: Sequence[str]) -> list[str]:
        head = f"for (Index r = {begin}; r < {end}; r += {step}) {{"
        return [head, *indented([*space.inner_lines, *lines]), "}"]

    def alone(total: str) -> list[str]:
        return [*terms.lines, f"{total} = {join(kind, type_, total, terms.value)};"]

    if terms.lanes is None:
        return loop("first + threadIdx.y", "last", shape.depth, alone("total"))
    several = terms.lanes.lines([f"totals[u] = {join(kind, type_, 'totals[u]', terms.lane)};"])
    if not shape.along:
        return loop("first + threadIdx.y", "last", shape.depth, several)
    lanes = shape.lanes
    lines = loop(f"first + threadIdx.y * {lanes}", f"last - {lanes - 1}", shape.depth * lanes, several)
    if divides(space.inner[-1], lanes):
        return lines
    return [*lines, *loop(f"last - (last - first) % {lanes} + threadIdx.y", "last", shape.depth, alone("totals[0]"))]


def _second(source: Source, kind: str, space: Space, first: Shape, partial: Buffer, out: View, label: str) -> Command:
    """The launch that adds up the parts; left out where there is one."""
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
    lines = []
    if shape.along and shape.lanes > 1:
        lines.append(f"{type_} total = {_tree(kind, type_, [f'totals[{u}]' for u in range(shape.lanes)])};")
    if shape.depth == 1:
        return lines
    own = shape.own
    each, number = (f"for (int u = 0; u < {own}; ++u) ", f"lane + u * {THREADS}") if own > 1 else ("", "lane")
    total = "totals[u]" if own > 1 else "total"
    lines += [
        f"SHARED {type_} shared[{THREADS * own}];",
        "const int lane = threadIdx.y * blockDim.x + threadIdx.x;",
        f"{each}shared[{number}] = {total};",
    ]
    step = shape.depth // 2
    while step:
        joined = join(kind, type_, f"shared[{number}]", f"shared[{number} + {step * shape.width}]")
        lines += ["__syncthreads();", f"if (threadIdx.y < {step}) {each}shared[{number}] = {joined};"]
        step //= 2
    return [*lines, f"{each}{total} = shared[{number}];"]


def _tree(kind: str, type_: str, totals: Sequence[str]) -> str:
    """All totals, joined pair by pair."""
    if len(totals) == 1:
        return totals[0]
    half = len(totals) // 2
    first, second = _tree(kind, type_, totals[:half]), _tree(kind, type_, totals[half:])
    return f"({join(kind, type_, first, second)})"


def start(kind: str, type_: str) -> str:
    return literal(0.0 if kind == "sum" else -np.inf, type_)


def join(kind: str, type_: str, a: str, b: str) -> str:
    return f"{a} + {b}" if kind == "sum" else f"max_{type_[0]}({a}, {b})"


def spread(space: Space, a: View | None) -> Shape:
    """How wide and deep the blocks are: threads beside each other should read numbers beside each other."""

    def results(batch: int) -> int:
        return count(space.kept, batch)

    def terms(batch: int) -> int:
        return count(space.inner, batch)

    grows = any(isinstance(axis.extent, Batch) for axis in space.inner)
    fixed_results = None if any(isinstance(axis.extent, Batch) for axis in space.kept) else results(1)
    if not grows and terms(1) <= MOST_THREAD_TERMS:
        return Shape(THREADS, 1, results, terms, split=False)
    along = a is None or not space.kept or step_in_memory(space.inner, space, a) < step_in_memory(space.kept, space, a)
    if along:
        depth = THREADS if grows else min(THREADS, 1 << (-(-terms(1) // 4) - 1).bit_length())
        return Shape(THREADS // depth, depth, results, terms, along=True)
    width = 32
    if fixed_results is not None:
        width = min(width, 1 << max(0, (fixed_results - 1).bit_length()))
    return Shape(width, THREADS // width, results, terms)


def step_in_memory(axes: Sequence[Axis], space: Space, a: View) -> int:
    """The shortest step in memory along some of these axes."""
    steps = [space.step(axis, a) for axis in axes]
    return min((step for step in steps if step), default=1 << 62)
