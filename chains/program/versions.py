"""Contents of arrays that operations overwrite. Those that a derived pullback reads get separate memory.

Before the pullback is recorded, all contents that are overwritten as a whole have separate memory. Afterwards it is known which
of them it reads, and the others go back. So the pullback is recorded once. Where a part of an array is overwritten, or a loop
carries it, contents that are read are copied, and the pullback is recorded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from chains.program.alias import overlap
from chains.program.loop import Loop
from chains.program.operations import Copy, Operation
from chains.program.places import Part, Place, Read
from chains.program.view import Buffer, View, scratch_like

Versions = dict[Buffer, Place]  # the memory of earlier contents, and the array that they are contents of


def separated(operations: Sequence[Operation], places: Sequence[Place]) -> tuple[list[Operation], Versions]:
    """The operations with all contents that are overwritten as a whole in separate memory."""
    begun = _begun(operations)
    changed, found, current = list(operations), Versions(), dict[Buffer, dict[Place, View]]()

    def moved(view: View) -> View:
        known = current.get(view.buffer)
        return view if known is None else next((p.to(view, own) for p, own in known.items() if p.holds(view)), view)

    for position in reversed(range(len(operations))):
        operation = operations[position]
        if not any(view.buffer in begun for view in operation.views):
            continue
        after = operation.on(moved) if any(view.buffer in current for view in operation.views) else operation
        replaced = [each for each in _replaced(operation, places) if begun.get(each.view.buffer, position) < position]
        for place in replaced:
            own = scratch_like(place.view, f"{place.view} before")
            current.setdefault(place.view.buffer, {})[place] = own
            found[own.buffer] = place
        if replaced and not isinstance(operation, Loop):
            after = replace(after, ins=tuple(map(moved, operation.ins)))
        changed[position] = after
    return changed, found


def _begun(operations: Sequence[Operation]) -> dict[Buffer, int]:
    """The arrays that several operations fill, and no layer within the layer uses, with the first operation of each."""
    begun: dict[Buffer, int] = {}
    filled: Counter[Buffer] = Counter()
    for position, operation in enumerate(operations):
        buffers = {view.buffer for view in operation.writes}
        filled.update(buffers)
        if isinstance(operation, Part):
            filled.subtract({view.buffer: len(operations) for view in operation.views})
        for view in operation.views:
            begun.setdefault(view.buffer, position)
    return {buffer: first for buffer, first in begun.items() if filled[buffer] > 1}


def _replaced(operation: Operation, places: Sequence[Place]) -> list[Place]:
    """The arrays all of which an operation fills."""
    found: dict[Place, None] = {}
    for out in operation.outs:
        place = _place_of(out, places)
        if (out.buffer.role == "scratch" or place in places) and _replaces(operation, place):
            found[place] = None
    return list(found)


def together(operations: Sequence[Operation], versions: Versions, reads: Sequence[Read]) -> list[Operation]:
    """The operations with contents in separate memory only where the pullback reads them."""
    needed = {read.view.buffer for read in reads}
    back = {buffer: (Place(buffer.whole), place.view) for buffer, place in versions.items() if buffer not in needed}

    def moved(view: View) -> View:
        return back[view.buffer][0].to(view, back[view.buffer][1]) if view.buffer in back else view

    return [each.on(moved) if any(view.buffer in back for view in each.views) else each for each in operations]


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
    place = _place_of(view, places)
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
        changed.insert(end, Copy((place.view,), (own,), label=last.label))

    def placed(read: Read) -> Read:
        inside = begin < read.position + read.after <= end
        position = read.position + (copied and read.position >= end)
        return replace(read, position=position, view=moved(read.view) if inside else read.view)

    return changed, placed


def _place_of(view: View, places: Sequence[Place]) -> Place:
    return next((each for each in places if each.view.buffer is view.buffer and each.holds(view)), None) or Place(
        view.buffer.whole
    )


def _replaces(operation: Operation, place: Place) -> bool:
    """Whether an operation fills all of an array, and needs no contents of it in its own memory."""
    if operation.accumulates or (isinstance(operation, Loop) and any(map(place.holds, operation.reads))):
        return False
    return any(place.holds(out) and _covers(out, place.view) for out in operation.outs)


def _covers(view: View, whole: View) -> bool:
    return view.sample_size == whole.sample_size
