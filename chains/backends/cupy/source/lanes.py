"""Several elements a thread: neighbours in memory are read and written as vectors of up to 16 bytes.

A thread takes several elements along the last axis. A view without gaps that begins at a multiple of that number is read as
vectors; a number that is the same for all elements is read once; other views are read number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chains.backends.cupy.source.axes import Space, count_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Pointers, each_element, indented
from chains.backends.cupy.source.fusion import Run, run_lines
from chains.lowering.axes import Axis
from chains.lowering.c_language import converted
from chains.program.view import Batch, Buffer, View

VECTOR_BYTES = 16  # that a thread reads or writes in one instruction

Begins = Callable[[View, int], bool]  # whether a view begins, at every step of the loops around it, at a multiple of so many


def lane_count(space: Space, read: Sequence[View], written: Sequence[View], begins: Begins) -> int:
    """How many neighbouring elements along the last axis a thread takes; 1 where it is one at a time.

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
    """Whether each `count` elements of the view along this axis begin at a multiple of so many."""
    others = [axis for axis in (*space.kept, *space.inner) if axis is not along]
    return begins(view, count) and all(space.step(axis, view) % count == 0 for axis in others)


def read_by(run: Run) -> list[View]:
    """What the run reads from memory: operands that none of its operations computed before."""
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
    """How many elements a thread takes at a time, and the body of the kernel for the run."""
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
