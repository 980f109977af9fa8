"""Operations on laned buffers other than convolutions: changes of layout, elementwise operations, sums over samples, pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from chains.backends.native.kernels.elementwise import (
    Frame,
    horizontal,
    lower_reduce,
    step_through,
)
from chains.backends.native.kernels.taps import Images, column_blocks, output_taps
from chains.backends.native.llvm import vectormath
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import blocks
from chains.backends.native.llvm.shuffles import transposed
from chains.backends.native.operations import Relayout
from chains.lowering.axes import Axis, loops_over
from chains.program.operations import Operation, Pool, PoolInput, Reduce
from chains.program.view import Batch, View


def lanes_last(view: View, lanes: int) -> View:
    """A laned view with its samples, `lanes` of them, as the last axis; a view without samples gets an axis of length 1."""
    if not view.batched:
        return view.expand(view.ndim)
    return replace(view, shape=(*view.shape[1:], lanes), strides=(*view.strides[1:], view.strides[0]))


def lower_relayout(frame: Frame, operation: Relayout) -> None:
    """Transpose squares of numbers in registers.

    Lanes without a sample repeat the first sample, so that they compute only ordinary numbers. Rows without a sample are
    written only if the tile has room for them (`whole_tiles`).
    """
    (out,), (source,) = operation.outs, operation.ins
    whole_tiles = frame.in_tile(out.buffer)
    to_lanes, lanes = operation.to_lanes, frame.lanes
    rows_view, laned_view = (source, out) if to_lanes else (out, source)
    channels, size = out.sample_shape
    sample, channel = rows_view.strides[0], laned_view.strides[1]
    scalar = real_type(out.dtype)
    type = Type(scalar.name, lanes)

    def write(f: Function, arguments: list[Value]) -> None:
        target, origin, count, _ = arguments
        zero = integer(0)
        rows = [f.select(f.compare("slt", integer(s), count), integer(s), zero) for s in range(lanes)]

        def square(c: Value, e: Value, used: int) -> None:
            mask = f.lane_mask(lanes, used)
            row = f.add(f.mul(c, size), e)
            lane = f.add(f.mul(c, channel), f.mul(e, lanes))
            if to_lanes:
                vectors = [f.load(type, f.address(origin, f.add(f.mul(r, sample), row), scalar), mask) for r in rows]
                for k, vector in enumerate(transposed(f, vectors)[:used]):
                    f.store(vector, f.address(target, f.add(lane, k * lanes), scalar))
                return
            vectors = [f.load(type, f.address(origin, f.add(lane, k * lanes), scalar)) for k in range(used)]
            vectors += [number(type, 0.0)] * (lanes - used)
            for s, vector in enumerate(transposed(f, vectors)):
                f.store(vector, f.address(target, f.add(row, s * sample), scalar), mask)

        def squares() -> None:
            f.loop(zero, integer(channels), 1, lambda c, _: blocks(f, size, lanes, partial(square, c)))

        def by_number() -> None:
            def element(s: Value, c: Value, e: Value) -> None:
                x = f.load(scalar, f.address(origin, f.add(f.add(f.mul(c, channel), f.mul(e, lanes)), s), scalar))
                f.store(x, f.address(target, f.add(f.add(f.mul(s, sample), f.mul(c, size)), e), scalar))

            def row(s: Value, c: Value) -> None:
                f.loop(zero, integer(size), 1, lambda e, _: element(s, c, e))

            f.loop(zero, count, 1, lambda s, _: f.each(channels, partial(row, s)))

        if to_lanes or whole_tiles:
            squares()
        else:
            f.when(f.compare("eq", count, integer(lanes)), squares, by_number)

    frame.outlined("relayout", [frame.base(out), frame.base(source)], write)


def samples_last(frame: Frame, operation: Operation) -> Operation:
    """The operation with the samples of a tile as the last axis of its laned operands, as a kernel for rows can do it."""
    return operation.on(lambda view: lanes_last(view, frame.lanes))


def lower_laned_reduce(frame: Frame, operation: Reduce) -> None:
    """A reduction on laned buffers."""
    if operation.sums_over_batch:
        _reduce_samples(frame, operation)
    else:
        lower_reduce(frame, samples_last(frame, operation))  # type: ignore[arg-type]


def _reduce_samples(frame: Frame, operation: Reduce) -> None:
    """Sums (or maxima) over the samples of the tile, and perhaps over other axes: first of vectors, then of their lanes."""
    (out,), (a,) = operation.outs, operation.ins
    maximum = operation.kind == "max"
    neutral = float("-inf") if maximum else 0.0
    loops = [loop for loop in loops_over(a.shape, (out, a)) if not isinstance(loop.extent, Batch)]
    kept, summed = ([loop for loop in loops if bool(loop.strides[0]) == varies] for varies in (True, False))
    scalar = real_type(a.dtype)
    type = Type(scalar.name, frame.lanes)

    def write(f: Function, arguments: list[Value]) -> None:
        target, source, count, first = arguments
        alive, begin = f.first_lanes(frame.lanes, count), f.compare("ne", first, integer(0))
        nothing = number(type, neutral)

        def combine(x: Value, y: Value) -> Value:
            return vectormath.maximum(f, x, y) if maximum else f.binary("fadd", x, y)

        def total(loops: Sequence[Axis], pointer: Value, sums: list[Value]) -> list[Value]:
            if not loops:
                return [combine(sums[0], f.load(type, pointer)), *sums[1:]]
            (loop, *rest), length = loops, int(loops[0].extent)  # type: ignore[arg-type]
            stride = loop.strides[1]
            if rest:

                def inner(i: Value, sums: list[Value]) -> list[Value]:
                    return total(rest, f.address(pointer, f.mul(i, stride), scalar), list(sums))

                return f.loop(integer(0), integer(length), 1, inner, sums)[1]

            def step(i: Value, sums: Sequence[Value], several: int = len(sums)) -> list[Value]:
                at = [f.address(pointer, f.mul(f.add(i, k), stride), scalar) for k in range(several)]
                added = [combine(s, f.load(type, p)) for s, p in zip(sums, at, strict=False)]
                return [*added, *sums[several:]]

            whole = length // len(sums) * len(sums)
            if whole:
                sums = f.loop(integer(0), integer(whole), len(sums), step, sums)[1]
            return step(integer(whole), sums, length - whole) if length > whole else sums

        def reduce(pointers: list[Value]) -> None:
            a, b, c, d = total(summed, pointers[1], [nothing] * 4)
            vector = combine(combine(a, b), combine(c, d))
            result = horizontal(f, f.select(alive, vector, nothing), maximum)
            before = f.select(begin, number(scalar, neutral), f.load(scalar, pointers[0]))
            f.store(combine(before, result), pointers[0])

        step_through(replace(frame, f=f), kept, [target, source], scalar, reduce)

    frame.outlined(f"{operation.kind}_samples", [frame.base(out), frame.base(a)], write)


def lower_pool(frame: Frame, operation: Pool) -> None:
    """The maximum or the mean of each window, or the gradient of either with respect to the input."""
    backwards = isinstance(operation, PoolInput)
    y, x = (operation.ins[0], operation.outs[0]) if backwards else (operation.outs[0], operation.ins[0])
    windows = _Windows(frame, operation, y, x)
    write = windows.scatter if backwards else windows.collect
    frame.outlined(operation.name, [frame.base(view) for view in operation.views], write)


# The entries of a row of a window that are inside the image, as columns relative to the first window's first column.
Entries = list[int]


class _Windows:
    """Loops over the windows of images."""

    def __init__(self, frame: Frame, operation: Pool, y: View, x: View) -> None:
        self.operation = operation
        self.scalar = real_type(y.dtype)
        self.type = Type(self.scalar.name, frame.lanes)
        self.width = frame.shapes.pool
        self.channels = y.sample_shape[0]
        self.x_size = x.sample_shape
        self.images = [Images.of(view) for view in operation.views]  # each buffer may have room after its channels
        window = operation.window
        self.rows, self.columns = (output_taps(window, k, x.sample_shape[1 + k], y.sample_shape[1 + k])[0] for k in range(2))
        # Whether each input is in exactly one window, so that its gradient is stored and never accumulated.
        self.apart = all(
            not window.padded and window.size[k] == window.stride[k] and window.dilation[k] == 1
            and window.size[k] * y.sample_shape[1 + k] == x.sample_shape[1 + k]
            for k in range(2)
        )  # fmt: skip

    def collect(self, f: Function, arguments: list[Value]) -> None:
        y, x, *_ = arguments
        largest = self.operation.kind == "max"
        start = number(self.type, float("-inf") if largest else 0.0)

        def windows(channel: Value, m: Value, j: Value, entries: list[Entries], limits: list[Value]) -> None:
            def row(k: Value, results: Sequence[Value]) -> list[Value]:
                line = self._x(f, x, 1, channel, m, k, j)
                results = list(results)
                for w, some in enumerate(entries):
                    for column in some:
                        value = f.load(self.type, f.address(line, integer(column * self.images[1].column), self.scalar))
                        total = results[w]
                        results[w] = vectormath.maximum(f, total, value) if largest else f.binary("fadd", total, value)
                return results

            results = f.loop(limits[0], limits[1], 1, row, [start] * len(entries))[1]
            for w, (result, some) in enumerate(zip(results, entries, strict=True)):
                if not largest:
                    result = f.binary("fmul", result, self._share(f, limits, some))
                f.store(result, self._y(f, y, 0, channel, m, j, w))

        self._windows(f, windows)

    def scatter(self, f: Function, arguments: list[Value]) -> None:
        dx, dy, *rest = arguments
        x, y = rest[:2] if self.operation.kind == "max" else (dy, dy)
        if not self.apart:
            self._clear(f, dx)

        def windows(channel: Value, m: Value, j: Value, entries: list[Entries], limits: list[Value]) -> None:
            slopes = [f.load(self.type, self._y(f, dy, 1, channel, m, j, w)) for w in range(len(entries))]
            if self.operation.kind == "mean":
                slopes = [f.binary("fmul", s, self._share(f, limits, e)) for s, e in zip(slopes, entries, strict=True)]
                largest = []
                searching = []
            else:
                largest = [f.load(self.type, self._y(f, y, 3, channel, m, j, w)) for w in range(len(entries))]
                searching = [Value("splat (i1 true)" if self.type.lanes > 1 else "true", self.type.of("i1"))] * len(entries)

            def row(k: Value, searching: Sequence[Value]) -> list[Value]:
                target = self._x(f, dx, 0, channel, m, k, j)
                source = self._x(f, x, 2, channel, m, k, j) if largest else target
                searching = list(searching)
                for w, some in enumerate(entries):
                    for column in some:
                        slope, at = slopes[w], f.address(target, integer(column * self.images[0].column), self.scalar)
                        if largest:
                            place = f.address(source, integer(column * self.images[2].column), self.scalar)
                            value = f.load(self.type, place)
                            found = f.binary("and", searching[w], f.compare("oeq", value, largest[w]))
                            searching[w] = f.binary("xor", searching[w], found)
                            slope = f.select(found, slope, number(self.type, 0.0))
                        f.store(slope if self.apart else f.binary("fadd", f.load(self.type, at), slope), at)
                return searching

            f.loop(limits[0], limits[1], 1, row, searching)

        self._windows(f, windows)

    def _windows(self, f: Function, body: Callable[[Value, Value, Value, list[Entries], list[Value]], None]) -> None:
        columns, reached = self.columns, [self.rows.reached(m) for m in range(self.rows.count)]
        bounds = [f.module.table([r.start for r in reached]), f.module.table([r.stop for r in reached])]

        def channel(c: Value) -> None:
            def row(m: Value) -> None:
                limits = [f.load(I64, f.address(table, m, I64)) for table in bounds]
                constant = len(set(reached)) == 1
                limits = [integer(reached[0].start), integer(reached[0].stop)] if constant else limits

                def block(j: Value, static: int | None, width: int) -> None:
                    entries = []
                    for w in range(width):
                        taps = range(columns.taps) if static is None else columns.reached(static + w)
                        entries.append([columns.source + columns.along * w + columns.across * tap for tap in taps])
                    body(c, m, j, entries, limits)

                column_blocks(f, columns, self.width, block)

            f.each(self.rows.count, row)

        f.each(self.channels, channel)

    def _clear(self, f: Function, dx: Value) -> None:
        (channels, rows, columns), image = self.x_size, self.images[0]

        def clear(c: Value, i: Value, j: Value) -> None:
            offset = f.add(f.add(f.mul(c, image.channel), f.mul(i, image.row)), f.mul(j, image.column))
            f.store(number(self.type, 0.0), f.address(dx, offset, self.scalar))

        f.each(channels, lambda c: f.each(rows, lambda i: f.each(columns, partial(clear, c, i))))

    def _x(self, f: Function, base: Value, operand: int, channel: Value, m: Value, k: Value, j: Value) -> Value:
        """The address of row k of the window at (m, j), in the image of this operand."""
        x = self.images[operand]
        row = f.add(f.add(f.mul(m, self.rows.along), f.mul(k, self.rows.across)), self.rows.source)
        offset = f.add(f.mul(channel, x.channel), f.mul(row, x.row))
        offset = f.add(offset, f.mul(j, self.columns.along * x.column))
        return f.address(base, offset, self.scalar)

    def _y(self, f: Function, base: Value, operand: int, channel: Value, m: Value, j: Value, w: int) -> Value:
        y = self.images[operand]
        offset = f.add(f.mul(channel, y.channel), f.mul(m, y.row))
        offset = f.add(offset, f.mul(j, y.column))
        return f.address(f.address(base, offset, self.scalar), integer(w * y.column), self.scalar)

    def _share(self, f: Function, limits: list[Value], entries: Entries) -> Value:
        """The weight of one entry of a window in its mean."""
        if self.operation.count_padding:
            return number(self.type, 1.0 / self.operation.window.area)
        size = f.mul(f.binary("sub", limits[1], limits[0]), len(entries))
        share = f.binary("fdiv", number(self.scalar, 1.0), f.cast("sitofp", size, self.scalar))
        return f.splat(share, self.type.lanes)
