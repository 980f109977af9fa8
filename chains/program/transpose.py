"""Pullbacks derived from recorded operations: each operation is transposed, from the last one to the first.

An array that depends on the input or the parameters has a cotangent of its layout. The rule of an operation takes the
cotangents of its results, and adds a term to that of each operand. The first term fills, so that nothing begins with zeros. An
operation that overwrites an array takes its cotangent away, and the earlier contents get a cotangent in the same memory. So
in-place work stays in place. The result is an ordinary list of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from chains.expr import Expr, trace_nodes
from chains.expr.derivatives import cotangents
from chains.expr.formulas import Formula
from chains.expr.nodes import as_expr
from chains.program import operations as op
from chains.program.alias import across, overlap
from chains.program.loop import Loop
from chains.program.operations import Operation
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View, scratch_like


@dataclass(frozen=True)
class Part(Operation):
    """y = a layer within the layer that is recorded, for the operand x. It stands for the layer's operations."""

    node: Any
    operations: tuple[Operation, ...]

    def transpose(self, t: Transposer) -> None:
        (y,), (x,) = self.outs, self.ins
        d, x, y = t.take(y), t.value(x), t.value(y, after=True)
        if t.is_active(x):
            t.fill(x, lambda dx: self.node.pullback(t.ops, x, y, d, dx))
        else:
            self.node.pullback(t.ops, x, y, d, scratch_like(x, "dx", t.ops.dtype))


def without_parts(operations: Sequence[Operation]) -> list[Operation]:
    """The operations, with those of each part in its place."""
    return [
        each for operation in operations for each in (operation.operations if isinstance(operation, Part) else (operation,))
    ]


@dataclass(frozen=True)
class Place:
    """An array that a layer is given, and the array for its cotangent, or None if it needs none.

    `depth` is the number of loops around the layer. Parts of the array may advance in loops of the layer.
    """

    view: View
    cotangent: View | None = None
    depth: int = 0

    def holds(self, view: View) -> bool:
        """Whether the view is a part of the array."""
        own = self.view
        if view.buffer is not own.buffer or any(view.loop_stride(k) != own.loop_stride(k) for k in range(self.depth)):
            return False
        first = view.offset - own.offset
        return first >= 0 and first + sum((n - 1) * stride for n, stride in _sample_axes(view)) < max(prod(own.sample_shape), 1)

    def to(self, view: View, other: View) -> View:
        """The same part of another array of this shape."""
        strides = list(view.strides)
        if self.view.batched and self.view.strides[0] != other.strides[0]:
            strides = [
                other.strides[0] if isinstance(n, Batch) else stride for n, stride in zip(view.shape, strides, strict=True)
            ]
        offset = other.offset + view.offset - self.view.offset
        moved = View(other.buffer, view.shape, tuple(strides), offset, "", other.loop_strides)
        for depth in range(self.depth, len(view.loop_strides)):
            moved = moved.advancing(depth, view.loop_strides[depth])
        return moved


def _sample_axes(view: View) -> list[tuple[int, int]]:
    """The lengths and strides of the axes of one sample."""
    axes = zip(view.shape, view.strides, strict=True)
    return [(n.per_sample if isinstance(n, Batch) else n, stride) for n, stride in axes]


@dataclass(frozen=True)
class Read:
    """A value that the pullback reads: that of `view` before or after the operation at a position."""

    position: int
    view: View
    after: bool


