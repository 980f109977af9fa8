"""Pools fused with the operations before and after them: a kernel each, with intermediate numbers in registers.

    a = x + b;  y = max_pool(a);  y = relu(y)                    one kernel, which also stores each window's choice
    d = where(y <= 0, 0, dy);  dx = max_pool_input(d);  db = sum(dx)   one kernel, which reads the choice

A pool is fused with the elementwise operations before it, if their results are not read elsewhere, and with those after it. The
pullback of a maximum reads the number of the largest entry: a byte for each window instead of the pool's input and output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from chains.backends.cupy.source.fusion import ELEMENTWISE, Run
from chains.backends.cupy.source.lanes import read_by
from chains.expr import maximum, trace
from chains.program.alias import conflict, overlap
from chains.program.operations import Copy, Map, Operation, Pool, PoolInput, Random, Reduce, users
from chains.program.view import Buffer, View, c_strides

MAX_ENTRIES = 1 << 16  # of a window whose choice is stored
_RELU = trace(lambda x: maximum(x, 0.0)).instructions


@dataclass(frozen=True)
class PoolRun(Operation):
    """A pool with the operations before and after it; `outs` are stored. `chosen` gets the number of each window's entry that
    equals the result, the first of several, and the number of entries where there is none.
    """

    pool: Pool
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    chosen: View | None


@dataclass(frozen=True)
class PoolInputRun(Operation):
    """The pullback of a pool with the operations `before` it, which compute its dy, and the sum of dx for each channel.

    `chosen` is what the pool's run wrote there, None for means.
    """

    pool: PoolInput
    before: tuple[Operation, ...]
    chosen: View | None
    total: Reduce | None


def with_pool_runs(operations: Sequence[Operation]) -> list[Operation]:
    """The operations of a whole program, with pools and the operations around them made one."""
    runs = _Runs(operations)
    return [new for position, old in enumerate(operations) for new in runs.replaced.get(position, [old])]


def is_tiled(pool: Pool) -> bool:
    """Whether each entry of the input belongs to one window at most."""
    return all(span <= stride for span, stride in zip(pool.window.span, pool.window.stride, strict=True))


class _Runs:
    """What takes the place of operations, by position."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._given = operations
        self._users = users(list(operations))
        self.replaced: dict[int, list[Operation]] = {}
        for position, operation in enumerate(operations):
            if type(operation) is Pool:
                self._forward(operation, position)
            elif isinstance(operation, PoolInput) and is_tiled(operation) and operation.kind == "mean":
                self._backward(operation, position, None)

    def _forward(self, pool: Pool, position: int) -> None:
        (y,), (x,) = pool.outs, pool.ins
        after, hoisted = self._after(y, position)
        behind = [image for k in after if (image := _as_images(self._given[k], y)) is not None]
        relus = {k for k, image in zip(after, behind, strict=True) if _is_relu(image, y)}
        pullbacks = self._pullbacks(pool, position, relus) if pool.kind == "max" else []
        last = max(after, default=position)
        written = [y, *(out for each in behind for out in each.outs)]
        before, first = self._before(x, position, pullbacks, written, [self._given[k] for k in hoisted])
        if not before and not after and not pullbacks:
            return
        chosen = _room_for_choice(pool) if pullbacks else None
        outs = [v for v in dict.fromkeys(written) if self._needed(v.buffer, last, pullbacks if v.buffer is y.buffer else ())]
        ins = [*(read_by(Run(first)) if first else [x]), *(v for v in read_by(Run([_itself(y), *behind])) if v != y)]
        stored = tuple(outs) if chosen is None else (*outs, chosen)
        run = PoolRun(stored, tuple(ins), pool, tuple(first), tuple(behind), chosen, label=_labels([*first, pool, *behind]))
        self.replaced |= {k: [] for k in (*before, *after, *hoisted)}
        self.replaced[position] = [*(self._given[k] for k in hoisted), run]
        for k in pullbacks:
            operation = self._given[k]
            assert isinstance(operation, PoolInput)
            self._backward(operation, k, chosen)

    def _after(self, y: View, position: int) -> tuple[list[int], list[int]]:
        """The operations after the pool that are fused with it; and random numbers between them, which may be drawn before."""
        run, found, hoisted = Run([_itself(y)]), [], []
        for k in range(position + 1, len(self._given)):
            operation = self._given[k]
            image = _as_images(operation, y) if type(operation) in ELEMENTWISE and k not in self.replaced else None
            if image is not None and run.takes(image) and not _spoils(image, self._given[position]):
                run.operations.append(image)
                found.append(k)
            elif isinstance(operation, Random) and not any(
                conflict(operation, self._given[other]) for other in range(position, k)
            ):
                hoisted.append(k)
            else:
                break
        used = [k for k in hoisted if found and k < found[-1]]
        return found, used

    def _pullbacks(self, pool: Pool, position: int, relus: Collection[int]) -> list[int]:
        """The pullbacks of the pool, if all that they need to know of its input and output is each window's choice.

        `relus`: where the operations are that go along and do y = relu(y). What these change, no pullback passes on.
        """
        (y,), (x,) = pool.outs, pool.ins
        found = []
        for k in range(position + 1, len(self._given)):
            operation = self._given[k]
            if isinstance(operation, PoolInput) and operation.ins[1:] == (x, y):
                same = (operation.window, operation.kind) == (pool.window, pool.kind)
                if not same or pool.window.area >= MAX_ENTRIES or operation.ins[0].buffer in (x.buffer, y.buffer):
                    return []
                found.append(k)
            if any(overlap(out, x) or (overlap(out, y) and k not in relus) for out in operation.writes):
                break
        return found

    def _before(
        self, x: View, position: int, pullbacks: Collection[int], written: Sequence[View], hoisted: Sequence[Operation]
    ) -> tuple[list[int], list[Operation]]:
        """The operations before the pool that are fused with it: they compute its input, which nothing else reads."""
        found, run = self._run_up_to(x, position)
        while any(
            self._needed(out.buffer, position, pullbacks if out.buffer is x.buffer else ()) for each in run for out in each.outs
        ):
            found, run = found[1:], run[1:]
        apart = not any(overlap(out, view) for out in written for each in run for view in each.views)
        if not apart or any(conflict(each, other) for each in run for other in hoisted):
            return [], []
        return (found, run) if any(x in each.outs for each in run) else ([], [])

    def _run_up_to(self, out: View, position: int) -> tuple[list[int], list[Operation]]:
        """The elementwise operations right before a position that compute `out`: where they are, and they on images."""
        found: list[int] = []
        run: list[Operation] = []
        for k in range(position - 1, -1, -1):
            operation = self._given[k]
            image = _as_images(operation, out) if type(operation) in ELEMENTWISE and k not in self.replaced else None
            if image is None or not _is_run([image, *run]):
                break
            found.insert(0, k)
            run.insert(0, image)
        return (found, run) if any(out in each.outs for each in run) else ([], [])

    def _backward(self, pool: PoolInput, position: int, chosen: View | None) -> None:
        (dx,), (dy, *_) = pool.outs, pool.ins
        before, first = self._run_up_to(dy, position) if is_tiled(pool) else ([], [])
        if any(overlap(dx, view) for each in first for view in each.views):
            before, first = [], []
        total = self._total(dx, position, [*first, pool]) if is_tiled(pool) else None
        last = position if total is None else position + 1
        written = dict.fromkeys([out for each in first for out in each.outs] + [dx])
        outs = [v for v in written if self._needed(v.buffer, last, ())]
        ins = read_by(Run(first)) if first else [dy]
        ins += [] if chosen is None else [chosen]
        outs += [] if total is None else [*total.outs]
        every = [*first, pool, *([] if total is None else [total])]
        self.replaced |= {k: [] for k in before}
        self.replaced[position] = [
            PoolInputRun(tuple(outs), tuple(ins), pool, tuple(first), chosen, total, label=_labels(every))
        ]
        if total is not None:
            self.replaced[last] = []

    def _total(self, dx: View, position: int, others: Sequence[Operation]) -> Reduce | None:
        """The operation behind the pullback, where it is the sum of dx for each channel."""
        operation = self._given[position + 1] if position + 1 < len(self._given) else None
        if not isinstance(operation, Reduce) or operation.kind != "sum" or operation.outs[0].batched:
            return None
        image = _as_images(operation, dx)
        if not isinstance(image, Reduce) or image.ins[0] != dx or image.outs[0].shape != (1, dx.shape[1], 1, 1):
            return None
        alone = not any(view.buffer is image.outs[0].buffer for each in others for view in each.views)
        return image if alone else None

    def _needed(self, buffer: Buffer, position: int, but: Collection[int]) -> bool:
        """Whether operations behind this position, but for some, touch a buffer."""
        return buffer.role != "scratch" or any(k > position and k not in but for k in self._users[buffer])


