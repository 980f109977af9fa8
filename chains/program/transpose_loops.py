"""Pullbacks of loops: a loop over the same steps in reverse, whose body is the pullback of the body.

The cotangents of arrays that are carried from step to step are carried too. Arrays without samples that the body only reads,
such as parameters, get a term for each step, and these are added up after the loop. What the pullback of a step reads, and
later steps overwrite, is kept: a scratch array that each step fills gets an entry for each step, others are copied to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.program.alias import overlap
from chains.program.loop import Loop, Steps, all_operations, fills_first, slot
from chains.program.operations import Copy, Operation
from chains.program.places import Part, Place
from chains.program.transpose import Transposer
from chains.program.view import Batch, Buffer, View, scratch_like


class LoopTransposer(Transposer):
    """Records the pullback of operations, with loops among them."""

    def transpose(self, operation: Operation) -> None:
        if isinstance(operation, Loop):
            self._loop(operation)
        else:
            super().transpose(operation)

    def check(self, operation: Operation) -> None:
        if not isinstance(operation, Loop):
            super().check(operation)
            return
        if operation.skip_where_zero is not None:
            raise NotImplementedError(
                "there is no rule for the pullback of a `loop` that leaves steps out: write the layer's pullback"
            )
        for each in operation.body:
            if isinstance(each, Part):
                layer = type(each.node.declaration.layer).__name__
                raise NotImplementedError(
                    f"there is no rule for the pullback of a layer in a `loop`, here {layer}: make the step a Cell for "
                    "Recurrent, with the layer as a part"
                )
            self.check(each)

    def is_private(self, buffer: Buffer) -> bool:
        """Whether the operation at the present position alone uses a scratch buffer, which the layer is not given."""
        if buffer.role != "scratch" or any(place.view.buffer is buffer for place in self._places):
            return False
        others = (each for k, each in enumerate(self.operations) if k != self._position)
        return not any(view.buffer is buffer for each in others for view in each.views)

    def value_of_steps(self, view: View, over: View, *, after: bool) -> View:
        """The view of a step of a loop, all of which the pullback reads: `over` them."""
        self.value(over, after=after)
        return view

    def value_of_copies(self, view: View, over: View) -> View:
        """Likewise of an array that was added to the loop."""
        return self.value_of_steps(view, over, after=True)

    def _loop(self, loop: Loop) -> None:
        inside = _InLoop(self, loop)
        inside.begin()
        with self.ops.loop(loop.steps, closed=loop.closed):
            inside.record_step()
        inside.end()
        self.operations[self._position] = inside.changed()


class _InLoop(LoopTransposer):
    """Records the pullback of a step: all views advance the other way. Cotangents have terms or not alike at each step."""

    def __init__(self, outer: LoopTransposer, loop: Loop) -> None:
        super().__init__(outer.ops, loop.body, outer._places)
        self.outer, self.loop, self.depth = outer, loop, loop.depth
        self._active = outer._active
        self._views: dict[Place, dict[View, None]] = {}
        for operation in loop.body:
            for view in operation.views:
                if outer.is_active(view):
                    self._views.setdefault(outer.place(view), {})[view] = None
        self._written = {outer.place(view) for operation in loop.body for view in operation.writes}
        moves = [view.loop_stride(self.depth) for operation in loop.body for view in operation.views]
        self._steps = Steps(loop.steps, self.depth, min(moves, default=0) < 0)
        self._each: dict[Place, View] = {}  # the terms of each step for an array that the body only reads
        self._apart: dict[Place, View] = {}  # the terms for an array that the body reads in a part for each step
        self._expanded: dict[Buffer, View] = {}  # the entry of a step, for a scratch array that each step fills
        self._copies: dict[tuple[View, int], View] = {}
        self._inserted: list[tuple[int, Copy]] = []

    # Cotangents

    def place(self, view: View) -> Place:
        return self.outer.place(view)

    def cotangent(self, view: View) -> View:
        place = self.place(view)
        if place in self._each:  # its terms advance with the steps, and the view perhaps with those of a loop within this one
            return self._reversed(replace(place, depth=self.depth + 1).to(view, self._each[place]))
        each = self._apart.get(place)
        return self._reversed(self.outer.cotangent(view) if each is None else place.to(view, each))

    def moved(self, view: View, result: View, cotangent: View) -> bool:
        return False  # others of its steps may be in use

    def begin(self) -> None:
        """Before the loop: decide which cotangents have terms when a step begins, and fill them if need be."""
        for place, views in self._views.items():
            written, moves = place in self._written, {view.loop_stride(self.depth) for view in views}
            if written and len(moves) > 1:
                raise NotImplementedError(
                    f"there is no rule for the pullback of a `loop` that writes to `{place.view}` in a part for each step and "
                    "uses it as a whole: write to a separate array"
                )
            if not written and not place.view.batched and not any(view.loop_strides for view in views):
                shape = (self.loop.steps, *place.view.sample_shape)
                self._each[place] = self._steps.now(
                    Buffer(f"terms of {place.view}", "scratch", place.view.dtype, shape).whole, 0
                )
            elif not (moves == {0} and self._is_fresh(place.view.buffer)) and not self._begins_empty(views, moves):
                if not written and not place.view.batched and self._has_slots(views, moves):
                    self._apart[place] = scratch_like(place.view, f"terms of {place.view}")  # backends add after the loop
                    continue
                for view in views:
                    self.outer.complete(self._over(self.outer.cotangent(view)))
                    self._memory(self.cotangent(view))[...] = True

    def _begins_empty(self, views: Sequence[View] | dict[View, None], moves: set[int]) -> bool:
        """Whether each step has a separate part of the array, whose cotangent has no terms from outside of the loop."""
        return self._has_slots(views, moves) and not any(
            self.outer._mask(self._over(self.outer.cotangent(view))).any() for view in views
        )

    def _has_slots(self, views: Sequence[View] | dict[View, None], moves: set[int]) -> bool:
        """Whether each step has a separate part of the array."""
        slots = {slot(view, self.depth) for view in views}
        return moves != {0} and len(slots) == 1 and None not in slots

    def record_step(self) -> None:
        """Within the loop: the pullback of a step, after which carried cotangents are filled as they were before it."""
        self._record_all()
        for each in self._each.values():
            self.complete(self._reversed(each))
        for place, views in self._views.items():
            for view in views:
                fresh = view.loop_stride(self.depth) == 0 and self._is_fresh(view.buffer)
                read = place not in self._written
                if place not in self._each and not fresh and (read or not view.loop_stride(self.depth)):
                    self.complete(self.cotangent(view))

    def end(self) -> None:
        """After the loop: add up the terms of each step, and note which cotangents have terms."""
        for place, each in self._each.items():
            whole = each.buffer.whole
            self.outer.add(place.view, whole.index(0, 0) if self.loop.steps == 1 else whole)
        for place, each in self._apart.items():
            for view in self._views[place]:
                self.outer.mark(self._over(place.to(view, each)))
            self.outer.complete(each)
            self.outer.add(place.view, each)
        for place, views in self._views.items():
            for view in views if place not in self._each.keys() | self._apart.keys() else ():
                fresh = view.loop_stride(self.depth) == 0 and self._is_fresh(view.buffer)
                filled = not fresh and bool(self._mask(self.cotangent(view)).all())
                self.outer.mark(self._over(self.outer.cotangent(view)), filled=filled)

    # Values

    def value(self, view: View, *, after: bool = False) -> View:
        time = self._position + after
        if not self._is_settled(view, time):
            return self._value_of_copy(view, self._kept(view, time))
        written = any(out.buffer is view.buffer for each in self.loop.body for out in each.writes)
        return self._reversed(self.outer.value_of_steps(view, self._over(view), after=written))

    def _value_of_copy(self, view: View, copy: View) -> View:
        """The value of a view that a copy keeps, which the forward pass fills in this loop."""
        found = self._reversed(self.outer.value_of_copies(copy, self._over(copy)))
        return self._in_rows(view, found) if self._is_merged(view) and not self._is_merged(copy) else found

    def value_of_steps(self, view: View, over: View, *, after: bool) -> View:
        return self.value(view, after=after)

    def value_of_copies(self, view: View, over: View) -> View:
        return self._value_of_copy(view, self._kept(view, self._position + 1))

    def _in_rows(self, view: View, found: View) -> View:
        """A view of a copy without gaps, for one whose first axis has several rows of each sample."""
        place = Place(view.buffer.whole, depth=self.depth + 1)
        own = scratch_like(place.view, f"{view} again")
        self.ops.copy(own, found)
        return place.to(view, own)

    @staticmethod
    def _is_merged(view: View) -> bool:
        return any(isinstance(n, Batch) and n.per_sample > 1 for n in view.shape)

    def _kept(self, view: View, time: int) -> View:
        """The array of this step that keeps the contents of a view at a time."""
        later = (out for each in self.operations[time:] for out in each.writes)
        merged = any(self._is_merged(each) for each in self._all_views(view.buffer))
        if self._is_fresh(view.buffer) and not merged and not any(overlap(out, view) for out in later):
            if view.buffer not in self._expanded:
                self._expanded[view.buffer] = self._entry(view.buffer.whole)
            return Place(view.buffer.whole, depth=self.depth + 1).to(view, self._expanded[view.buffer])
        whole = view if view.loop_stride(self.depth) else self.place(view).view
        before = [k for k, each in enumerate(self.operations[:time]) if any(overlap(out, whole) for out in each.writes)]
        key = (whole, before[-1] if before else -1)
        if key not in self._copies:
            self._copies[key] = self._entry(whole)
            self._inserted.append((time, Copy((self._copies[key],), (whole,))))
        if self._is_merged(view):
            return self._copies[key]
        return Place(whole, depth=self.depth + 1).to(view, self._copies[key])

    def _entry(self, view: View) -> View:
        """The entry of a step in a new array."""
        batch = (Batch(),) if view.batched else ()
        each = Buffer(f"{view} of each step", "scratch", view.dtype, (*batch, self.loop.steps, *view.sample_shape)).whole
        return self._steps.now(each, len(batch))

    def changed(self) -> Loop:
        """The loop, which keeps what its pullback reads."""
        body = list(self.operations)
        for time, copy in sorted(self._inserted, key=lambda each: each[0], reverse=True):
            body.insert(time, copy)
        places = {buffer: Place(buffer.whole, depth=self.depth + 1) for buffer in self._expanded}

        def moved(view: View) -> View:
            return places[view.buffer].to(view, self._expanded[view.buffer]) if view.buffer in places else view

        return self.loop.around([each.on(moved) for each in body] if places else body)

    # Views

    def is_private(self, buffer: Buffer) -> bool:
        return super().is_private(buffer) and self.outer.is_private(buffer)

    def _is_fresh(self, buffer: Buffer) -> bool:
        """Whether each step fills a scratch array before it reads it, and nothing else uses it."""
        views = self._all_views(buffer)
        same = not any(view.loop_stride(self.depth) for view in views)
        return same and self.outer.is_private(buffer) and fills_first(self.loop.body, buffer)

    def _all_views(self, buffer: Buffer) -> list[View]:
        return [view for each in all_operations(self.loop.body) for view in each.views if view.buffer is buffer]

    def _reversed(self, view: View) -> View:
        """The view, advancing from that of the last step."""
        move = view.loop_stride(self.depth)
        return replace(view.advancing(self.depth, -move), offset=view.offset + (self.loop.steps - 1) * move) if move else view

    def _over(self, view: View) -> View:
        return view.over(self.depth, self.loop.steps)

    def _is_settled(self, view: View, time: int) -> bool:
        """Whether a view has the contents that it has at a time also after the loop."""
        own = slot(view, self.depth)
        for k, operation in enumerate(self.loop.body):
            for out in operation.writes:
                made = slot(out, self.depth)
                if out.buffer is not view.buffer or (own is made is None and not overlap(out, view)):
                    continue
                if own is None or made is None or own[0] != made[0]:
                    return False
                ahead = (own[1] - made[1]) * (1 if own[0] > 0 else -1)
                if ahead > 0 or (ahead == 0 and k >= time and overlap(out, view)):
                    return False
        return True
