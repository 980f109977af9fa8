"""Runs of elementwise operations that one kernel carries out, element by element, in registers.

A thread computes one element of the common shape after another. So an operation may join a run only if no other thread touched
the elements that it reads or overwrites: earlier operations of the run use them through the same view.

A thread takes several neighbours along the last axis at a time, if it can. It reads and writes them as vectors of up to 16
bytes if a view has no gaps and begins at a multiple of that. A number that is the same for all elements is read once. Other
views are read number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from chains.backends.cupy.source.axes import Space, count_text
from chains.backends.cupy.source.c_source import CUDA, ctype, literal
from chains.backends.cupy.source.commands import Pointers, each_element, indented
from chains.lowering.axes import Axis
from chains.lowering.c_language import converted
from chains.program.alias import across
from chains.program.operations import Copy, Fill, Map, Operation, Reduce
from chains.program.view import Batch, Buffer, Shape, View


@dataclass
class Run:
    """Elementwise operations of one shape, in order."""

    operations: list[Operation] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        return self.operations[0].outs[0].shape

    @property
    def outs(self) -> list[View]:
        return [view for operation in self.operations for view in operation.outs]

    @property
    def ins(self) -> list[View]:
        return [view for operation in self.operations for view in operation.ins]

    def stored(self, stored: Callable[[Buffer], bool]) -> list[View]:
        """The results that the run writes to memory."""
        return [view for view in dict.fromkeys(self.outs) if stored(view.buffer)]

    @property
    def scalar(self) -> bool:
        """Whether the run is on single numbers, which are computed in double precision."""
        return all(view.ndim == 0 for view in (*self.outs, *self.ins))

    @property
    def kind(self) -> str:
        """The C type to compute in."""
        return "double" if self.scalar else ctype(self.outs[0].dtype)

    def takes(self, operation: Operation) -> bool:
        """Whether the operation may join, at the end."""
        if type(operation) not in ELEMENTWISE or operation.outs[0].shape != self.shape:
            return False
        if self.scalar != all(view.ndim == 0 for view in operation.views):
            return False
        written, touched = self.outs, [*self.outs, *self.ins]
        if any(across(view, out) for view in operation.ins for out in written):
            return False
        return not any(across(out, view) for out in operation.outs for view in touched)


def run_at(operations: Sequence[Operation], start: int) -> tuple[Run, Reduce | None, int]:
    """The longest run from an elementwise operation on, the reduction that is fused with it, and the position after them."""
    run, stop = Run([operations[start]]), start + 1
    while stop < len(operations) and run.takes(operations[stop]):
        run.operations.append(operations[stop])
        stop += 1
    after = operations[stop] if stop < len(operations) else None
    return (run, after, stop + 1) if isinstance(after, Reduce) and feeds(run, after) else (run, None, stop)


def feeds(run: Run, reduce: Reduce) -> bool:
    """Whether the reduction can be fused with the run: it sums results of the run, into memory that the run does not use."""
    (out,), (a,) = reduce.outs, reduce.ins
    if a.shape != run.shape or a not in run.outs or run.scalar or run.kind != ctype(out.dtype):
        return False
    touched = [*run.outs, *run.ins]
    return all(view.buffer is not out.buffer for view in touched) and not any(across(a, other) for other in run.outs)


def staged(operation: Operation, scratch: Callable[[View], View]) -> list[Operation]:
    """The operation, or two through scratch if it would overwrite elements that other threads still have to read."""
    if not operation.elementwise or not any(across(out, view) for out in operation.outs for view in operation.ins):
        return [operation]
    places = tuple(scratch(out) for out in operation.outs)
    copies = [Copy((out,), (place,), label=operation.label) for out, place in zip(operation.outs, places, strict=True)]
    return [replace(operation, outs=places), *copies]


# The statements for one element of each elementwise operation, and the names or texts of its results. `load` gives the name of
# an operand's element, new names begin with the prefix, and the kind is the C type to compute in.

Load = Callable[[View], str]
Lines = tuple[Sequence[str], Sequence[str]]


def _map(operation: Map, load: Load, prefix: str, kind: str) -> Lines:
    return CUDA.statements(operation.formula, [load(view) for view in operation.ins], prefix, kind)


def _copy(operation: Copy, load: Load, prefix: str, kind: str) -> Lines:
    return (), (load(operation.ins[0]),)


def _fill(operation: Fill, load: Load, prefix: str, kind: str) -> Lines:
    return (), (literal(operation.value, kind),)


ELEMENTWISE: dict[type[Operation], Callable[..., Lines]] = {Map: _map, Copy: _copy, Fill: _fill}


class Indexing(Protocol):
    """The places of elements, such as a `Space`."""

    def index_of(self, view: View) -> str:
        """The number of the view's element in its buffer, as C."""


