"""The work of one block of threads, as loops that its threads share, with barriers between dependent loops.

Other modules decide whether a buffer is in the block's shared memory: here it has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from chains.backends.cupy.source.axes import advances, length, step_name
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Pointers, indented
from chains.backends.cupy.source.maps import Indexing, Run, run_lines
from chains.backends.cupy.source.reduction import join
from chains.lowering.c_language import sum_text
from chains.program.alias import overlap
from chains.program.operations import Operation
from chains.program.view import Batch, Buffer, Extent, View

THREADS = 512  # of a block
TERMS_PER_THREAD = 16  # a thread's share of a long sum at least, and the parts of one that a thread adds up
READS_AT_ONCE = 8  # numbers that a thread reads before it stores anything, in copies and maps of many numbers

Stored = Callable[[Buffer], bool]  # whether a result is needed in memory


@dataclass
class Unit:
    """A loop that the threads share: `body` for each number `i` below `count`, which is `most` for a full tile.

    `results` are the type and the variable of the body's result, and its place, found by `place`. With them, a thread reads the
    operands of several numbers before it stores anything, instead of waiting for memory each time.
    """

    count: str
    most: int
    body: Sequence[str]
    before: Sequence[str] = ()
    results: Sequence[tuple[str, str, str]] = ()
    place: Sequence[str] = ()
    reads: list[View] = field(default_factory=list)
    writes: list[View] = field(default_factory=list)

    @property
    def buffers(self) -> list[Buffer]:
        return list(dict.fromkeys(view.buffer for view in (*self.reads, *self.writes)))

    def waits_for(self, other: Unit) -> bool:
        """Whether the other unit must be finished before this one begins."""
        pairs = [(a, b) for a in other.writes for b in (*self.reads, *self.writes)]
        pairs += [(a, b) for a in other.reads for b in self.writes]
        return any(overlap(a, b) for a, b in pairs)

    def lines(self, first: int) -> list[str]:
        """The loop, of which the thread `first` does the first piece."""
        lane = f"(Index)((threadIdx.x + {THREADS - first}u) % {THREADS}u)" if first else "(Index)threadIdx.x"
        deep = min(READS_AT_ONCE, -(-self.most // THREADS)) if self.results else 1
        if deep == 1:
            stores = [f"{place} = {variable};" for _, variable, place in self.results]
            loop = [f"for (Index i = {lane}; i < count; i += {THREADS}) {{", *indented([*self.body, *stores]), "}"]
        else:
            each = ["#pragma unroll", f"for (int u = 0; u < {deep}; ++u) {{", f"    const Index i = g + u * {THREADS};"]
            kept = [f"kept{k}[u] = {variable};" for k, (_, variable, _) in enumerate(self.results)]
            stores = [f"{place} = kept{k}[u];" for k, (_, _, place) in enumerate(self.results)]
            loop = [
                f"for (Index g = {lane}; g < count; g += {THREADS * deep}) {{",
                *(f"    {kind} kept{k}[{deep}];" for k, (kind, _, _) in enumerate(self.results)),
                *indented([*each, "    if (i < count) {", *indented([*self.body, *kept], 2), "    }", "}"]),
                *indented([*each, "    if (i < count) {", *indented([*self.place, *stores], 2), "    }", "}"]),
                "}",
            ]
        return ["{", *indented([*self.before, f"const Index count = {self.count};", *loop]), "}"]


@dataclass
class Repetition(Unit):
    """The units of a loop's body, all of them at each of `count` steps; `depth` is the loop's."""

    depth: int = 0
    units: Sequence[Unit] = ()

    @classmethod
    def of(cls, units: Sequence[Unit], steps: int, depth: int) -> Repetition:
        reads, writes = (
            list(dict.fromkeys(view.over(depth, steps) for unit in units for view in views(unit)))
            for views in map(attrgetter, ("reads", "writes"))
        )
        return cls(str(steps), THREADS, (), reads=reads, writes=writes, depth=depth, units=units)

    def lines(self, first: int) -> list[str]:
        """The loop, with barriers in its body."""
        step = step_name(self.depth)
        body = phase_lines(phases(self.units))
        return ["#pragma unroll 1", f"for (Index {step} = 0; {step} < {self.count}; ++{step}) {{", *indented(body), "}"]


def phases(units: Sequence[Unit]) -> list[list[Unit]]:
    """The units in groups with a barrier between them; each is in the first group after all units that it waits for."""
    result: list[list[Unit]] = []
    for unit in units:
        at = next((k + 1 for k in reversed(range(len(result))) if any(unit.waits_for(other) for other in result[k])), 0)
        if at == len(result):
            result.append([])
        result[at].append(unit)
    return result


def barriers(groups: Sequence[Sequence[Unit]]) -> int:
    """The number of barriers, with those of a loop's body at each step."""
    loops = [unit for group in groups for unit in group if isinstance(unit, Repetition)]
    return len(groups) + sum(int(loop.count) * barriers(phases(loop.units)) for loop in loops)