def _itself(y: View) -> Copy:
    """What stands for the operation that computes y, at the beginning of a run."""
    return Copy((y,), (y,))


def _is_run(operations: Sequence[Operation]) -> bool:
    run = Run([operations[0]])
    for operation in operations[1:]:
        if not run.takes(operation):
            return False
        run.operations.append(operation)
    return True


def _is_relu(operation: Operation, y: View) -> bool:
    """Whether the operation is y = relu(y)."""
    return isinstance(operation, Map) and operation.views == (y, y) and operation.formula.instructions == _RELU


def _spoils(operation: Operation, pool: Operation) -> bool:
    """Whether the operation writes what other threads of the pool's kernel read."""
    return any(overlap(out, view) for out in operation.outs for view in pool.ins)


def _as_images(operation: Operation, like: View) -> Operation | None:
    """The operation with axes (sample, channel, row, column), None where it is on another shape than `like`.

    Signals have no rows.
    """
    main = operation.ins[0] if isinstance(operation, Reduce) else operation.outs[0]
    if main.ndim != 4 and not (main.ndim == 3 and like.shape[2] == 1):
        return None
    image = operation.on(partial(_as_image, ndim=main.ndim, like=like))
    found = image.ins[0] if isinstance(operation, Reduce) else image.outs[0]
    return image if found.shape == like.shape else None


def _as_image(view: View, ndim: int, like: View) -> View:
    """The view with `ndim` axes, and one of length 1 for missing rows; `like`, where it has the same elements."""
    missing = ndim - view.ndim
    shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
    if ndim == 3:
        (n, c, w), (by_n, by_c, by_w) = shape, strides
        shape, strides = (n, c, 1, w), (by_n, by_c, by_c, by_w)
    view = replace(view, shape=shape, strides=strides)
    return like if _without_ones(view) == _without_ones(like) else view


def _without_ones(view: View) -> tuple[object, ...]:
    """What decides which elements a view has: two are equal in all that counts where these are."""
    moving = tuple(0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return view.buffer, view.shape, moving, view.offset, view.loop_strides


def _room_for_choice(pool: Pool) -> View:
    (y,) = pool.outs
    dtype = np.dtype(np.uint8 if pool.window.area < 256 else np.uint16)
    buffer = Buffer(f"choice of {y}", "scratch", dtype, y.shape)
    return View(buffer, y.shape, c_strides(y.shape))


def _labels(operations: Sequence[Operation]) -> str:
    return ", ".join(dict.fromkeys(each.label for each in operations))
