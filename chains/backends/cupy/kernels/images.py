"""Convolutions of few channels as sums over the window, with one thread a result; and helpers of kernels on images."""

from __future__ import annotations

from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype, literal
from chains.backends.cupy.source.commands import Command, Pointers, Source, blocks, each_element
from chains.backends.cupy.source.reduction import Temporary, Terms, reduce_commands
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Window
from chains.program.view import Batch, View


def at(view: View, *coordinates: str) -> str:
    """The number of an element of a view, as C."""
    terms = [f"({name}) * {stride}" for name, stride in zip(coordinates, view.strides, strict=True)]
    return " + ".join([*terms, str(view.offset)])


def coordinates(view: View) -> list[str]:
    """Statements that take the number `i` of an element apart into sample n, channel c, row h and column w, in memory order."""
    _, channels, height, width = view.shape
    i, all_ = "(Count)i", _times(channels, height, width)  # divisions without a sign take fewer instructions
    return [
        f"const Index w = {i} % {width}; const Index h = {i} / {width} % {height};",
        f"const Index c = {i} / {_times(width, height)} % {channels}; const Index n = {i} / {all_};",
    ]


def number(pointers: Pointers, view: View, *coordinates: str) -> str:
    """An element of a view to compute with, as C."""
    return f"{pointers(view.buffer)}[{at(view, *coordinates)}]"


def stored(pointers: Pointers, view: View, value: str, *coordinates: str) -> str:
    """The statement that gives an element of a view this value."""
    return f"{pointers(view.buffer, write=True)}[{at(view, *coordinates)}] = {value};"


def _times(*lengths: object) -> int:
    product = 1
    for length in lengths:
        assert isinstance(length, int)
        product *= length
    return product


def one_each(source: Source, pointers: Pointers, view: View, body: list[str], hint: str, label: str) -> list[Command]:
    """A launch with a thread for each element of an image."""
    space = Space(view.shape, [view])
    grid = lambda batch: (blocks(count(space.kept, batch)), 1)  # noqa: E731
    lines = each_element(count_text(space.kept), [*coordinates(view), *body])
    return [pointers.launch(source, hint, lines, grid, label=label)]


def entries(window: Window, x: View, y: View, body: list[str]) -> list[str]:
    """`body` for each entry (kh, kw) of the window at the output position (h, w) that is within the image, at (ih, iw)."""
    (rows, columns), (top, left) = window.size, (window.padding[0][0], window.padding[1][0])
    return [
        f"for (int kh = 0; kh < {rows}; ++kh) {{",
        f"    const Index ih = h * {window.stride[0]} + kh * {window.dilation[0]} - {top};",
        *(f"    {line}" for line in _unless_inside(window, x, y, 0, "ih")),
        f"    for (int kw = 0; kw < {columns}; ++kw) {{",
        f"        const Index iw = w * {window.stride[1]} + kw * {window.dilation[1]} - {left};",
        *(f"        {line}" for line in _unless_inside(window, x, y, 1, "iw")),
        *(f"        {line}" for line in body),
        "    }",
        "}",
    ]


def _unless_inside(window: Window, x: View, y: View, axis: int, name: str) -> list[str]:
    """The statement that skips an entry in the padding; none if there is no padding."""
    conditions = outside(window, x, y, axis, name)
    return [f"if ({' || '.join(conditions)}) continue;"] if conditions else []


def outside(window: Window, x: View, y: View, axis: int, name: str) -> list[str]:
    """The conditions under which an entry of a window is in the padding along an axis; none if no window has padding there."""
    before, length = window.padding[axis][0], x.shape[2 + axis]
    end = (_times(y.shape[2 + axis]) - 1) * window.stride[axis] + window.span[axis] - before
    return [*([f"{name} < 0"] if before else []), *([f"{name} >= {length}"] if end > _times(length) else [])]


def covering(window: Window, y: View, body: list[str]) -> list[str]:
    """`body` for each entry (kh, kw) of the window at an output position (oh, ow) that covers (h, w) of the input."""
    return [
        f"for (int kh = 0; kh < {window.size[0]}; ++kh) {{",
        *(f"    {line}" for line in _position(window, y, 0, "oh", "h", "kh")),
        f"    for (int kw = 0; kw < {window.size[1]}; ++kw) {{",
        *(f"        {line}" for line in _position(window, y, 1, "ow", "w", "kw")),
        *(f"        {line}" for line in body),
        "    }",
        "}",
    ]


