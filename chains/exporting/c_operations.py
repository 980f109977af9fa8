"""The operations of a program as loops in C99, over the samples of a tile; and the functions that they call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chains.exporting.header import ctype
from chains.lowering import polynomials
from chains.lowering.axes import loops_over
from chains.lowering.c_language import Dialect, converted, sum_text
from chains.program.loop import Loop
from chains.program.operations import (
    BatchMatMul,
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.view import Batch, Buffer, Extent, View


def _special(value: float, kind: str) -> str:
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _number(value: float, kind: str) -> str:
    return f"{value!r}{'f' if kind == 'float' else ''}"


C99 = Dialect(
    _special, _number, lambda size, kind: f"(-{_number(size, kind)})", {"float": "float", "double": "double"},
    quick=("exp", "tanh"), named_constants=False,
)  # fmt: skip
literal = C99.literal


def _horner(coefficients: Sequence[float], variable: str) -> str:
    text = literal(coefficients[0], "float")
    for coefficient in coefficients[1:]:
        text = f"({text} * {variable} + {literal(coefficient, 'float')})"
    return text[1:-1]


_ABOVE, _BELOW = polynomials.TANH
_HIGH, _LOW = polynomials.LN2["float"]

PRELUDE = f"""\
/* The larger, the smaller: NaN where either is. */
{C99.helpers("static inline")}
/* exp and tanh without branches, so that compilers can make vectors of them. */
static inline float power_of_two(int32_t n)
{{
    union {{ uint32_t bits; float number; }} u;
    u.bits = (uint32_t)(n + 127) << 23;
    return u.number;
}}
static inline float quick_exp(float x)
{{
    const float above = x > 89.0f ? 89.0f : x;
    const float y = above < -104.0f ? -104.0f : above;
    const float turns = y * 1.4426950408889634f;
    const int32_t n = (int32_t)(turns != turns ? 0.0f : turns + (turns < 0.0f ? -0.5f : 0.5f));
    const float whole = (float)n;
    const float r = (y - whole * {literal(_HIGH, "float")}) - whole * {literal(_LOW, "float")};
    const float q = {_horner(polynomials.EXP["float"], "r")};
    const int32_t half = n / 2;
    return (r * r * q + r + 1.0f) * power_of_two(half) * power_of_two(n - half);
}}
static inline float quick_tanh(float x)
{{
    const float below = x > 9.1f ? 9.1f : x;
    const float y = below < -9.1f ? -9.1f : below;
    const float z = y * y;
    const float top = {_horner(_ABOVE, "z")};
    const float bottom = {_horner(_BELOW, "z")};
    const float t = y * top / bottom;
    const float most = t > 1.0f ? 1.0f : t;
    return most < -1.0f ? -1.0f : most;
}}
"""

PHILOX = """\
/* Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
static uint64_t high_product(uint64_t a, uint64_t b)
{
    const uint64_t a1 = a >> 32, a0 = (uint32_t)a, b1 = b >> 32, b0 = (uint32_t)b;
    const uint64_t low = a0 * b0, first = a1 * b0 + (low >> 32), second = a0 * b1 + (uint32_t)first;
    return a1 * b1 + (first >> 32) + (second >> 32);
}
static double uniform(const uint64_t random[2], uint64_t draw, uint64_t i)
{
    const uint64_t m0 = UINT64_C(0xD2E7470EE14C6C93), m1 = UINT64_C(0xCA5A826395121157);
    uint64_t c[4] = {1 + i / 8, draw, random[1], 0}, k0 = random[0], k1 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t h0 = high_product(m0, c[0]), l0 = m0 * c[0], h1 = high_product(m1, c[2]), l1 = m1 * c[2];
        c[0] = h1 ^ c[1] ^ k0;
        c[2] = h0 ^ c[3] ^ k1;
        c[1] = l1;
        c[3] = l0;
        k0 += UINT64_C(0x9E3779B97F4A7C15);
        k1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    return (double)((uint32_t)(c[i % 8 / 2] >> (i % 2 ? 32 : 0)) >> 8) * 5.9604644775390625e-08;
}
"""


LANES = 8  # partial sums of a dot product, which are added in halves
TOGETHER = 4  # products that are added to a row of results at once

Lines = Iterator[str]


@dataclass(frozen=True)
class Context:
    """The context of an operation's statements: the names of buffers, and the sums that are continued."""

    names: Callable[[Buffer], str]
    tiled: bool = False  # whether other tiles may come before this one
    continued: bool = False  # whether an earlier operation has begun the sum
    begun: bool = False  # whether all sums over samples have begun

    def at(self, view: View, parts: Sequence[tuple[str, int]] = ()) -> str:
        """An element of a view, from coordinates with their strides and the steps of the enclosing loops."""
        steps = [(f"t{depth}", stride) for depth, stride in enumerate(view.loop_strides)]
        return f"{self.names(view.buffer)}[{sum_text(view.offset, [*parts, *steps])}]"


def extent_text(extent: Extent) -> str:
    """The length of an axis, by the number of samples in the tile, `count`."""
    if not isinstance(extent, Batch):
        return str(extent)
    return "count" if extent.per_sample == 1 else f"count * {extent.per_sample}"


def indented(lines: Iterator[str] | Sequence[str], head: str, tail: str = "}") -> Lines:
    """Lines in a block."""
    yield f"{head} {{"
    yield from (f"    {line}" for line in lines)
    yield tail


def nested(loops: Sequence[tuple[str, Extent]], body: Sequence[str]) -> Lines:
    """Statements in loops, the outermost first; one statement needs no braces."""
    if not loops:
        yield from body
        return
    (name, extent), *rest = loops
    head = f"for (ptrdiff_t {name} = 0; {name} < {extent_text(extent)}; {name}++)"
    inner = list(nested(rest, body))
    if len(inner) == 1:
        yield f"{head} {inner[0]}" if inner[0].startswith("for") else head
        if not inner[0].startswith("for"):
            yield f"    {inner[0]}"
    else:
        yield from indented(inner, head)


def lines_of(operation: Operation, context: Context) -> Lines:
    """The statements of an operation. Raises NotImplementedError for one without a row of `WRITERS`."""
    if type(operation) not in WRITERS:
        raise NotImplementedError(f"exported C has no operation `{operation.name}` ({operation.label}): export an object file")
    return WRITERS[type(operation)](operation, context)


# Element by element


def _each(views: Sequence[View], context: Context) -> tuple[list[tuple[str, Extent]], list[str]]:
    """Loops over the shape of the first view, and the element of each view in them."""
    loops = loops_over(views[0].shape, views)
    names = [f"i{k}" if len(loops) > 1 else "i" for k in range(len(loops))]
    places = []
    for number, view in enumerate(views):
        steps = [(name, loop.strides[number]) for name, loop in zip(names, loops, strict=True)]
        places.append(context.at(view, steps))
    return [(name, loop.extent) for name, loop in zip(names, loops, strict=True)], places


def _map(operation: Map, context: Context) -> Lines:
    loops, places = _each(operation.views, context)
    outs, ins = places[: len(operation.outs)], places[len(operation.outs) :]
    scalar = all(view.ndim == 0 for view in operation.views)  # computed in double precision
    kind = "double" if scalar else ctype(operation.outs[0].dtype)
    lines, operands = [], []
    for k, (text, view) in enumerate(zip(ins, operation.ins, strict=True)):
        operands.append(f"a{k}")
        lines.append(f"const {kind} a{k} = {converted(text, ctype(view.dtype), kind)};")
    body, results = C99.statements(operation.formula, operands, "v", kind)
    stores = [
        f"{out} = {converted(result, kind, ctype(view.dtype))};"
        for out, result, view in zip(outs, results, operation.outs, strict=True)
    ]
    whole = [*lines, *body, *stores]
    yield from nested(loops, whole) if loops else indented(whole, "")


def _copy(operation: Copy, context: Context) -> Lines:
    (out,), (a,) = operation.outs, operation.ins
    loops, (to, source) = _each((out, a), context)
    yield from nested(loops, [f"{to} = {converted(source, ctype(a.dtype), ctype(out.dtype))};"])


def _fill(operation: Fill, context: Context) -> Lines:
    yield from _filled(operation.outs[0], operation.value, context)


def _filled(view: View, value: float, context: Context) -> Lines:
    loops, (to,) = _each((view,), context)
    yield from nested(loops, [f"{to} = {literal(value, ctype(view.dtype))};"])


def _begun(operation: Operation, context: Context, value: float = 0.0) -> Lines:
    """Statements that begin a sum: only at the first tile, if it is over the samples of all tiles."""
    if operation.accumulates or context.continued or (context.begun and operation.sums_over_batch):
        return
    lines = [line for out in operation.outs for line in _filled(out, value, context)]
    if operation.sums_over_batch and context.tiled:
        yield from indented(lines, "if (start == 0)")
    else:
        yield from lines


def _reduce(operation: Reduce, context: Context) -> Lines:
    (out,), (a,) = operation.outs, operation.ins
    kind, largest = ctype(out.dtype), operation.kind == "max"
    start = literal(-float("inf") if largest else 0.0, kind)
    yield from _begun(operation, context, -float("inf") if largest else 0.0)
    loops = loops_over(a.shape, (a, out))
    names = [f"i{k}" for k in range(len(loops))]
    axes = [(name, loop.extent) for name, loop in zip(names, loops, strict=True)]
    steps = list(zip(names, (loop.strides for loop in loops), strict=True))
    source, to = (context.at(view, [(name, strides[k]) for name, strides in steps]) for k, view in enumerate((a, out)))
    kept = max((k + 1 for k, loop in enumerate(loops) if loop.strides[1]), default=0)
    if kept == len(loops):  # the innermost loop is over results
        yield from nested(axes, [f"{to} = max_{kind}({to}, {source});" if largest else f"{to} += {source};"])
    elif largest:
        inner = nested(axes[kept:], [f"result = max_{kind}(result, {source});"])
        body = [f"{kind} result = {start};", *inner, f"{to} = max_{kind}({to}, result);"]
        yield from nested(axes[:kept], body) if kept else indented(body, "")
    else:  # in double precision: the terms may be many
        inner = nested(axes[kept:], [f"sum += {source};"])
        body = ["double sum = 0.0;", *inner, f"{to} += {converted('sum', 'double', kind)};"]
        yield from nested(axes[:kept], body) if kept else indented(body, "")


# Products


def _matmul(operation: MatMul, context: Context) -> Lines:
    (out,), (a, b) = operation.outs, operation.ins
    (m, k), n = a.shape, b.shape[1]

    def at(view: View, row: str, column: str) -> str:
        return context.at(view, [(row, view.strides[0]), (column, view.strides[1])])

    dot = b.strides[0] == 1 and a.strides[1] == 1 and isinstance(k, int) and not operation.sums_over_batch
    if not dot:
        yield from _batch_matmul(operation, context)
        return
    assert isinstance(k, int)
    whole = k // LANES * LANES
    kind, zero = ctype(out.dtype), literal(0.0, ctype(out.dtype))
    lines = [f"{kind} sum = {zero};"]
    if whole:
        parts = f"for (int l = 0; l < {LANES}; l++)"
        lines += [
            f"{kind} sums[{LANES}] = {{{zero}}};",
            f"for (ptrdiff_t k = 0; k < {whole}; k += {LANES})",
            f"    {parts}",
            f"        sums[l] += {at(a, 'i', '(k + l)')} * {at(b, '(k + l)', 'j')};",
            "for (int l = 0; l < 4; l++)",
            "    sums[l] += sums[l + 4];",
            "sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);",
        ]
    if whole < k:
        lines += [f"for (ptrdiff_t k = {whole}; k < {k}; k++)", f"    sum += {at(a, 'i', 'k')} * {at(b, 'k', 'j')};"]
    lines.append(f"{at(out, 'i', 'j')} {'+=' if operation.accumulate else '='} sum;")
    yield from nested([("i", m), ("j", n)], lines)


def _added(to: str, kind: str, k: Extent, n: Extent, factor: Callable[[str], str], entry: Callable[[str], str]) -> Lines:
    """Statements that add products to a row, for a few numbers of k at once: a result is loaded and stored once for them."""

    def block(places: Sequence[str]) -> list[str]:
        names = [f"factor{number}" for number in range(len(places))] if len(places) > 1 else ["factor"]
        factors = [f"const {kind} {name} = {factor(place)};" for name, place in zip(names, places, strict=True)]
        products = " + ".join(f"{name} * {entry(place)}" for name, place in zip(names, places, strict=True))
        return [*factors, *nested([("j", n)], [f"{to} += {products};"])]

    several = block(["k", *(f"(k + {number})" for number in range(1, TOGETHER))])
    if not isinstance(k, int):
        yield "ptrdiff_t k = 0;"
        yield from indented(several, f"for (; k + {TOGETHER - 1} < {extent_text(k)}; k += {TOGETHER})")
        yield from indented(block(["k"]), f"for (; k < {extent_text(k)}; k++)")
        return
    whole = k // TOGETHER * TOGETHER
    if whole:
        yield from indented(several, f"for (ptrdiff_t k = 0; k < {whole}; k += {TOGETHER})")
    if whole < k:
        yield from indented(block([str(number) for number in range(whole, k)]), "")


def _batch_matmul(operation: MatMul | BatchMatMul, context: Context) -> Lines:
    """A product for each of the matrices in the last two axes."""
    (out,), (a, b) = operation.outs, operation.ins
    (*leading, m, k), n = a.shape, b.shape[-1]
    each = [f"b{axis}" for axis in range(len(leading))]

    def at(view: View, row: str, column: str) -> str:
        return context.at(view, list(zip([*each, row, column], view.strides, strict=True)))

    yield from _begun(operation, context)
    to, kind = at(out, "i", "j"), ctype(out.dtype)
    added = list(_added(to, kind, k, n, lambda k: at(a, "i", k), lambda k: at(b, k, "j")))
    yield from nested([*zip(each, leading, strict=True), ("i", m)], added)


# Images


def _windows(
    operation: Any, image: View, positions: View
) -> tuple[list[str], list[tuple[str, Extent]], list[tuple[str, Extent]]]:
    """Statements that find the entry (row, column) of the image under entry (u, v) of a window at (i, j), or skip padding; the
    loops over the entries of a window, and those over positions.
    """
    window = operation.window
    lines = []
    for name, at, entry, axis in (("row", "i", "u", 0), ("column", "j", "v", 1)):
        stride, dilation, (before, _) = window.stride[axis], window.dilation[axis], window.padding[axis]
        lines.append(f"const ptrdiff_t {name} = {at} * {stride} + {entry} * {dilation} - {before};")
    height, width = image.shape[2:]
    if window.padded:
        lines.append(f"if (row < 0 || row >= {height} || column < 0 || column >= {width}) continue;")
    return lines, [("u", window.size[0]), ("v", window.size[1])], [("i", positions.shape[2]), ("j", positions.shape[3])]


def _four(view: View, context: Context, *names: str) -> str:
    return context.at(view, list(zip(names, view.strides, strict=True)))


def _convolution(operation: Any, context: Context) -> Lines:
    """The three convolutions: two of an entry of the image, a weight and an entry of the output are multiplied and added to the
    third.
    """
    if isinstance(operation, Convolve):
        (y,), (x, w) = operation.outs, operation.ins
    elif isinstance(operation, ConvolveInput):
        (x,), (y, w) = operation.outs, operation.ins
    else:
        (w,), (x, y) = operation.outs, operation.ins
    yield from _begun(operation, context)
    groups, outputs, channels = operation.groups, w.shape[0], w.shape[1]
    assert isinstance(outputs, int)
    channel = "c" if groups == 1 else f"(o / {outputs // groups} * {channels} + c)"
    lines, window, positions = _windows(operation, x, y)
    image, weight, output = (
        _four(x, context, "b", channel, "row", "column"),
        _four(w, context, "o", "c", "u", "v"),
        _four(y, context, "b", "o", "i", "j"),
    )
    products = {
        Convolve: (output, image, weight),
        ConvolveInput: (image, output, weight),
        ConvolveWeight: (weight, image, output),
    }
    to, first, second = products[type(operation)]
    body = [*lines, f"{to} += {first} * {second};"]
    yield from nested([("b", Batch()), ("o", outputs), ("c", channels), *window, *positions], body)


def _pool(operation: Pool, context: Context) -> Lines:
    (y,), (x,) = operation.outs, operation.ins
    kind = ctype(y.dtype)
    lines, window, positions = _windows(operation, x, y)
    source, to = _four(x, context, "b", "c", "row", "column"), _four(y, context, "b", "c", "i", "j")
    if operation.kind == "max":
        inner = [*lines, f"result = max_{kind}(result, {source});"]
        body = [f"{kind} result = {literal(-float('inf'), kind)};", *nested(window, inner), f"{to} = result;"]
    else:
        inner = [*lines, f"sum += {source};", "entries++;"]
        entries = str(operation.window.area) if operation.count_padding else "entries"
        body = [f"{kind} sum = 0;", "int entries = 0;", *nested(window, inner), f"{to} = sum / ({kind}){entries};"]
        body += ["(void)entries;"] if operation.count_padding else []
    yield from nested([("b", Batch()), ("c", x.shape[1]), *positions], body)


def _pool_input(operation: PoolInput, context: Context) -> Lines:
    (dx,), (dy, *rest) = operation.outs, operation.ins
    kind = ctype(dx.dtype)
    yield from _filled(dx, 0.0, context)
    lines, window, positions = _windows(operation, dx, dy)
    to, cotangent = _four(dx, context, "b", "c", "row", "column"), _four(dy, context, "b", "c", "i", "j")
    if operation.kind == "max":
        x, y = rest
        found = f"!taken && {_four(x, context, 'b', 'c', 'row', 'column')} == {_four(y, context, 'b', 'c', 'i', 'j')}"
        take = indented([f"{to} += {cotangent};", "taken = 1;"], f"if ({found})")
        body = ["int taken = 0;", *nested(window, [*lines, *take])]
    elif operation.count_padding:
        share = f"{cotangent} / ({kind}){operation.window.area}"
        body = [f"const {kind} share = {share};", *nested(window, [*lines, f"{to} += share;"])]
    else:
        count = nested(window, [*lines, "entries++;"])
        body = ["int entries = 0;", *count, *nested(window, [*lines, f"{to} += {cotangent} / ({kind})entries;"])]
    yield from nested([("b", Batch()), ("c", dx.shape[1]), *positions], body)


# Loops, rows by number, random numbers


def _loop(operation: Loop, context: Context) -> Lines:
    lines: list[str] = []
    inner = replace(context, begun=context.begun or operation.from_zero)
    for each in operation.body:
        lines += [f"/* {each} */", *lines_of(each, inner)]
    if operation.skip_where_zero is not None:
        counted, (element,) = _each((operation.skip_where_zero,), context)
        any_of = nested(counted, [f"needed |= {element} != 0;"])
        lines = ["int needed = 0;", *any_of, *indented(lines, "if (needed)")]
    for zeros in operation.zeros:
        fills = list(lines_of(zeros, context))
        yield from indented(fills, "if (start == 0)") if context.tiled else fills
    t = f"t{operation.depth}"
    yield from indented(lines, f"for (ptrdiff_t {t} = 0; {t} < {operation.steps}; {t}++)")


