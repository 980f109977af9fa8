"""A program as each block of a cluster does it: the inputs, and the weights that they are multiplied by, in equal slices.

    y = x @ W                      part = x[:, own] @ W[own]
                                   y = the sum of all blocks' parts
    ...                     ->     ...
    g = x.T @ dy                   g[own] = x[:, own].T @ dy
    W = W - g * rate               W[own] = W[own] - g[own] * rate

Buffers shrink to what a block has: its own rows of W, of the gradient and of whatever else the optimiser keeps of them, and all
that is not divided, which every block computes for itself. Whatever else reads inputs, W or its gradient stands against it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from chains.backends.cupy.fused.exchange import SumOfBlocks, room_for_parts
from chains.backends.cupy.fused.updates import is_flat
from chains.program.alias import reach
from chains.program.loop import Loop
from chains.program.operations import MatMul, Operation
from chains.program.program import Program
from chains.program.view import Batch, Buffer, View, c_strides


@dataclass(frozen=True, order=True)
class Cut:
    """Elements from `start` on that are divided among the blocks: `size` of them, a block's own beside each other."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


class UndividableError(Exception):
    """An operation needs all of what is to be divided."""


class Slices:
    """The `program` of each of so many `blocks`, and how its buffers are cut from those of the whole program, by name.

    Raises UndividableError where some operation stands against it, or no product reads inputs that divide evenly.
    """

    def __init__(self, whole: Program, blocks: int) -> None:
        self.blocks = blocks
        self._x = _inputs(whole.operations, blocks)
        self._cuts: dict[Buffer, set[Cut]] = {self._x.buffer: {Cut(0, self._x.buffer.size)}}
        self._find(whole.operations)
        self._made = {buffer: self._shrunk(buffer) for buffer in self._cuts}
        operations = [each for operation in whole.operations for each in self._sliced(operation)]
        self.program = replace(whole, operations=tuple(operations))
        self.cuts = {made: sorted(self._cuts[buffer]) for buffer, made in self._made.items()}
        self.whole = {made: buffer for buffer, made in self._made.items()}

    def _find(self, operations: Iterable[Operation]) -> None:
        """Find all cuts: of weights, of their gradients, and of what goes through them element by element."""
        for operation in operations:
            if isinstance(operation, MatMul) and self._x in (operation.ins[0], operation.ins[0].T):
                view = operation.ins[1] if operation.ins[0] == self._x else operation.outs[0]
                if not view.contiguous or view.batched or view.moves:
                    raise UndividableError(operation)
                self._cuts.setdefault(view.buffer, set()).add(Cut(view.offset, view.sample_size))
        vectors = [[view for view in operation.views if view.ndim] for operation in operations if is_flat(operation)]
        found = -1
        while found < (found := sum(map(len, self._cuts.values()))):
            for views in vectors:
                places = {Cut(cut.start - view.offset, cut.size) for view in views for cut in self._inside(view)}
                for view in views if places else ():
                    own = {Cut(place.start + view.offset, place.size) for place in places}
                    self._cuts.setdefault(view.buffer, set()).update(own)

    def _inside(self, view: View) -> list[Cut]:
        """The cuts of the view's buffer that lie within it."""
        first, last = reach(view)
        return [cut for cut in self._cuts.get(view.buffer, ()) if first <= cut.start and cut.stop <= last]

    def _shrunk(self, buffer: Buffer) -> Buffer:
        """The buffer without what other blocks have. Raises UndividableError where it cannot be cut so."""
        cuts = sorted(self._cuts[buffer])
        apart = all(first.stop <= second.start for first, second in pairwise(cuts))
        if not apart or any(cut.size % self.blocks for cut in cuts) or buffer.data is not None:
            raise UndividableError(buffer)
        size = buffer.size - sum(cut.size - cut.size // self.blocks for cut in cuts)
        return replace(buffer, shape=(Batch(), size) if buffer.batched else (size,))

    def _sliced(self, operation: Operation) -> list[Operation]:
        """The operation as a block does it."""
        if isinstance(operation, MatMul) and not operation.accumulate:
            (out,), (a, b) = operation.outs, operation.ins
            if a == self._x and out.batched:
                part = room_for_parts(out)
                product = replace(operation, outs=(part,), ins=(self._inputs, self._rows(b)))
                return [product, SumOfBlocks((self._view(out),), (part,), self.blocks, label=operation.label)]
            if a == self._x.T:
                return [replace(operation, outs=(self._rows(out),), ins=(self._inputs.T, self._view(b)))]
        return [operation.on(self._vector if is_flat(operation) else self._view)]

    @property
    def _inputs(self) -> View:
        made = self._made[self._x.buffer]
        return View(made, (Batch(), made.size), (made.size, 1))

    def _rows(self, view: View) -> View:
        """A block's own rows of a matrix that is cut."""
        if Cut(view.offset, view.sample_size) not in self._cuts.get(view.buffer, ()):
            raise UndividableError(view)
        rows, *rest = view.sample_shape
        return replace(view, buffer=self._made[view.buffer], shape=(rows // self.blocks, *rest), offset=self._moved(view))

    def _vector(self, view: View) -> View:
        """A vector, without what other blocks have of it."""
        inside = self._inside(view) if view.ndim else []
        if not inside:
            return self._view(view)
        if len(inside) != sum(cut.start < reach(view)[1] and reach(view)[0] < cut.stop for cut in self._cuts[view.buffer]):
            raise UndividableError(view)
        shape = (view.sample_size - sum(cut.size - cut.size // self.blocks for cut in inside),)
        return replace(view, buffer=self._made[view.buffer], shape=shape, strides=c_strides(shape), offset=self._moved(view))

    def _view(self, view: View) -> View:
        """A view of what is not divided."""
        if view.buffer not in self._cuts:
            return view
        if view.batched or view.moves:
            raise UndividableError(view)
        first, last = reach(view)
        if any(cut.start < last and first < cut.stop for cut in self._cuts[view.buffer]):
            raise UndividableError(view)
        return replace(view, buffer=self._made[view.buffer], offset=self._moved(view))

    def _moved(self, view: View) -> int:
        """Where a view begins in the shrunk buffer."""
        before = [cut for cut in self._cuts[view.buffer] if cut.stop <= view.offset]
        return view.offset - sum(cut.size - cut.size // self.blocks for cut in before)


def _inputs(operations: Iterable[Operation], blocks: int) -> View:
    """The samples' inputs that products sum over: those of the most work."""
    work: dict[View, int] = {}
    for operation in operations:
        if isinstance(operation, Loop):
            raise UndividableError(operation)
        if isinstance(operation, MatMul):
            a, b = operation.ins
            whole = a.buffer.role == "input" and a.shape == (Batch(), a.buffer.size) and a.contiguous and not a.moves
            if whole and a.buffer.size % blocks == 0 and not b.batched:
                work[a] = work.get(a, 0) + prod(b.sample_shape)
    if not work:
        raise UndividableError
    return max(work, key=lambda view: work[view])
