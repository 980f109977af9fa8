"""Kernels for pools and their pullbacks, with the elementwise operations around them (see `pool_runs`).

A thread has a window. Where no entry of the input belongs to two windows, that is so in the pullback too: the thread fills
the window and the gap behind it. Otherwise a thread there has an entry of the input, and asks each window it is in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chains.backends.cupy.kernels.images import at, covering, entries, number, one_each, stored
from chains.backends.cupy.kernels.pool_runs import PoolInputRun, PoolRun, is_tiled
from chains.backends.cupy.source.axes import Space, advances
from chains.backends.cupy.source.c_source import ctype, literal
from chains.backends.cupy.source.commands import HELPERS, Command, Pointers, Source, indented
from chains.backends.cupy.source.fusion import Run, run_lines
from chains.backends.cupy.source.reduction import Temporary, Terms, reduce_commands, spread
from chains.lowering.axes import aligned_strides
from chains.lowering.c_language import sum_text
from chains.program.operations import Operation, Pool, PoolInput, Window
from chains.program.view import Batch, View, concrete

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
    """A pool by itself."""
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
    """A thread for each element of the input goes through the windows it is in, and asks each whether it gets a share."""
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
    """What each entry of the window at (oh, ow) gets of its gradient, for means."""
    kind, window = ctype(dx.dtype), operation.window
    if operation.count_padding:
        return f"{share} / {literal(float(window.area), kind)}"
    return f"{share} / ({kind})({_inside(window, dx, 0, 'oh')} * {_inside(window, dx, 1, 'ow')})"


def _by_entry(source: Source, pointers: Pointers, operation: PoolInput, each: list[str], label: str) -> list[Command]:
    """A thread for each element of the input, which goes through the windows it is in."""
    (dx,), dy = operation.outs, operation.ins[0]
    kind = ctype(dx.dtype)
    body = [
        f"{kind} total = {literal(0.0, kind)};",
        *covering(operation.window, dy, each),
        stored(pointers, dx, "total", "n", "c", "h", "w"),
    ]
    return one_each(source, pointers, dx, body, operation.name, label)


def pool_input_run(source: Source, operation: PoolInputRun, temporary: Temporary) -> list[Command]:
    """A thread for each window, or for each element of the input where windows overlap."""
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
    """How many steps of the window lie over the input, along each axis."""
    rows, columns = (
        -(-(length + window.padding[k][0]) // window.stride[k]) for k, length in enumerate(concrete(dx.shape, 1)[2:])
    )
    return rows, columns


def _window_filled(operation: PoolInputRun, tiles: tuple[int, int], pointers: Pointers) -> list[str]:
    """Statements that fill the window at (n, c, oh, ow) and the gap behind it; `sum` is of all that."""
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
    """Whether row a and column b of the step of a window are an entry of it; the `chosen` one, where there is one."""
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
    """How many entries of the window, along an axis, are no padding."""
    numbers = window.stride[axis], window.dilation[axis], window.size[axis], window.padding[axis][0], x.shape[2 + axis]
    return f"inside((int){position}, {', '.join(map(str, numbers))})"