def run_lines(
    run: Run, space: Indexing, pointers: Pointers, stored: Callable[[Buffer], bool], known: Mapping[View, str] | None = None
) -> tuple[list[str], dict[View, str]]:
    """The statements for one element of `space`, and the variables that hold each view's value.

    Results are written to buffers that are `stored`. Values that are `known` are not read.
    """
    kind = run.kind
    lines: list[str] = []
    known = dict(known or {})

    def load(view: View) -> str:
        if view not in known:
            known[view] = name = f"v{len(lines)}"
            value = converted(f"{pointers(view.buffer)}[{space.index_of(view)}]", ctype(view.dtype), kind)
            lines.append(f"const {kind} {name} = {value};")
        return known[view]

    results: dict[View, str] = {}
    for number, operation in enumerate(run.operations):
        text, values = ELEMENTWISE[type(operation)](operation, load, f"m{number}_", kind)
        lines += text
        for k, (out, value) in enumerate(zip(operation.outs, values, strict=True)):
            name, own = f"r{number}_{k}", ctype(out.dtype)
            value = converted(f"({value})", kind, own)
            lines.append(f"const {kind} {name} = {converted(value, own, kind) if own != kind else f'({kind}){value}'};")
            known[out] = results[out] = name
    for out, name in results.items():
        if stored(out.buffer):
            value = converted(name, kind, ctype(out.dtype))
            lines.append(f"{pointers(out.buffer, write=True)}[{space.index_of(out)}] = {value};")
    return lines, known


VECTOR_BYTES = 16  # that a thread reads or writes in one instruction

Begins = Callable[[View, int], bool]  # whether a view begins at a multiple of this number, at every step of the loops


def lane_count(space: Space, read: Sequence[View], written: Sequence[View], begins: Begins) -> int:
    """The number of neighbouring elements along the last axis that a thread takes, at least 1.

    If there are other axes, the length of the last is a multiple of that.
    """
    axes = space.kept
    views = [*read, *written]
    if not axes or not views:
        return 1
    along = axes[-1]
    steps = {view: space.step(along, view) for view in views}
    if not {*steps.values()} <= {0, 1} or not all(steps[view] for view in written):
        return 1
    count = VECTOR_BYTES // max(view.dtype.itemsize for view in views)
    while count > 1:
        whole = [view for view in views if steps[view] and _is_whole(space, along, view, count, begins)]
        if (len(axes) == 1 or divides(along, count)) and whole and {*written} <= {*whole}:
            return count
        count //= 2
    return 1


def divides(axis: Axis, count: int) -> bool:
    """Whether the axis is a multiple of `count` long, at every batch size."""
    return (axis.extent.per_sample if isinstance(axis.extent, Batch) else axis.extent) % count == 0


def _is_whole(space: Space, along: Axis, view: View, count: int, begins: Begins) -> bool:
    """Whether every `count` elements of the view along this axis begin at a multiple of `count`."""
    others = [axis for axis in (*space.kept, *space.inner) if axis is not along]
    return begins(view, count) and all(space.step(axis, view) % count == 0 for axis in others)