def _rows(table: View, index: View, rows: View, context: Context, body: Callable[[str, str], str]) -> Lines:
    names = [f"i{k}" for k in range(index.ndim)]
    inner = [f"j{k}" for k in range(table.ndim - 1)]
    number = context.at(index, list(zip(names, index.strides, strict=True)))
    last = int(table.shape[0]) - 1  # type: ignore[arg-type]
    lines = [
        f"const ptrdiff_t found = (ptrdiff_t){number};",
        f"const ptrdiff_t at = found < 0 ? 0 : found > {last} ? {last} : found;",
    ]
    entry = context.at(rows, list(zip([*names, *inner], rows.strides, strict=True)))
    row = context.at(table, list(zip(["at", *inner], table.strides, strict=True)))
    lines += nested(list(zip(inner, table.shape[1:], strict=True)), [body(row, entry)])
    yield from nested(list(zip(names, index.shape, strict=True)), lines)


def _gather(operation: Gather, context: Context) -> Lines:
    table, index = operation.ins
    yield from _rows(table, index, operation.outs[0], context, lambda row, entry: f"{entry} = {row};")


def _scatter_add(operation: ScatterAdd, context: Context) -> Lines:
    index, source = operation.ins
    yield from _rows(operation.outs[0], index, source, context, lambda row, entry: f"{row} += {entry};")


def _random(operation: Random, context: Context) -> Lines:
    (out,), (key,) = operation.outs, operation.ins
    first = f"start * {out.sample_size} + " if out.batched and context.tiled else ""
    number = f"uniform({context.names(key.buffer)}, {operation.draw}, (uint64_t)({first}i))"
    yield from nested([("i", out.flat.shape[0])], [f"{context.at(out.flat, [('i', 1)])} = ({ctype(out.dtype)}){number};"])


WRITERS: dict[type[Operation], Callable[[Any, Context], Lines]] = {
    MatMul: _matmul,
    BatchMatMul: _batch_matmul,
    Map: _map,
    Reduce: _reduce,
    Convolve: _convolution,
    ConvolveInput: _convolution,
    ConvolveWeight: _convolution,
    Pool: _pool,
    PoolInput: _pool_input,
    Gather: _gather,
    ScatterAdd: _scatter_add,
    Random: _random,
    Copy: _copy,
    Fill: _fill,
    Loop: _loop,
}