class Transposer:
    """Records the pullback of operations.

    Parameters
    ----------
    ops : Recorder
        Gets the pullback's operations.
    operations : sequence of Operation
        Those of the forward pass.
    places : sequence of Place
        The arrays that the layer is given. Cotangents of results are filled beforehand, as `given` says.
    """

    def __init__(self, ops: Recorder, operations: Sequence[Operation], places: Sequence[Place]) -> None:
        self.ops = ops
        self.operations = list(operations)  # those of loops change: they keep what the pullback reads
        self.reads: list[Read] = []
        self._places = places
        self._known: dict[View, Place] = {}
        self._own: dict[Buffer, Place] = {}
        self._filled: dict[tuple[Buffer, tuple[int, ...]], np.ndarray] = {}
        self._masks: dict[View, np.ndarray] = {}
        self._position = 0
        self._active: set[Place] = {place for place in places if place.cotangent is not None}

    def record(self, results: Sequence[View]) -> list[Read]:
        """Record the pullback of the cotangents of `results`, which are filled. Returns what it reads.

        Cotangents without a term are filled with zeros.
        """
        places = [self.place(result) for result in results]
        self._find_active(places)
        for result in results:
            self.mark(self.cotangent(result))
        self._record_all()
        for place in self._places:
            if place.cotangent is not None and place not in places:
                self.complete(place.cotangent)
        return self.reads

    def _record_all(self) -> None:
        for position in reversed(range(len(self.operations))):
            self._position, operation = position, self.operations[position]
            if self._depends(operation) and any(self.has_terms(view) for view in operation.outs):
                self.transpose(operation)
            elif not operation.accumulates:
                for out in operation.outs:
                    self._forget(out)

    def transpose(self, operation: Operation) -> None:
        """Record the pullback of one operation."""
        operation.transpose(self)

    def transpose_map(self, operation: op.Map) -> None:
        """Record the pullback of a map."""
        _MapRule(self, operation).record()

    def check(self, operation: Operation) -> None:
        """Raise NotImplementedError, with its name, for an operation whose pullback is not known."""
        if type(operation).transpose is Operation.transpose:
            operation.transpose(self)

    # Arrays and their cotangents

    def place(self, view: View) -> Place:
        """The array that a view is a part of."""
        if view not in self._known:
            given = next((place for place in self._places if place.holds(view)), None)
            self._known[view] = self._scratch(view.buffer) if given is None else given
        return self._known[view]

    def _scratch(self, buffer: Buffer) -> Place:
        """The array of a buffer that the layer is not given."""
        if buffer not in self._own:
            whole = buffer.whole
            cotangent = scratch_like(whole, f"d {whole}") if buffer.role == "scratch" else None
            self._own[buffer] = Place(whole, cotangent, self.ops.depth)
        return self._own[buffer]

    def is_active(self, view: View) -> bool:
        """Whether an array depends on the input or a parameter."""
        return self.place(view) in self._active

    def cotangent(self, view: View) -> View:
        """The cotangent of a view, filled or not."""
        place = self.place(view)
        assert place.cotangent is not None
        return place.to(view, place.cotangent)

    def value(self, view: View, *, after: bool = False) -> View:
        """The view, whose contents before or after the present operation the pullback reads."""
        self.reads.append(Read(self._position, view, after))
        return view

    def take(self, view: View) -> View:
        """The cotangent of a result. Parts without a term are filled with zeros.

        Unless the operation adds to the result, the memory is then free for the cotangent of what it overwrote.
        """
        found = self.cotangent(view)
        self.complete(found)
        if not self.operations[self._position].accumulates:
            self._forget(view)
        return found

    def add(self, view: View, term: View) -> None:
        """Add a term, or its sum over the axes that the operand lacks, to the cotangent of an operand."""
        target = self.cotangent(view)
        summed = target.sample_size != term.sample_size or target.batched != term.batched
        larger = summed and (term.ndim > target.ndim or any(a == 1 != b for a, b in _pairs(target, term)))
        if not self.begun(target):
            if target != term:
                (self.ops.sum if larger else self.ops.copy)(target, term)
        else:
            if larger:
                total = scratch_like(target, f"term of {view}")
                self.ops.sum(total, term)
                term = total
            self.ops.map(target, lambda total, term: total + term, target, term)
        self.mark(target)

    def fill(self, view: View, record: Callable[[View], None]) -> None:
        """Add a term that `record` writes to an array: the cotangent itself, if it has no other term."""
        target = self.cotangent(view)
        if self.begun(target):
            term = scratch_like(target, f"term of {view}")
            record(term)
            self.add(view, term)
        else:
            record(target)
            self.mark(target)

    def begun(self, cotangent: View) -> bool:
        """Whether a cotangent has terms; the parts of it that have none are then filled with zeros."""
        if not self._mask(cotangent).any():
            return False
        self.complete(cotangent)
        return True

    def _mask(self, cotangent: View) -> np.ndarray:
        if cotangent not in self._masks:
            self._masks[cotangent] = cotangent.within(self._memory(cotangent))
        return self._masks[cotangent]

    def _memory(self, cotangent: View) -> np.ndarray:
        """Which elements of a cotangent's buffer have terms, for views that advance as it does."""
        key = (cotangent.buffer, cotangent.loop_strides)
        return self._filled.setdefault(key, np.zeros(cotangent.buffer.size, bool))

    def mark(self, cotangent: View, *, filled: bool = True) -> None:
        """Note whether a cotangent has terms."""
        self._mask(cotangent)[...] = filled

    def has_terms(self, view: View) -> bool:
        """Whether the cotangent of a view has terms."""
        return self.is_active(view) and bool(self._mask(self.cotangent(view)).any())

    def complete(self, cotangent: View) -> None:
        """Fill the parts of a cotangent without a term with zeros."""
        mask = self._mask(cotangent)
        if mask.all():
            return
        if not mask.any():
            self.ops.fill(cotangent, 0.0)
        else:
            wanted = np.zeros(cotangent.buffer.size, bool)
            cotangent.within(wanted)[...] = True
            for start, stop in _runs(wanted & ~self._memory(cotangent)):
                self.ops.fill(_run(cotangent, start, stop), 0.0)
        self.mark(cotangent)

    def _forget(self, view: View) -> None:
        if self.is_active(view):
            self.mark(self.cotangent(view), filled=False)

    def _find_active(self, results: Sequence[Place]) -> None:
        """Find the arrays that depend on the input or a parameter. Raises NotImplementedError for operations without a rule."""
        self._active.difference_update(results)
        for operation in self.operations:
            if self._depends(operation):
                self.check(operation)
                self._active.update(self.place(view) for view in operation.outs if self.place(view).cotangent is not None)
        self._active.update(results)

    def _depends(self, operation: Operation) -> bool:
        """Whether the results depend on the input or a parameter, as those of another layer may in any case."""
        return isinstance(operation, Part) or any(self.is_active(view) for view in operation.ins)


