"""Pools and their pullbacks, fused with the elementwise operations before and after them.

    a = x + b;  y = max_pool(a);  y = relu(y)                    one kernel, which also stores the choice of each window
    d = where(y <= 0, 0, dy);  dx = max_pool_input(d);  db = sum(dx)   one kernel, which reads the choice

A pool is fused with the elementwise operations before it, if their results are not read elsewhere, and with those after it. The
pullback of a maximum reads the number of the largest entry: a byte for each window instead of the pool's input and output.

A thread computes a window. In the pullback too, if no entry of the input belongs to two windows: the thread then fills the
window and the gap after it. Otherwise each thread of the pullback computes an entry of the input from all windows with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from chains.backends.cupy.kernels.images import at, covering, entries, number, one_each, stored
from chains.backends.cupy.source.axes import Space, advances
from chains.backends.cupy.source.c_source import ctype, literal
from chains.backends.cupy.source.commands import HELPERS, Command, Pointers, Source, indented
from chains.backends.cupy.source.maps import ELEMENTWISE, Run, read_by, run_lines
from chains.backends.cupy.source.reduction import Temporary, Terms, reduce_commands, spread
from chains.expr import maximum, trace
from chains.lowering.axes import aligned_strides
from chains.lowering.c_language import sum_text
from chains.program.alias import conflict, overlap
from chains.program.operations import Copy, Map, Operation, Pool, PoolInput, Random, Reduce, Window, users
from chains.program.view import Batch, Buffer, View, c_strides, concrete

MAX_ENTRIES = 1 << 16  # of a window whose choice is stored
_RELU = trace(lambda x: maximum(x, 0.0)).instructions


@dataclass(frozen=True)
class PoolRun(Operation):
    """A pool with the operations before and after it; `outs` are stored. `chosen` gets the number of each window's entry that
    equals the result, the first of several, and the number of entries if there is none.
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
    """The operations of a whole program, with pools fused with the operations around them."""
    runs = _Runs(operations)
    return [new for position, old in enumerate(operations) for new in runs.replaced.get(position, [old])]


def is_tiled(pool: Pool) -> bool:
    """Whether each entry of the input belongs to one window at most."""
    return all(span <= stride for span, stride in zip(pool.window.span, pool.window.stride, strict=True))


class _Runs:
    """The replacements of operations, by position."""

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
        following = [image for k in after if (image := _as_images(self._given[k], y)) is not None]
        relus = {k for k, image in zip(after, following, strict=True) if _is_relu(image, y)}
        pullbacks = self._pullbacks(pool, position, relus) if pool.kind == "max" else []
        last = max(after, default=position)
        written = [y, *(out for each in following for out in each.outs)]
        before, first = self._before(x, position, pullbacks, written, [self._given[k] for k in hoisted])
        if not before and not after and not pullbacks:
            return
        chosen = _room_for_choice(pool) if pullbacks else None
        outs = [v for v in dict.fromkeys(written) if self._needed(v.buffer, last, pullbacks if v.buffer is y.buffer else ())]
        ins = [*(read_by(Run(first)) if first else [x]), *(v for v in read_by(Run([_itself(y), *following])) if v != y)]
        stored = tuple(outs) if chosen is None else (*outs, chosen)
        run = PoolRun(
            stored, tuple(ins), pool, tuple(first), tuple(following), chosen, label=_labels([*first, pool, *following])
        )
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
        """The pullbacks of the pool, if they need only each window's choice of its input and output.

        `relus`: the positions of fused operations y = relu(y). No pullback passes a gradient to entries that these change.
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
        """The elementwise operations right before a position that compute `out`: their positions, and their form on images."""
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
        """The operation after the pullback, if it is the sum of dx for each channel."""
        operation = self._given[position + 1] if position + 1 < len(self._given) else None
        if not isinstance(operation, Reduce) or operation.kind != "sum" or operation.outs[0].batched:
            return None
        image = _as_images(operation, dx)
        if not isinstance(image, Reduce) or image.ins[0] != dx or image.outs[0].shape != (1, dx.shape[1], 1, 1):
            return None
        alone = not any(view.buffer is image.outs[0].buffer for each in others for view in each.views)
        return image if alone else None

    def _needed(self, buffer: Buffer, position: int, but: Collection[int]) -> bool:
        """Whether operations after this position, except some, touch a buffer."""
        return buffer.role != "scratch" or any(k > position and k not in but for k in self._users[buffer])


def _itself(y: View) -> Copy:
    """The placeholder of the operation that computes y, at the beginning of a run."""
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
    """Whether the operation writes elements that other threads of the pool's kernel read."""
    return any(overlap(out, view) for out in operation.outs for view in pool.ins)


