"""Convolutions as register-blocked kernels over images whose lanes are samples.

An image buffer holds a vector of samples for each channel, row and column (`chains.backends.native.plan.layout`), so that no
lane is idle whatever the width of the image. The code keeps a block of results in registers: some output channels
times some positions of a row. For each input channel and kernel entry it loads the vectors of the positions once
and multiplies them by one weight for each output channel.

The convolution and the gradient with respect to its input are the same sum with different indices (`Taps`). A stride in one
spreads the taps of the other over classes of positions. Padding is never stored. Bounds from a table skip rows outside the
image; blocks at the border omit the multiplications of columns outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chains.backends.native.kernels.block_shapes import Limits
from chains.backends.native.kernels.elementwise import Frame, evaluate
from chains.backends.native.kernels.taps import Images, Taps, column_blocks, input_taps, output_taps
from chains.backends.native.llvm.blocking import blocks
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.program.alias import across
from chains.program.operations import Convolve, ConvolveInput, Map
from chains.program.view import View

MAX_UNROLLED_MULTIPLY_ADDS = 128  # multiply-adds in one straight run of code, about
MAX_KEPT_VECTORS = 5  # of positions, in registers beside the results; further vectors are read where they are used


def lower_convolve(frame: Frame, operation: Convolve | ConvolveInput, packed: View, maps: Sequence[Map] = ()) -> None:
    """The convolution, or its gradient with respect to the input, with packed kernels and with maps on the results."""
    (out,), source = operation.outs, operation.ins[0]
    kernel = _Correlation.of(frame, operation)
    operands = list(dict.fromkeys(view for fused in maps for view in (*fused.outs, *fused.ins) if view != out))
    pointers = [frame.base(view) for view in (out, source, packed, *operands)]
    frame.outlined("convolve", pointers, lambda f, arguments: kernel.write(f, arguments, out, operands, maps))


def pack_kernels(frame: Frame, operation: Convolve | ConvolveInput, target: View) -> None:
    """Copy the kernels to the order in which `lower_convolve` reads them."""
    kernel, weight = _Correlation.of(frame, operation), operation.ins[1]
    outs, ins = weight.strides[:2] if isinstance(operation, Convolve) else weight.strides[1::-1]
    group = weight.strides[0] * int(weight.shape[0]) // operation.groups  # type: ignore[arg-type]
    strides = (group, outs, ins, weight.strides[2], weight.strides[3])
    pointers = [frame.base(target), frame.base(weight)]
    frame.outlined("pack_kernels", pointers, lambda f, arguments: kernel.pack(f, arguments, strides))


@dataclass(frozen=True)
class _Correlation:
    """``out[o, i, j] = sum over c and the taps of i and j: weight[o, c, tap] * source[c, source(i), source(j)]``.

    The weights are packed: for each group and block of output channels, (in channel, row, column, channel of the block).
    """

    lanes: int
    limits: Limits
    scalar: Type
    outs: int  # channels of a group
    ins: int
    groups: int
    out: Images
    source: Images
    size: tuple[int, int]  # of the kernels
    rows: tuple[Taps, ...]
    columns: tuple[Taps, ...]

    @staticmethod
    def of(frame: Frame, operation: Convolve | ConvolveInput) -> _Correlation:
        (out,), source = operation.outs, operation.ins[0]
        forward, window, groups = isinstance(operation, Convolve), operation.window, operation.groups
        find = output_taps if forward else input_taps
        image, other = (source, out) if forward else (out, source)
        rows, columns = (find(window, k, image.sample_shape[1 + k], other.sample_shape[1 + k]) for k in range(2))
        return _Correlation(
            frame.lanes,
            frame.shapes.convolve,
            real_type(out.dtype),
            out.sample_shape[0] // groups,
            source.sample_shape[0] // groups,
            groups,
            Images.of(out),
            Images.of(source),
            window.size,
            tuple(rows),
            tuple(columns),
        )

    @property
    def channel_weights(self) -> int:
        """Number of weights of an output channel."""
        return self.ins * self.size[0] * self.size[1]

    def pack(self, f: Function, arguments: list[Value], strides: tuple[int, int, int, int, int]) -> None:
        """Copy kernels with these strides (group, output channel, input channel, row, column) to the packed order."""
        target, weight, *_ = arguments
        height, _width = self._block()

        def block(g: Value, o: Value, count: int) -> None:
            to = f.address(target, f.mul(f.add(f.mul(g, self.outs), o), self.channel_weights), self.scalar)
            of = f.address(weight, f.add(f.mul(g, strides[0]), f.mul(o, strides[1])), self.scalar)

            def row(c: Value, i: Value) -> None:
                line = f.mul(f.add(f.mul(c, self.size[0]), i), self.size[1])
                start = f.add(f.mul(c, strides[2]), f.mul(i, strides[3]))
                for j in range(self.size[1]):
                    place = f.mul(f.add(line, j), count)
                    for h in range(count):
                        x = f.load(self.scalar, f.address(of, f.add(start, j * strides[4] + h * strides[1]), self.scalar))
                        f.store(x, f.address(to, f.add(place, h), self.scalar))

            blocks(f, self.ins, 1, lambda c, _: blocks(f, self.size[0], 1, lambda i, _: row(c, i)))

        blocks(f, self.groups, 1, lambda g, _: blocks(f, self.outs, height, lambda o, count: block(g, o, count)))

    def write(self, f: Function, arguments: list[Value], out: View, operands: list[View], maps: Sequence[Map]) -> None:
        epilogue = Epilogue(out, operands, maps)
        pointers = [arguments[0], *arguments[3:]]

        def group(g: Value, _: list[Value]) -> None:
            source = f.address(arguments[1], f.mul(g, self.ins * self.source.channel), self.scalar)
            weight = f.address(arguments[2], f.mul(g, self.outs * self.channel_weights), self.scalar)
            for rows in self.rows:
                self._rows(f, rows, source, weight, f.mul(g, self.outs), epilogue, pointers)

        if self.groups == 1:
            group(integer(0), [])
        else:
            f.loop(integer(0), integer(self.groups), 1, group)

    def _rows(
        self,
        f: Function,
        rows: Taps,
        source: Value,
        weight: Value,
        channel: Value,
        epilogue: Epilogue,
        pointers: list[Value],
    ) -> None:
        height, width = self._block()
        reached = [rows.reached(m) for m in range(rows.count)]
        bounds = [f.module.table([r.start for r in reached]), f.module.table([r.stop for r in reached])]

        def row(m: Value, _: list[Value]) -> None:
            limits = [f.load(I64, f.address(table, m, I64)) for table in bounds]
            line = f.address(source, f.mul(f.add(f.mul(m, rows.along), rows.source), self.source.row), self.scalar)
            place = f.add(f.mul(m, rows.step), rows.first)

            def channels(o: Value, count: int) -> None:
                own = f.address(weight, f.add(f.mul(o, self.channel_weights), rows.tap * self.size[1] * count), self.scalar)
                for columns in self.columns:

                    def block(first: Value, static: int | None, positions: int, columns: Taps = columns) -> None:
                        tile = _Tile(count, positions, static, first)
                        results = self._sums(f, rows, columns, line, own, limits, tile)
                        column = f.add(f.mul(first, columns.step), columns.first)
                        epilogue.store(f, pointers, results, f.add(channel, o), place, column, columns.step, count, positions)

                    column_blocks(f, columns, width, block)

            whole = self.outs // height * height
            if whole:
                f.loop(integer(0), integer(whole), height, lambda o, _: channels(o, height))
            if self.outs > whole:
                channels(integer(whole), self.outs - whole)

        f.loop(integer(0), integer(rows.count), 1, row)

    def _block(self) -> tuple[int, int]:
        """Output channels and positions of the fastest block, by a simple count of instructions."""
        widest = max(columns.count for columns in self.columns)
        most = self.limits
        heights, widths = range(1, min(most.outs, self.outs) + 1), range(1, min(most.across, widest) + 1)

        def split(length: int, size: int) -> list[int]:
            return [size] * (length // size) + ([length % size] if length % size else [])

        def cost(height: int, width: int) -> float:
            return sum(max(h * w, 0.6 * (h + w), 4.0) + 0.3 for h in split(self.outs, height) for w in split(widest, width))

        def registers(height: int, width: int) -> int:
            return height * width + min(width, MAX_KEPT_VECTORS) + 1

        choices = [(h, w) for h in heights for w in widths if h * w <= most.results and registers(h, w) <= most.registers]
        return min(choices, key=lambda choice: (cost(*choice), -choice[1]))

    def _sums(
        self, f: Function, rows: Taps, columns: Taps, line: Value, weight: Value, limits: list[Value], tile: _Tile
    ) -> list[Value]:
        """The sums of a block, position by position of each channel."""
        type = Type(self.scalar.name, self.lanes)
        zero = [number(type, 0.0)] * (tile.height * tile.width)
        if not rows.taps or not columns.taps:
            return zero
        line = f.address(line, f.mul(tile.first, columns.along * self.source.column), self.scalar)

        def entry(c: Value, k: Value, sums: Sequence[Value]) -> list[Value]:
            source = f.address(line, f.add(f.mul(c, self.source.channel), f.mul(k, rows.across * self.source.row)), self.scalar)
            offset = f.add(f.mul(c, self.size[0] * self.size[1]), f.mul(k, rows.tap_step * self.size[1]))
            own = f.address(weight, f.mul(offset, tile.height), self.scalar)
            sums, loaded = list(sums), {}
            for tap in range(columns.taps):
                used = {w: columns.source + columns.along * w + columns.across * tap for w in tile.reaching(columns, tap)}
                for at in used.values():
                    if at not in loaded:
                        loaded[at] = f.load(type, f.address(source, integer(at * self.source.column), self.scalar))
                for h in range(tile.height if used else 0):
                    at_tap = (columns.tap + columns.tap_step * tap) * tile.height + h
                    factor = f.splat(f.load(self.scalar, f.address(own, integer(at_tap), self.scalar)), self.lanes)
                    for w, at in used.items():
                        sums[h * tile.width + w] = f.fma(factor, loaded[at], sums[h * tile.width + w])
            return sums

        if rows.taps > 1 or not all(rows.reached(m) for m in range(rows.count)):
            low, high = limits
            return f.loop(
                integer(0),
                integer(self.ins),
                1,
                lambda c, sums: f.loop(low, high, 1, lambda k, carried: entry(c, k, carried), sums)[1],
                zero,
            )[1]
        # One row of the kernel: several channels in one run of code.
        several = max(1, min(8, MAX_UNROLLED_MULTIPLY_ADDS // (tile.height * tile.width * columns.taps)))
        while self.ins % several:
            several -= 1

        def channels(c: Value, sums: Sequence[Value]) -> list[Value]:
            for n in range(several):
                sums = entry(f.add(c, n), integer(0), sums)
            return list(sums)

        return f.loop(integer(0), integer(self.ins), several, channels, zero)[1]


@dataclass(frozen=True)
class _Tile:
    """A block of results: output channels times positions of a row. `static` is the first position, where it is known now."""

    height: int
    width: int
    static: int | None
    first: Value

    def reaching(self, columns: Taps, tap: int) -> list[int]:
        """The positions to which this kernel entry contributes."""
        return [w for w in range(self.width) if self.static is None or tap in columns.reached(self.static + w)]


@dataclass
class Epilogue:
    """The end of a block of results: the maps, then the stores."""

    out: View
    operands: list[View]
    maps: Sequence[Map]

    def store(
        self,
        f: Function,
        pointers: list[Value],
        results: list[Value],
        channel: Value,
        row: Value,
        column: Value,
        step: int,
        height: int,
        width: int,
    ) -> None:
        """Apply the maps to `height` channels times `width` columns, which are `step` apart, and store the results.

        `pointers` are the addresses of `out`, then of the operands.
        """
        type = results[0].type
        scalar = Type(type.name)
        shared: dict[tuple[View, int], Value] = {}

        def place(view: View, pointer: Value, h: int, w: int) -> Value:
            images = Images.of(view)
            offset = f.add(f.mul(f.add(channel, h), images.channel), f.mul(row, images.row))
            offset = f.add(offset, f.mul(column, images.column))
            return f.address(f.address(pointer, offset, scalar), integer(w * step * images.column), scalar)

        def operand(view: View, values: dict[View, Value], h: int, w: int) -> Value:
            if view in values:
                return values[view]
            pointer = pointers[1 + self.operands.index(view)]
            if view.batched:
                return f.load(type, place(view, pointer, h, w))
            if (view, h) not in shared:  # one number per channel, or one for all channels
                stride = view.strides[0] if view.sample_size > 1 else 0
                number = f.load(scalar, f.address(pointer, f.mul(f.add(channel, h), stride), scalar))
                shared[view, h] = f.splat(number, type.lanes)
            return shared[view, h]

        for h in range(height):
            for w in range(width):
                values = {self.out: results[h * width + w]}
                for fused in self.maps:
                    ins = [operand(view, values, h, w) for view in fused.ins]
                    values |= dict(zip(fused.outs, evaluate(f, fused.formula, ins, type), strict=True))
                for view, value in values.items():
                    pointer = pointers[0] if view == self.out else pointers[1 + self.operands.index(view)]
                    f.store(value, place(view, pointer, h, w))


def fusible_image_map(operation: Convolve | ConvolveInput, maps: Sequence[Map], candidate: Map) -> bool:
    """Whether `candidate`, after `maps`, can be applied to the convolution's results in registers."""
    (out,) = operation.outs
    known = [out, *(view for fused in maps for view in fused.outs)]
    if any(across(view, other) for view in candidate.views for other in known):
        return False
    if {view.buffer for view in candidate.outs} & {source.buffer for source in operation.ins}:
        return False  # other blocks of the convolution still read the operands
    if not any(view in known for view in candidate.ins):
        return False
    if any(view.shape != out.shape for view in candidate.outs):
        return False
    channels = out.sample_shape[0]
    return all(
        view.shape == out.shape if view.batched else view.sample_size == 1 or view.shape == (channels, 1, 1)
        for view in candidate.ins
    )