class _MapRule:
    """The pullback of one map: all terms in one map, those of smaller operands summed afterwards."""

    def __init__(self, transposer: Transposer, operation: op.Map) -> None:
        self.t, self.operation = transposer, operation
        known = tuple(k for k, out in enumerate(operation.outs) if transposer.has_terms(out))
        self.taken = {k: transposer.take(operation.outs[k]) for k in known}
        self.views = [*operation.ins, *operation.outs, *(self.taken.get(k, out) for k, out in enumerate(operation.outs))]
        groups: dict[View, list[int]] = {}
        for position, view in enumerate(operation.ins):
            if transposer.is_active(view):
                groups.setdefault(view, []).append(position)
        self.operands = list(groups)
        self.terms = _Terms(operation.formula, tuple(map(tuple, groups.values())), known)
        self.outs: list[tuple[View, int, int | None]] = []  # where a term goes, that of which operand, what it is added to
        self.later: list[tuple[View, View]] = []

    def record(self) -> None:
        t, nodes, shape = self.t, _found(self.terms), self.operation.outs[0].shape
        for k, view in enumerate(self.operands):
            if self._passes(view, nodes[k]):
                t.add(view, self.views[int(nodes[k].value)])  # type: ignore[union-attr]
        for k in sorted(range(len(nodes)), key=lambda k: self.operands[k].shape != shape):
            if nodes[k] is not None and not self._passes(self.operands[k], nodes[k]):
                self._place(k, nodes)
        self._record_map(nodes)
        for view, term in self.later:
            t.add(view, term)

    def _passes(self, view: View, node: Expr | None) -> bool:
        """Whether the term of an operand is the cotangent of a result, and may be added before the map."""
        if node is None or node.operation != "input" or node.value < len(self.operation.ins) + len(self.operation.outs):
            return False
        target, term = self.t.cotangent(view), self.views[int(node.value)]
        return all(not overlap(target, d) or d == term == target for d in self.taken.values())

    def _place(self, k: int, nodes: Sequence[Expr | None]) -> None:
        """Decide where the term of an operand is written."""
        t, view = self.t, self.operands[k]
        target, written = t.cotangent(view), [out for out, *_ in self.outs]
        if view.shape == self.operation.outs[0].shape and not any(
            across(target, each) for each in (*written, *self.taken.values())
        ):
            begun = t.begun(target)
            if begun:
                self.views.append(target)
            self.outs.append((target, k, len(self.views) - 1 if begun else None))
            t.mark(target)
            return
        same = next((out for out, other, added in self.outs if nodes[other] is nodes[k] and added is None), None)
        if same is None:
            free = self._free(written)
            same = scratch_like(self.operation.outs[0], f"term of {view}") if free is None else free
            self.outs.append((same, k, None))
        self.later.append((view, same))

    def _free(self, written: Sequence[View]) -> View | None:
        """The cotangent of a result, if its memory is free after the map."""
        t = self.t
        used = [*written, *(t.cotangent(each) for each in self.operation.ins if t.is_active(each))]
        return next((d for d in self.taken.values() if not any(overlap(d, each) for each in used)), None)

    def _record_map(self, nodes: Sequence[Expr | None]) -> None:
        changed = [(out, k, added) for out, k, added in self.outs if not self._is_there(out, nodes[k], added)]
        if not changed:
            return
        formula, used = _formula(self.terms, len(self.views), tuple((k, added) for _, k, added in changed))
        inputs, results = len(self.operation.ins), len(self.operation.outs)
        for k in used:
            if k < inputs + results:
                self.views[k] = self.t.value(self.views[k], after=k >= inputs)
        self.t.ops.map_formula(tuple(out for out, *_ in changed), formula, tuple(self.views[k] for k in used))

    def _is_there(self, out: View, node: Expr | None, added: int | None) -> bool:
        """Whether the term is in its place already."""
        return added is None and node is not None and node.operation == "input" and self.views[int(node.value)] == out