def read_by(run: Run) -> list[View]:
    """The operands that the run reads from memory: no earlier operation of the run computes them."""
    known: dict[View, bool] = {}
    for operation in run.operations:
        for view in operation.ins:
            known.setdefault(view, True)
        known |= {out: known.get(out, False) for out in operation.outs}
    return [view for view, is_read in known.items() if is_read]


def in_lanes(
    run: Run, space: Space, count: int, begins: Begins, pointers: Pointers, stored: Callable[[Buffer], bool]
) -> list[str]:
    """The statements of the run for `count` neighbouring elements along the last axis, of which `i` is the first."""
    kind, along = run.kind, space.kept[-1]
    types: dict[str, Vector] = {}
    before: list[str] = []
    each: list[str] = []
    after: list[str] = []
    values: dict[View, str] = {}
    for number, view in enumerate(read_by(run)):
        own, place = ctype(view.dtype), f"{pointers(view.buffer)}[{space.index_of(view)}]"
        values[view] = name = f"e{number}"
        if not space.step(along, view):
            before.append(f"const {kind} {name} = {converted(place, own, kind)};")
        elif _is_whole(space, along, view, count, begins):
            vector = types.setdefault(own, Vector(own, count, view.dtype.itemsize)).name
            before.append(f"const {vector} from{number} = *(const {vector}*)&{place};")
            each.append(f"const {kind} {name} = {converted(f'from{number}.n[u]', own, kind)};")
        else:
            each.append(f"const {kind} {name} = {converted(f'(&{place})[u]', own, kind)};")
    lines, found = run_lines(run, space, pointers, lambda buffer: False, values)
    for number, out in enumerate(run.stored(stored)):
        own = ctype(out.dtype)
        vector = types.setdefault(own, Vector(own, count, out.dtype.itemsize)).name
        before.append(f"{vector} to{number};")
        lines.append(f"to{number}.n[u] = {converted(found[out], kind, own)};")
        after.append(f"*({vector}*)&{pointers(out.buffer, write=True)}[{space.index_of(out)}] = to{number};")
    loop = [f"for (int u = 0; u < {count}; ++u) {{", *indented([*each, *lines]), "}"]
    return [*(vector.definition for vector in types.values()), *before, "#pragma unroll", *loop, *after]


@dataclass(frozen=True)
class Vector:
    """The C type of neighbouring numbers that begin at a multiple of their size."""

    kind: str
    count: int
    itemsize: int

    @property
    def name(self) -> str:
        return f"{self.kind.replace(' ', '_')}_{self.count}"

    @property
    def definition(self) -> str:
        return f"typedef struct ALIGNED({self.itemsize * self.count}) {{ {self.kind} n[{self.count}]; }} {self.name};"


def map_body(
    run: Run, space: Space, begins: Begins, pointers: Pointers, stored: Callable[[Buffer], bool]
) -> tuple[int, list[str]]:
    """The number of elements that a thread takes at a time, and the body of the kernel for the run."""
    kept = space.kept
    width = lane_count(space, read_by(run), run.stored(stored), begins)
    if width == 1:
        lines, _ = run_lines(run, space, pointers, stored)
        return 1, each_element(count_text(kept), [*space.kept_lines, *lines])
    lanes = in_lanes(run, space, width, begins, pointers, stored)
    several = [f"const Index i = group * {width};", *space.kept_lines, *lanes]
    body = each_element(f"{count_text(kept)} / {width}", several, "group")
    if divides(kept[-1], width):
        return width, body
    lines, _ = run_lines(run, space, pointers, stored)
    rest = f"const Index i = {count_text(kept)} / {width} * {width} + left;"
    left = each_element(f"{count_text(kept)} % {width}", [rest, *lines], "left")
    return width, ["{", *indented(body), "}", "{", *indented(left), "}"]