def _position(window: Window, y: View, axis: int, name: str, place: str, entry: str) -> list[str]:
    """Statements that find the output position of the window whose entry covers a place along an axis, or skip the entry."""
    stride, there = window.stride[axis], f"{place} + {window.padding[axis][0]} - {entry} * {window.dilation[axis]}"
    none = f"if ({name} < 0 || {name} >= {y.shape[2 + axis]}) continue;"
    if stride == 1:
        return [f"const Index {name} = {there};", none]
    return [
        f"const Index {name}_step = {there};",
        f"if ({name}_step < 0 || (Count){name}_step % {stride} != 0) continue;",
        f"const Index {name} = (Count){name}_step / {stride};",
        f"if ({name} >= {y.shape[2 + axis]}) continue;",
    ]


def convolve(source: Source, operation: Convolve | ConvolveInput) -> list[Command]:
    """The convolution, or its gradient with respect to the images: a thread adds up one element of the result."""
    (out,), (a, w) = operation.outs, operation.ins
    pointers, kind, forward = Pointers(), ctype(out.dtype), isinstance(operation, Convolve)
    inputs, outputs = w.shape[1], _times(w.shape[0]) // operation.groups
    if forward:
        terms, channel, position, of_weight = inputs, f"c / {outputs} * {inputs} + k", ("ih", "iw"), ("c", "k")
    else:
        channel = f"c / {inputs} * {outputs} + k"
        terms, position, of_weight = outputs, ("oh", "ow"), (channel, f"c % {inputs}")
    each = [
        f"for (int k = 0; k < {terms}; ++k)",
        f"    total += {number(pointers, a, 'n', channel, *position)}",
        f"        * {number(pointers, w, *of_weight, 'kh', 'kw')};",
    ]
    window = operation.window
    body = [
        f"{kind} total = {literal(0.0, kind)};",
        *(entries(window, a, out, each) if forward else covering(window, a, each)),
        stored(pointers, out, "total", "n", "c", "h", "w"),
    ]
    return one_each(source, pointers, out, body, operation.name, operation.label)


def convolve_weight(source: Source, operation: ConvolveWeight, temporary: Temporary) -> list[Command]:
    """A sum over samples and positions for each entry of the kernels."""
    (dw,), (x, dy) = operation.outs, operation.ins
    window, kind, pointers = operation.window, ctype(dw.dtype), Pointers()
    _, inputs, rows, columns = (_times(length) for length in dw.shape)
    outputs = _times(dw.shape[0]) // operation.groups
    shape = (*dw.shape, Batch(), *dy.shape[2:])
    wide = View(dw.buffer, (*dw.shape, 1, 1, 1), (*dw.strides, 0, 0, 0), dw.offset)
    space = Space(shape, [wide], reduced=(4, 5, 6), kept="o", inner="r")
    positions = [_times(length) for length in dy.shape[2:]]
    (top, left), entry = (window.padding[0][0], window.padding[1][0]), f"o / {rows * columns}"
    lines = [
        f"const Index kw = o % {columns}; const Index kh = o / {columns} % {rows};",
        f"const Index k = {entry} % {inputs}; const Index c = {entry} / {inputs};",
        f"const Index ow = r % {positions[1]}; const Index oh = r / {positions[1]} % {positions[0]};",
        f"const Index n = r / {positions[0] * positions[1]};",
        f"const Index ih = oh * {window.stride[0]} + kh * {window.dilation[0]} - {top};",
        f"const Index iw = ow * {window.stride[1]} + kw * {window.dilation[1]} - {left};",
        f"const {kind} term = ih < 0 || ih >= {x.shape[2]} || iw < 0 || iw >= {x.shape[3]} ? {literal(0.0, kind)}",
        f"    : {number(pointers, x, 'n', f'c / {outputs} * {inputs} + k', 'ih', 'iw')}",
        f"    * {number(pointers, dy, 'n', 'c', 'oh', 'ow')};",
    ]
    return reduce_commands(source, "sum", space, pointers, Terms(lines, "term"), wide, operation.label, temporary)