class _Terms(NamedTuple):
    """The terms of groups of a formula's inputs, each for one operand, if these of its outputs have cotangents."""

    formula: Formula
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]


@lru_cache(2048)
def _found(terms: _Terms) -> list[Expr | None]:
    """The terms as expressions of the formula's inputs, its outputs and their cotangents."""
    return cotangents(*terms)


@lru_cache(2048)
def _formula(terms: _Terms, inputs: int, chosen: tuple[tuple[int, int | None], ...]) -> tuple[Formula, list[int]]:
    """The formula of some terms, each added to an input or alone, and the inputs that it needs."""
    nodes = [as_expr(0.0 if node is None else node) for node in _found(terms)]
    results = tuple(nodes[k] if added is None else as_expr(Expr("input", value=added) + nodes[k]) for k, added in chosen)
    formula = trace_nodes(results, tuple(f"x{k}" for k in range(inputs)))
    return formula.only(range(len(results)))


def _pairs(a: View, b: View) -> Iterator[tuple[Any, Any]]:
    """The lengths of two arrays, axis by axis from the last one."""
    return zip(reversed(a.shape), reversed(b.shape), strict=False)


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """The first entries of runs of ones, and those after their last ones."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return zip(map(int, edges[::2]), map(int, edges[1::2]), strict=True)


def _run(like: View, start: int, stop: int) -> View:
    """Neighbouring elements of a buffer, of each sample."""
    buffer = like.buffer
    if not buffer.batched:
        return View(buffer, (stop - start,), (1,), start, "", like.loop_strides)
    return View(buffer, (Batch(), stop - start), (buffer.size, 1), start, "", like.loop_strides)


# What the pullback reads must not be overwritten


def kept(operations: Sequence[Operation], reads: Sequence[Read], places: Sequence[Place]) -> list[Operation] | None:
    """The operations with overwritten arrays that the pullback reads in separate memory; None if there are none.

    Raises ValueError for an array of a layer within the layer.
    """
    changed: list[Operation] | None = None
    pending = list(reads)
    while pending:
        read, now = pending.pop(), changed or operations
        later = range(read.position + read.after, len(now))
        end = next((k for k in later if any(overlap(out, read.view) for out in now[k].writes)), None)
        if end is not None:
            changed, moved = _separated(now, end, read.view, places)
            pending = [moved(each) for each in pending]
    return changed


def _separated(
    operations: Sequence[Operation], end: int, view: View, places: Sequence[Place]
) -> tuple[list[Operation], Callable[[Read], Read]]:
    """The operations with the array before the operation `end`, which overwrites it, in separate memory.

    Also a function that gives a read of the array its new place.
    """
    place = next((each for each in places if each.holds(view)), None) or Place(view.buffer.whole)
    begin = next((k for k in reversed(range(end)) if _replaces(operations[k], place)), -1)
    last = operations[end]
    read = [one for each in operations[max(begin, 0) : end] if isinstance(each, Part) for one in each.views]
    if any(place.holds(one) for one in (*read, *(last.ins if isinstance(last, Part) else ()))):
        raise ValueError(
            f"`{last.name}` overwrites `{view}`, or a part of it, which the derived pullback reads: write to a "
            "separate array, declared by d.temporary(name, shape)"
        )
    own = scratch_like(place.view, f"{place.view} before")

    def moved(each: View) -> View:
        return place.to(each, own) if place.holds(each) else each

    changed = list(operations)
    for k in range(max(begin, 0), end):
        changed[k] = operations[k].on(moved)
        if k == begin:
            changed[k] = replace(changed[k], ins=operations[k].ins)
    if not isinstance(last, Loop):
        changed[end] = replace(last, ins=tuple(map(moved, last.ins)))
    copied = not _replaces(last, place)  # the rest of the array, or the start of what a loop carries
    if copied:
        changed.insert(end, op.Copy((place.view,), (own,), label=last.label))

    def placed(read: Read) -> Read:
        inside = begin < read.position + read.after <= end
        position = read.position + (copied and read.position >= end)
        return replace(read, position=position, view=moved(read.view) if inside else read.view)

    return changed, placed


def _replaces(operation: Operation, place: Place) -> bool:
    """Whether an operation fills all of an array, and needs no contents of it in its own memory."""
    if operation.accumulates or (isinstance(operation, Loop) and any(map(place.holds, operation.reads))):
        return False
    return any(place.holds(out) and _covers(out, place.view) for out in operation.outs)


def _covers(view: View, whole: View) -> bool:
    return view.sample_size == whole.sample_size
