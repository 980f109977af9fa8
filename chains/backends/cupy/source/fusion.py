"""Runs of elementwise operations that one kernel carries out, element by element, in registers.

A thread works on one element of the common shape after another. So an operation may join a run where whatever it reads
or overwrites was touched by the operations before it in the same thread only: through the very same view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from chains.backends.cupy.source.c_source import CUDA, ctype, literal
from chains.backends.cupy.source.commands import Pointers
from chains.lowering.c_language import converted
from chains.program.alias import across
from chains.program.operations import Copy, Fill, Map, Operation, Reduce
from chains.program.view import Buffer, Shape, View


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
        """What the run writes to memory."""
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
    """The longest run from an elementwise operation on, the reduction that goes along with it, and what comes after them."""
    run, stop = Run([operations[start]]), start + 1
    while stop < len(operations) and run.takes(operations[stop]):
        run.operations.append(operations[stop])
        stop += 1
    after = operations[stop] if stop < len(operations) else None
    return (run, after, stop + 1) if isinstance(after, Reduce) and feeds(run, after) else (run, None, stop)


def feeds(run: Run, reduce: Reduce) -> bool:
    """Whether the reduction can go along with the run: it sums what the run computes, into memory the run leaves alone."""
    (out,), (a,) = reduce.outs, reduce.ins
    if a.shape != run.shape or a not in run.outs or run.scalar or run.kind != ctype(out.dtype):
        return False
    touched = [*run.outs, *run.ins]
    return all(view.buffer is not out.buffer for view in touched) and not any(across(a, other) for other in run.outs)


def staged(operation: Operation, scratch: Callable[[View], View]) -> list[Operation]:
    """The operation, or, where it would overwrite elements that other threads still have to read, two through scratch."""
    if not operation.elementwise or not any(across(out, view) for out in operation.outs for view in operation.ins):
        return [operation]
    places = tuple(scratch(out) for out in operation.outs)
    copies = [Copy((out,), (place,), label=operation.label) for out, place in zip(operation.outs, places, strict=True)]
    return [replace(operation, outs=places), *copies]


# The statements for one element of each elementwise operation, and the names or texts of its results. `load` gives the name of
# an operand's element, a prefix is for names of its own, and a kind is the C type to compute in.

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
    """Where elements are, such as a `Space`."""

    def index_of(self, view: View) -> str:
        """The number of the view's element in its buffer, as C."""


def run_lines(
    run: Run, space: Indexing, pointers: Pointers, stored: Callable[[Buffer], bool], known: Mapping[View, str] | None = None
) -> tuple[list[str], dict[View, str]]:
    """The statements for one element of `space`, and the variables that hold each view's value.

    Results are written to the buffers that are to be `stored`. Values that are `known` already are not read.
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