def phase_lines(groups: Sequence[Sequence[Unit]]) -> list[str]:
    """All units, with a barrier after each group. Within a group, a unit begins with the threads that the unit before left
    idle.
    """
    lines: list[str] = []
    for group in groups:
        first = 0
        for unit in group:
            lines += unit.lines(first)
            first = (first + -(-unit.most // 32) * 32) % THREADS
        lines.append("__syncthreads();")
    return lines


class Block:
    """Collects `units` on a tile of up to `tile` samples or, if `whole`, of all samples.

    `shared` are buffers in shared memory. Scratch of samples is there too, except for buffers in `global_`.
    """

    def __init__(
        self,
        tile: int,
        shared: Collection[Buffer],
        names: dict[Buffer, str],
        work: list[Buffer] | None = None,
        whole: bool = False,
        global_: Collection[Buffer] = (),
    ) -> None:
        self.tile = tile
        self.whole = whole
        self.names = names
        self.units: list[Unit] = []
        self.work = [] if work is None else work  # parts of sums, in shared memory too
        self.shared, self.global_ = shared, global_

    def is_shared(self, buffer: Buffer) -> bool:
        """Whether a buffer is in shared memory, where it begins at a multiple of 16 bytes."""
        return buffer in self.shared or (buffer.role == "scratch" and buffer.batched and buffer not in self.global_)

    def pointers(self) -> Pointers:
        """Names of buffers, which record the buffers of one unit."""
        return Pointers(self.names)

    def length(self, extent: Extent) -> int:
        """The largest length of an axis."""
        return length(extent, self.tile)

    def add(self, unit: Unit, pointers: Pointers, views: Sequence[View]) -> None:
        """Add a unit on the views whose buffers the `pointers` have named."""
        views = list(dict.fromkeys(views))
        unit.reads = [view for view in views if view.buffer in pointers.read]
        unit.writes = [view for view in views if view.buffer in pointers.written]
        self.units.append(unit)

    def load(self, buffer: Buffer, value: str, lines: Sequence[str] = ()) -> None:
        """Fill a buffer: `lines` compute the `value` of its element `i`."""
        pointers = self.pointers()
        results = [(ctype(buffer.dtype), value, f"{pointers(buffer, write=True)}[i]")]
        count, samples = (f"batch * {buffer.size}", self.tile) if buffer.batched else (str(buffer.size), 1)
        self.add(Unit(count, buffer.size * samples, lines, results=results), pointers, [whole(buffer)])

    def hoisted(self, run: Run, pointers: Pointers, out: View | None = None) -> tuple[list[str], dict[View, str]]:
        """Statements that read, once for all elements, the single numbers of a run, except `out`, with which it begins."""
        lines: list[str] = []
        known: dict[View, str] = {}
        if run.operations and not run.scalar:
            kind, written = ctype(run.operations[0].outs[0].dtype), {view.buffer for view in run.outs}
            for view in dict.fromkeys(run.ins):
                if view != out and not view.batched and view.sample_size == 1 and view.buffer not in written:
                    known[view] = f"h{len(lines)}"
                    place = sum_text(view.offset, advances(view))
                    lines.append(f"const {kind} {known[view]} = ({kind}){pointers(view.buffer)}[{place}];")
        return lines, known

    def result(self, operation: Operation, pointers: Pointers, place: str, total: str) -> str:
        """The statement that stores a result; a sum over the samples is added to that of the tiles before."""
        (out,) = operation.outs
        at = f"{pointers(out.buffer, write=True)}[{place}]"
        if operation.sums_over_batch and not self.whole:
            pointers(out.buffer)
            return f"{at} = fresh ? {total} : {at} + {total};"
        if operation.accumulates:
            pointers(out.buffer)
            return f"{at} = {at} + {total};"
        return f"{at} = {total};"

    def ending(
        self, operation: Operation, run: Run, stored: Stored, pointers: Pointers, space: Indexing
    ) -> tuple[list[str], list[str]]:
        """Statements before the loop, and those for ``total``, an element of the operation's result, and the run."""
        (out,) = operation.outs
        place = space.index_of(out)
        if not run.operations:
            return [], [self.result(operation, pointers, place, "total")]
        before, known = self.hoisted(run, pointers, out)
        lines = [f"const {ctype(out.dtype)} z = total;"]
        if operation.accumulates:
            lines = [f"const {ctype(out.dtype)} z = {pointers(out.buffer)}[{place}] + total;"]
        if out not in run.outs and stored(out.buffer):
            lines.append(f"{pointers(out.buffer, write=True)}[{place}] = z;")
        more, _ = run_lines(run, space, pointers, stored, {**known, out: "z"})
        return before, [*lines, *more]

    def combine(
        self,
        kind: str,
        work: Buffer,
        parts: int,
        many: str,
        most: int,
        views: Sequence[View],
        finish: Callable[[Pointers], list[str]],
        before: Sequence[str] = (),
    ) -> None:
        """Add up the `parts` of `many` results, at most `most` of them; `finish` stores ``total`` of result ``o``."""
        type_ = ctype(work.dtype)
        while True:
            groups = -(-parts // TERMS_PER_THREAD)
            pointers = self.pointers()
            read = pointers(work)
            last = "parts" if groups == 1 else "(group + 1) * each < parts ? (group + 1) * each : parts"
            body = [
                f"const Index parts = {parts}, each = {-(-parts // groups)}, o = i % ({many}), group = i / ({many});",
                f"const Index last = {last};",
                f"{type_} total = {read}[group * each * ({many}) + o];",
                f"for (Index s = group * each + 1; s < last; ++s) total = "
                f"{join(kind, type_, 'total', f'{read}[s * ({many}) + o]')};",
            ]
            if groups == 1:
                self.add(Unit(many, most, [*body, *finish(pointers)], before), pointers, [*views, whole(work)])
                return
            fewer = self.workspace(work.dtype, groups * most)
            body.append(f"{pointers(fewer, write=True)}[group * ({many}) + o] = total;")
            self.add(Unit(f"({many}) * {groups}", most * groups, body), pointers, [whole(work), whole(fewer)])
            work, parts = fewer, groups

    def workspace(self, dtype: np.dtype[Any], elements: int) -> Buffer:
        self.work.append(Buffer(f"parts {len(self.work)}", "scratch", dtype, (elements,)))
        return self.work[-1]


def whole(buffer: Buffer) -> View:
    """All elements of a buffer, without its axes."""
    extent = Batch(buffer.size) if buffer.batched else buffer.size
    return View(buffer, (extent,), (1,))
