"""Pullbacks that are derived: recorded once for each place of a layer, for cotangents in arrays that stand for the real ones.

When the layer is pulled back, the real arrays take their places. The step of a loop has its pullback in another loop. Then the
arrays of that loop take the places of those of the first one, and scratch arrays that the pullback reads get an entry for each
step, as arrays of ``d.saved`` have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from chains.program.fusion import fused
from chains.program.loop import Filled, Loop, all_operations
from chains.program.operations import Copy, Operation
from chains.program.places import Place, without_parts
from chains.program.recorder import Recorder
from chains.program.transpose_loops import LoopTransposer
from chains.program.versions import kept, separated, together
from chains.program.view import Batch, Buffer, View


@dataclass(frozen=True)
class Derived:
    """What `forward` recorded, and its pullback.

    `arrays` are those of the layer, in an order that is the same at each of its places; `depth` is the number of loops around
    it.
    """

    forward: list[Operation]
    pullback: list[Operation]
    arrays: Sequence[View]
    depth: int

    def fits(self, array: View, other: View) -> bool:
        """Whether the other array can take the place of one of `arrays`, or its elements are too far apart."""
        if array == other or other.contiguous:
            return array == other or array.contiguous or array.strides[1:] == other.strides[1:]
        first = int(array.batched)
        return array.strides[first:] == other.strides[first:] and array.buffer not in self._merged

    @property
    def _merged(self) -> set[Buffer]:
        """The buffers with views whose first axis has several rows of each sample."""
        return _merged(self.pullback)

    def placed(self, arrays: Sequence[View], *, fresh: bool) -> list[Operation]:
        """The pullback with other arrays in the places of `arrays`, and perhaps with `fresh` scratch arrays."""
        places: dict[Buffer, list[tuple[Place, View]]] = {}
        for array, other in zip(self.arrays, arrays, strict=True):
            if array is not other and array != other:
                places.setdefault(array.buffer, []).append((Place(array, depth=self.depth), other))
        given = {array.buffer for array in self.arrays}
        own = {view.buffer for operation in self.pullback for view in operation.writes} if fresh else set()
        new = {each: replace(each) for each in own if each.role == "scratch" and each not in given}

        def moved(view: View) -> View:
            if view.buffer in new:
                return replace(view, buffer=new[view.buffer])
            return next((place.to(view, other) for place, other in places.get(view.buffer, ()) if place.holds(view)), view)

        touched = places.keys() | new.keys()
        return [each.on(moved) if any(view.buffer in touched for view in each.views) else each for each in self.pullback]


def derive(
    ops: Recorder, record: Callable[[], None], places: Sequence[Place], results: Sequence[View], label: str
) -> tuple[list[Operation], list[Operation]]:
    """The operations of a `forward` and those of its pullback. What the pullback reads is not overwritten."""
    with keeping_parts(ops, True), ops.aside() as operations:
        record()
    _check_reads(operations, places, results)
    operations, versions = separated(operations, places)
    changed: list[Operation] | None = operations
    while changed is not None:
        operations = changed
        with ops.label(label), keeping_parts(ops, False), ops.aside() as pullback:
            transposer = LoopTransposer(ops, operations, places, versions)
            reads = transposer.record(results)
        operations = transposer.operations
        changed = kept(operations, reads, places)
    return without_parts(together(operations, versions, reads)), fused(pullback, transposer.private)


def _check_reads(operations: Sequence[Operation], places: Sequence[Place], results: Sequence[View]) -> None:
    """Raise ValueError if an operation reads a result, or a scratch array, before all of what it reads is filled."""
    given = {place.view.buffer for place in places if place.view not in results}
    own, filled = [place for place in places if place.view in results], Filled()
    for operation in operations:
        for view in operation.reads if not isinstance(operation, Loop) else ():
            unfilled = view.buffer.role == "scratch" and view.buffer not in given
            if (unfilled or any(place.holds(view) for place in own)) and not filled.covers(view):
                raise ValueError(f"`{operation}` reads `{view}`, or a part of it, before it is filled: fill it first")
        filled.add(operation.writes)


@contextmanager
def keeping_parts(ops: Recorder, keeps: bool) -> Iterator[None]:
    """A context in which layers within layers are recorded as parts, or not."""
    before, ops.keeps_parts = ops.keeps_parts, keeps
    yield
    ops.keeps_parts = before


def keep(
    forward: Sequence[Operation], pullback: Sequence[Operation], given: Sequence[View], depth: int,
    saved: Callable[[int, Buffer], View],
) -> tuple[list[Operation], list[Operation]]:  # fmt: skip
    """Both with the scratch arrays that the pullback reads in arrays that keep them until then.

    `given` are the arrays of the layer, which are kept already; `saved` gives the array that keeps a scratch array. Those
    without samples are computed again.
    """
    own = {view.buffer for view in given}
    made = {view.buffer for each in forward for view in each.writes if view.buffer.role == "scratch"} - own
    filled = {view.buffer for each in pullback for view in each.writes}
    reads = (view.buffer for each in pullback for view in each.reads)
    needed = dict.fromkeys(buffer for buffer in reads if buffer in made and buffer not in filled)
    again = _computed_again([buffer for buffer in needed if not buffer.batched], forward)
    arrays = {buffer: saved(k, buffer) for k, buffer in enumerate(each for each in needed if each.batched)}
    merged = _merged([*forward, *pullback])
    places = {
        buffer: Place(buffer.whole, depth=depth) for buffer, array in arrays.items() if buffer not in merged or array.contiguous
    }

    def moved(view: View) -> View:
        place = places.get(view.buffer)
        return view if place is None else place.to(view, arrays[view.buffer])

    copied = [(array, buffer.whole) for buffer, array in arrays.items() if buffer not in places]
    stored = [Copy((array,), (own,)) for array, own in copied]
    fetched = [Copy((own,), (array,)) for array, own in copied]
    return [each.on(moved) for each in forward] + stored, fetched + again + [each.on(moved) for each in pullback]


def _computed_again(buffers: Sequence[Buffer], forward: Sequence[Operation]) -> list[Operation]:
    """The operations that fill arrays without samples. Raises ValueError if they depend on samples."""
    wanted, found = set(buffers), []
    for operation in reversed(forward):
        if any(view.buffer in wanted for view in operation.writes):
            if operation.batched:
                raise ValueError(
                    f"`{operation.outs[0]}` is an array of the whole batch, made by `{operation.name}`, which no step of a "
                    "loop may have"
                )
            wanted.update(view.buffer for view in operation.reads)
            found.append(operation)
    return found[::-1]


def _merged(operations: Sequence[Operation]) -> set[Buffer]:
    """The buffers with views whose first axis has several rows of each sample."""
    views = (view for operation in all_operations(operations) for view in operation.views)
    return {view.buffer for view in views if any(isinstance(n, Batch) and n.per_sample > 1 for n in view.shape)}