def _as_images(operation: Operation, like: View) -> Operation | None:
    """The operation with axes (sample, channel, row, column); None if its shape differs from that of `like`.

    Signals have no rows.
    """
    main = operation.ins[0] if isinstance(operation, Reduce) else operation.outs[0]
    if main.ndim != 4 and not (main.ndim == 3 and like.shape[2] == 1):
        return None
    image = operation.on(partial(_as_image, ndim=main.ndim, like=like))
    found = image.ins[0] if isinstance(operation, Reduce) else image.outs[0]
    return image if found.shape == like.shape else None


def _as_image(view: View, ndim: int, like: View) -> View:
    """The view with `ndim` axes, and one of length 1 for missing rows; `like` if it has the same elements."""
    missing = ndim - view.ndim
    shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
    if ndim == 3:
        (n, c, w), (by_n, by_c, by_w) = shape, strides
        shape, strides = (n, c, 1, w), (by_n, by_c, by_c, by_w)
    view = replace(view, shape=shape, strides=strides)
    return like if _without_ones(view) == _without_ones(like) else view


def _without_ones(view: View) -> tuple[object, ...]:
    """The facts that decide the elements of a view: equal facts mean equal elements."""
    moving = tuple(0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return view.buffer, view.shape, moving, view.offset, view.loop_strides


def _room_for_choice(pool: Pool) -> View:
    (y,) = pool.outs
    dtype = np.dtype(np.uint8 if pool.window.area < 256 else np.uint16)
    buffer = Buffer(f"choice of {y}", "scratch", dtype, y.shape)
    return View(buffer, y.shape, c_strides(y.shape))


def _labels(operations: Sequence[Operation]) -> str:
    return ", ".join(dict.fromkeys(each.label for each in operations))


MAX_UNROLLED = 4  # entries of a window that are written out one by one


@dataclass(frozen=True)
class _Place:
    """An element of images, by the names of its coordinates."""

    names: tuple[str, str, str, str]

    def index_of(self, view: View) -> str:
        """The number of the view's element in its buffer, as C."""
        return sum_text(view.offset, [*zip(self.names, aligned_strides(view, 4), strict=True), *advances(view)])


def _computed(
    operations: Sequence[Operation], names: tuple[str, str, str, str], pointers: Pointers, outs: Sequence[View],
    known: Mapping[View, str] | None = None
) -> tuple[list[str], dict[View, str]]:  # fmt: skip
    """The statements of elementwise operations at a place, and the variables that hold each view's value."""
    if not operations:
        return [], dict(known or {})
    kept = {view.buffer for view in outs}
    return run_lines(Run([*operations]), _Place(names), pointers, lambda buffer: buffer in kept, known)


def pool(source: Source, operation: Pool) -> list[Command]:
    """A pool that is not fused."""
    return pool_run(source, PoolRun(operation.outs, operation.ins, operation, (), (), None, label=operation.label))


def pool_run(source: Source, operation: PoolRun) -> list[Command]:
    """A thread for each window."""
    pooling, chosen = operation.pool, operation.chosen
    (y,), (x,) = pooling.outs, pooling.ins
    pointers, kind, window = Pointers(), ctype(y.dtype), pooling.window
    first, known = _computed(operation.before, ("n", "c", "ih", "iw"), pointers, ())
    value = known.get(x) or number(pointers, x, "n", "c", "ih", "iw")
    entry = f"kh * {window.size[1]} + kw"
    if pooling.kind == "max":
        start, result = literal(float("-inf"), kind), "total"
        each = [f"const {kind} value = {value};"]
        if chosen is not None:
            each.append(
                f"if (!(total >= value || total != total) || (which == {window.area} && value == total)) which = {entry};"
            )
        each.append(f"total = max_{kind[0]}(total, value);")
    else:
        start, each = literal(0.0, kind), [f"total += {value};", "++entries;"]
        result = f"total / {literal(float(window.area), kind) if pooling.count_padding else f'({kind})entries'}"
    names = ("n", "c", "h", "w")
    after, final = _computed(operation.after, names, pointers, operation.outs, {y: "result"})
    body = [
        f"{kind} total = {start};",
        *(["int entries = 0;"] if pooling.kind == "mean" else []),
        *([f"int which = {window.area};"] if chosen is not None else []),
        *entries(window, x, y, [*first, *each]),
        *(["(void)entries;"] if pooling.kind == "mean" else []),
        f"const {kind} result = {result};",
        *after,
    ]
    if y in operation.outs and final[y] == "result":
        body.append(stored(pointers, y, "result", *names))
    if chosen is not None:  # relu may have changed the result: then no entry equals it
        place = f"{pointers(chosen.buffer, write=True)}[{at(chosen, *names)}]"
        body.append(f"{place} = ({ctype(chosen.dtype)})({final[y]} == total ? which : {window.area});")
    return one_each(source, pointers, y, body, pooling.name, operation.label)


def pool_input(source: Source, operation: PoolInput) -> list[Command]:
    """A thread for each element of the input takes its share of the gradient of each window with this element."""
    (dx,), (dy, *rest) = operation.outs, operation.ins
    pointers, kind, window = Pointers(), ctype(dx.dtype), operation.window
    share = number(pointers, dy, "n", "c", "oh", "ow")
    if operation.kind == "max":
        x, y = rest
        first = [
            f"const {kind} most = {number(pointers, y, 'n', 'c', 'oh', 'ow')};",
            f"int mine = {number(pointers, x, 'n', 'c', 'h', 'w')} == most;",
            *_earlier(window, x, f"if ({number(pointers, x, 'n', 'c', 'ih', 'iw')} == most) mine = 0;"),
            f"if (mine) total += {share};",
        ]
    else:
        first = [f"total += {_part_of(operation, dx, share)};"]
    return _by_entry(source, pointers, operation, first, operation.label)


def _part_of(operation: PoolInput, dx: View, share: str) -> str:
    """The share of each entry of the window at (oh, ow) in its gradient, for means."""
    kind, window = ctype(dx.dtype), operation.window
    if operation.count_padding:
        return f"{share} / {literal(float(window.area), kind)}"
    return f"{share} / ({kind})({_inside(window, dx, 0, 'oh')} * {_inside(window, dx, 1, 'ow')})"


def _by_entry(source: Source, pointers: Pointers, operation: PoolInput, each: list[str], label: str) -> list[Command]:
    """A thread for each element of the input, over all windows with it."""
    (dx,), dy = operation.outs, operation.ins[0]
    kind = ctype(dx.dtype)
    body = [
        f"{kind} total = {literal(0.0, kind)};",
        *covering(operation.window, dy, each),
        stored(pointers, dx, "total", "n", "c", "h", "w"),
    ]
    return one_each(source, pointers, dx, body, operation.name, label)


def pool_input_run(source: Source, operation: PoolInputRun, temporary: Temporary) -> list[Command]:
    """A thread for each window, or for each element of the input if windows overlap."""
    pooling, chosen, total = operation.pool, operation.chosen, operation.total
    (dx,), dy = pooling.outs, pooling.ins[0]
    pointers, window = Pointers(), pooling.window
    if not is_tiled(pooling):
        assert chosen is not None
        asked = f"{pointers(chosen.buffer)}[{at(chosen, 'n', 'c', 'oh', 'ow')}] == kh * {window.size[1]} + kw"
        each = [f"if ({asked}) total += {number(pointers, dy, 'n', 'c', 'oh', 'ow')};"]
        return _by_entry(source, pointers, pooling, each, operation.label)
    tiles = _tiles(window, dx)
    body = _window_filled(operation, tiles, pointers)
    if total is None:
        image = View(dx.buffer, (Batch(), dx.shape[1], *tiles), dx.strides)
        return one_each(source, pointers, image, ["const Index oh = h, ow = w;", *body], pooling.name, operation.label)
    (out,) = total.outs
    strides = (*dx.strides[:2], *(step * stride for step, stride in zip(dx.strides[2:], window.stride, strict=True)))
    guide = View(dx.buffer, (Batch(), dx.shape[1], *tiles), strides)
    space = Space(guide.shape, [out, guide], reduced=(0, 2, 3), kept="o", inner="r")
    lines = [
        f"const Index c = o, ow = (Count)r % {tiles[1]}, oh = (Count)r / {tiles[1]} % {tiles[0]};",
        f"const Index n = (Count)r / {math.prod(tiles)};",
        *body,
    ]
    shape, terms = spread(space, guide), Terms(lines, "sum")
    return reduce_commands(source, "sum", space, pointers, terms, out, operation.label, temporary, shape, pooling.name)


def _tiles(window: Window, dx: View) -> tuple[int, int]:
    """The number of steps of the window over the input, along each axis."""
    rows, columns = (
        -(-(length + window.padding[k][0]) // window.stride[k]) for k, length in enumerate(concrete(dx.shape, 1)[2:])
    )
    return rows, columns


def _window_filled(operation: PoolInputRun, tiles: tuple[int, int], pointers: Pointers) -> list[str]:
    """Statements that fill the window at (n, c, oh, ow) and the gap after it; `sum` is the sum of both."""
    pooling, chosen, total = operation.pool, operation.chosen, operation.total
    (dx,), dy = pooling.outs, pooling.ins[0]
    kind, window, names = ctype(dx.dtype), pooling.window, ("n", "c", "oh", "ow")
    lines, known = _computed(operation.before, names, pointers, operation.outs)
    share = known.get(dy) or number(pointers, dy, *names)
    found = [*lines, f"share = {literal(0.0, kind)} + {share if chosen is not None else _part_of(pooling, dx, share)};"]
    if chosen is not None:
        found.append(f"which = {pointers(chosen.buffer)}[{at(chosen, *names)}];")
    outputs = concrete(dy.shape, 1)[2:]
    guards = [f"{name} < {n}" for name, n, all_ in zip(("oh", "ow"), outputs, tiles, strict=True) if all_ > n]
    if guards:
        found = [f"if ({' && '.join(guards)}) {{", *indented(found), "}"]
    result = [f"{kind} share = {literal(0.0, kind)};"]
    result += [f"int which = {window.area};"] if chosen is not None else []
    result += [*found, *([f"{kind} sum = {literal(0.0, kind)};"] if total is not None else [])]
    (down, right), (top, left) = window.stride, (window.padding[0][0], window.padding[1][0])
    each = [f"const Index ih = oh * {down} + a - {top}, iw = ow * {right} + b - {left};"]
    limits = [
        *(["ih >= 0"] if top else []), *(["iw >= 0"] if left else []),
        *([f"ih < {dx.shape[2]}"] if tiles[0] * down - top > concrete(dx.shape, 1)[2] else []),
        *([f"iw < {dx.shape[3]}"] if tiles[1] * right - left > concrete(dx.shape, 1)[3] else []),
    ]  # fmt: skip
    if limits:
        each.append(f"if (!({' && '.join(limits)})) continue;")
    each.append(f"const {kind} value = {_is_entry(window, chosen is not None)} ? share : {literal(0.0, kind)};")
    if dx in operation.outs:
        each.append(f"{pointers(dx.buffer, write=True)}[{at(dx, 'n', 'c', 'ih', 'iw')}] = value;")
    each += ["sum += value;"] if total is not None else []
    unroll = ["#pragma unroll"] if down * right <= MAX_UNROLLED else []
    loop = [f"for (int b = 0; b < {right}; ++b) {{", *indented(each), "}"]
    return [*result, *unroll, f"for (int a = 0; a < {down}; ++a) {{", *indented([*unroll, *loop]), "}"]


def _is_entry(window: Window, chosen: bool) -> str:
    """Whether row a and column b of the step of a window are an entry of it; with `chosen`, the chosen entry."""
    conditions = []
    for name, size, stride, over in zip("ab", window.size, window.stride, window.dilation, strict=True):
        if over > 1 and size > 1:
            conditions.append(f"{name} % {over} == 0")
        if (size - 1) * over + 1 < stride:
            conditions.append(f"{name} <= {(size - 1) * over}")
    if chosen:
        conditions.append(f"which == a / {window.dilation[0]} * {window.size[1]} + b / {window.dilation[1]}")
    return " && ".join(conditions) or "1"


def _earlier(window: Window, x: View, body: str) -> list[str]:
    """`body` for the entries before (kh, kw) of the window at (oh, ow), while it may still be the first largest."""
    (down, right), (over, along) = window.stride, window.dilation
    top, left = window.padding[0][0], window.padding[1][0]
    return [
        f"for (int e = 0; mine && e < kh * {window.size[1]} + kw; ++e) {{",
        f"    const Index ih = oh * {down} + e / {window.size[1]} * {over} - {top};",
        f"    const Index iw = ow * {right} + e % {window.size[1]} * {along} - {left};",
        f"    if (ih >= 0 && ih < {x.shape[2]} && iw >= 0 && iw < {x.shape[3]}) {body}",
        "}",
    ]


INSIDE = """\
DEVICE int inside(int position, int stride, int dilation, int size, int padding, int length)
{
    int entries = 0;
    for (int k = 0; k < size; ++k) {
        const int at = position * stride + k * dilation - padding;
        entries += at >= 0 && at < length;
    }
    return entries;
}
"""
HELPERS.append(INSIDE)


def _inside(window: Window, x: View, axis: int, position: str) -> str:
    """The number of entries of the window, along an axis, that are not padding."""
    numbers = window.stride[axis], window.dilation[axis], window.size[axis], window.padding[axis][0], x.shape[2 + axis]
    return f"inside((int){position}, {', '.join(map(str, numbers))})"
