"""Pullbacks derived from recorded operations: each operation is transposed, from the last one to the first.

An array that depends on the input or the parameters has a cotangent of its layout. The rule of an operation takes the
cotangents of its results, and adds a term to that of each operand. The first term fills, so that nothing begins with zeros. An
operation that overwrites an array takes its cotangent away, and the earlier contents get a cotangent in the same memory. So
in-place work stays in place. The result is an ordinary list of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from chains.program import operations as op
from chains.program.alias import overlap
from chains.program.cancelling import cancels, divisions, means
from chains.program.loop import Loop
from chains.program.operations import Operation
from chains.program.places import Part, Place, Read
from chains.program.recorder import Recorder
from chains.program.transpose_maps import MapRule
from chains.program.view import Batch, Buffer, View, scratch_like
from chains.support.caching import lazy


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
    versions : mapping
        The memory of earlier contents of arrays, whose cotangents are in the memory of those of the arrays.
    """

    def __init__(
        self, ops: Recorder, operations: Sequence[Operation], places: Sequence[Place],
        versions: Mapping[Buffer, Place] | None = None,
    ) -> None:  # fmt: skip
        self.ops = ops
        self.operations = list(operations)  # those of loops change: they keep what the pullback reads
        self.reads: list[Read] = []
        self._places = places
        self._versions = versions or {}
        self._given: dict[Buffer, list[Place]] = {}
        for place in places:
            self._given.setdefault(place.view.buffer, []).append(place)
        self._known: dict[View, Place] = {}
        self._own: dict[Buffer, Place] = {}
        self._filled: dict[tuple[Buffer, tuple[int, ...]], np.ndarray] = {}
        self._masks: dict[View, np.ndarray] = {}
        self._position = 0
        self._active: set[Place] = {place for place in places if place.cotangent is not None}
        self._results: list[Place] = []
        self._moved: dict[Place, View] = {}  # cotangents in the memory of others
        self._spread: dict[View, tuple[View, Operation]] = {}  # cotangents that are copies of smaller arrays, and the copies

    def record(self, results: Sequence[View]) -> list[Read]:
        """Record the pullback of the cotangents of `results`, which are filled. Returns what it reads.

        Cotangents without a term are filled with zeros.
        """
        self._results = places = [self.place(result) for result in results]
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
        MapRule(self, operation).record()

    def check(self, operation: Operation) -> None:
        """Raise NotImplementedError, with its name, for an operation whose pullback is not known."""
        if type(operation).transpose is Operation.transpose:
            operation.transpose(self)

    # Arrays and their cotangents

    def place(self, view: View) -> Place:
        """The array that a view is a part of."""
        if view not in self._known:
            given = next((place for place in self._given.get(view.buffer, ()) if place.holds(view)), None)
            self._known[view] = self._scratch(view.buffer) if given is None else given
        return self._known[view]

    def _scratch(self, buffer: Buffer) -> Place:
        """The array of a buffer that the layer is not given."""
        if buffer not in self._own:
            whole, later = buffer.whole, self._versions.get(buffer)
            if later is not None:
                cotangent = (later if later in self._places else self._scratch(later.view.buffer)).cotangent
            else:
                cotangent = scratch_like(whole, f"d {whole}") if buffer.role == "scratch" else None
            self._own[buffer] = Place(whole, cotangent, self.ops.depth)
        return self._own[buffer]

    def is_active(self, view: View) -> bool:
        """Whether an array depends on the input or a parameter."""
        return self.place(view) in self._active

    def cotangent(self, view: View) -> View:
        """The cotangent of a view, filled or not."""
        place = self.place(view)
        cotangent = self._moved.get(place, place.cotangent)
        assert cotangent is not None
        return place.to(view, cotangent)

    def moved(self, view: View, result: View, cotangent: View) -> bool:
        """Whether the cotangent of an array goes to the memory of that of a result, which only the present operation fills.

        The other one is then scratch that is never used.
        """
        place, other, now = self.place(view), self.place(result), self.operations[self._position]
        if not self._is_own(place) or place in self._moved or view != place.view or self._mask(self.cotangent(view)).any():
            return False
        if self.ops.in_loop and not self._is_own(other):  # each step overwrites it, but sums after the loop read all steps
            return False
        if result != other.view or cotangent.shape != view.shape or cotangent.loop_strides or not cotangent.contiguous:
            return False
        before = (one for each in self.operations[: self._position] for one in each.views)
        if any(self._contents_of(one) is self._contents_of(result) for one in (*before, *now.ins)):
            return False
        if any(isinstance(each, Loop) and any(one.buffer is view.buffer for one in each.views) for each in self.operations):
            return False
        self._moved[place] = cotangent
        return True

    def _contents_of(self, view: View) -> Buffer:
        """The array that a view shows, perhaps with earlier contents: the cotangents of all of them are in one memory."""
        array = self._versions.get(view.buffer)
        return view.buffer if array is None else array.view.buffer

    def _is_version(self, view: View, later: View) -> bool:
        """Whether a view shows earlier contents of the array of another one."""
        array = self._versions.get(view.buffer)
        return array is not None and array.view == self.place(later).view

    def _is_own(self, place: Place) -> bool:
        """Whether nothing else uses the cotangent of an array."""
        return place.own or place not in self._places

    @property
    def private(self) -> set[Buffer]:
        """The arrays that nothing reads after the pullback: cotangents, but for those of operands of the layer."""
        places = [*self._own.values(), *(place for place in self._places if place.own or place in self._results)]
        return {place.cotangent.buffer for place in places if place.cotangent is not None}

    @lazy
    def _means(self) -> dict[View, tuple[View, int]]:
        return means(self.operations)

    def mean_of(self, view: View) -> View | None:
        """The array whose mean another one holds before the present operation; None if it holds none.

        A step of a loop may read the mean of the step before it.
        """
        source, position = self._means.get(view, (None, 0))
        return source if position < self._position else None

    @lazy
    def _divisions(self) -> dict[View, tuple[int, View, View]]:
        return divisions(self.operations)

    def divided(self, result: View) -> tuple[View, View] | None:
        """The quotient and the divisor of a result that is divided in its own memory later; the pullback reads both."""
        position, quotient, divisor = self._divisions.get(result, (0, result, result))
        between = self.operations[self._position + 1 : position]
        if not self._is_version(result, quotient) or any(overlap(out, result) for each in between for out in each.writes):
            return None
        self.reads += [Read(position, quotient, True), Read(position, divisor, False)]
        return quotient, divisor

    def spread_over(self, cotangent: View) -> View:
        """The smaller array that a cotangent is a copy of, which is then not made; or the cotangent."""
        found, copy = self._spread.get(cotangent, (cotangent, None))
        position = next((k for k in reversed(range(len(self.ops.operations))) if self.ops.operations[k] is copy), None)
        if position is None:
            return cotangent
        del self.ops.operations[position]
        return found

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
        elif larger and self.ops.in_loop and term.batched and not target.batched and target.contiguous:
            self._add_over_samples(target, term)
        else:
            if larger:
                total = scratch_like(target, f"term of {view}")
                self.ops.sum(total, term)
                term = total
            self.ops.map(target, lambda total, term: total + term, target, term)
        self.mark(target)
        last = self.ops.operations[-1:]
        if last and isinstance(last[0], op.Copy) and last[0].outs == (target,) and last[0].ins[0].shape != target.shape:
            self._spread[target] = last[0].ins[0], last[0]

    def _add_over_samples(self, target: View, term: View) -> None:
        """Add the sum of a term over samples by a product with ones: only sums and products over samples add up in loops."""
        shape = (*[1] * (term.ndim - 1 - target.ndim), *target.shape)
        each = Buffer("term of each sample", "scratch", term.dtype, (Batch(), *shape)).whole
        if term.sample_shape == shape and term.contiguous:
            each = term
        else:
            self.ops.sum(each, term)
        ones = Buffer("ones", "scratch", term.dtype, (Batch(), 1)).whole
        self.ops.fill(ones, 1.0)
        rows = each.reshape(target.sample_size)
        self.ops.matmul(target.reshape(1, target.sample_size), ones.T, rows, accumulate=True)

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
        for each, (source, _) in list(self._spread.items()):
            if overlap(each, cotangent) or overlap(source, cotangent):
                del self._spread[each]

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
        for position, operation in enumerate(self.operations):
            if self._depends(operation):
                self.check(operation)
                if isinstance(operation, op.Reduce) and operation.kind == "max" and self._cancels(position, results):
                    continue
                self._active.update(self.place(view) for view in operation.outs if self.place(view).cotangent is not None)
        self._active.update(results)

    def _cancels(self, position: int, results: Sequence[Place]) -> bool:
        """Whether derivatives through a maximum cancel. Those through other arrays are as short as what would find it out."""
        return cancels(self.operations, position, lambda view: any(place.holds(view) for place in results))

    def _depends(self, operation: Operation) -> bool:
        """Whether the results depend on the input or a parameter, as those of another layer may in any case."""
        return isinstance(operation, Part) or any(self.is_active(view) for view in operation.ins)


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
