"""Convolutions as register-blocked kernels over images whose lanes are samples.

An image buffer holds a vector of samples for each channel, row and column (`chains.backends.native.plan.layout`), so that no
lane is idle whatever the width of the image. The code keeps a block of results in registers: some output channels
times some positions of a row. For each input channel and kernel entry it loads the vectors of the positions once
and multiplies them by one weight for each output channel.

The convolution and the gradient with respect to its input are the same sum with different indices (`Taps`). A stride in one
spreads the taps of the other over classes of positions. Padding is never stored. Bounds from a table skip rows outside the
image; blocks at the border omit the multiplications of columns outside.

The gradient with respect to the kernels goes through all positions of the image and keeps a block of sums in registers: some
output channels times some input channels times the entries of a row of the kernel. Each sum has a lane for each sample; the
lanes are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from typing import NamedTuple

from chains.backends.native.kernels.elementwise import Frame, horizontal
from chains.backends.native.kernels.epilogue import Corner, Ending, Epilogue
from chains.backends.native.kernels.taps import Images, Taps, column_blocks, input_taps, output_taps
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import blocks
from chains.backends.native.llvm.shuffles import sums_of_lanes
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight
from chains.program.view import View

MAX_UNROLLED_MULTIPLY_ADDS = 128  # multiply-adds in one straight run of code, about
MAX_UNROLLED_SUMS = 20  # multiply-adds in one straight run of code for the gradient of kernels
MIN_COMBINED_SUMS = 3  # with fewer sums, the lanes of each are added separately, not into one vector
Entry = Callable[[Value, Value, Sequence[Value]], list[Value]]  # of a channel, a row of the kernel, and sums


def lower_convolve(frame: Frame, operation: Convolve | ConvolveInput, packed: View, ending: Ending) -> None:
    """The convolution, or its gradient with respect to the input, with packed kernels, and what is done to its results."""
    kernel = _Correlation(frame, operation, ending.window)
    pointers = [frame.base(view) for view in (operation.ins[0], packed, *ending.views)]

    def write(f: Function, arguments: list[Value]) -> None:
        source, weight, *rest = arguments
        kernel.write(f, source, weight, Epilogue(f, ending, dict(zip(ending.views, rest, strict=False))))

    frame.outlined("convolve", pointers, write)


def pack_kernels(frame: Frame, operation: Convolve | ConvolveInput, target: View, ending: Ending) -> None:
    """Copy the kernels to the order in which `lower_convolve` reads them."""
    kernel, weight = _Correlation(frame, operation, ending.window), operation.ins[1]
    outs, ins = weight.strides[:2] if isinstance(operation, Convolve) else weight.strides[1::-1]
    group = weight.strides[0] * int(weight.shape[0]) // operation.groups  # type: ignore[arg-type]
    strides = (group, outs, ins, weight.strides[2], weight.strides[3])
    pointers = [frame.base(target), frame.base(weight)]
    frame.outlined("pack_kernels", pointers, lambda f, arguments: kernel.pack(f, arguments, strides))


class _Correlation:
    """``out[o, i, j] = sum over c and the taps of i and j: weight[o, c, tap] * source[c, source(i), source(j)]``.

    The weights are packed: for each group and block of output channels, (in channel, row, column, channel of the block).
    """

    def __init__(self, frame: Frame, operation: Convolve | ConvolveInput, together: tuple[int, int] = (1, 1)) -> None:
        self.together = together  # rows and columns of results that belong together
        (out,), source = operation.outs, operation.ins[0]
        forward, window = isinstance(operation, Convolve), operation.window
        find = output_taps if forward else input_taps
        image, other = (source, out) if forward else (out, source)
        self.lanes, self.limits, self.scalar = frame.lanes, frame.shapes.convolve, real_type(out.dtype)
        self.groups, self.size = operation.groups, window.size
        self.outs, self.ins = (view.sample_shape[0] // operation.groups for view in (out, source))  # channels of a group
        self.source = Images.of(source)
        self.rows, self.columns = (find(window, k, image.sample_shape[1 + k], other.sample_shape[1 + k]) for k in range(2))

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

    def write(self, f: Function, source: Value, weight: Value, epilogue: Epilogue) -> None:
        def group(g: Value) -> None:
            own_source = f.address(source, f.mul(g, self.ins * self.source.channel), self.scalar)
            own_weight = f.address(weight, f.mul(g, self.outs * self.channel_weights), self.scalar)
            for rows in self.rows:
                self._rows(f, rows, own_source, own_weight, f.mul(g, self.outs), epilogue)

        _each_group(f, self.groups, group)

    def _rows(self, f: Function, rows: Taps, source: Value, weight: Value, channel: Value, epilogue: Epilogue) -> None:
        height, width = self._block()
        reached = [rows.reached(m) for m in range(rows.count)]
        bounds = [f.module.table([r.start for r in reached]), f.module.table([r.stop for r in reached])]

        def row(number: Value) -> None:
            m = f.mul(number, self.together[0])
            limits = [f.load(I64, f.address(table, m, I64)) for table in bounds]
            line = f.address(source, f.mul(f.add(f.mul(m, rows.along), rows.source), self.source.row), self.scalar)
            place = f.add(f.mul(m, rows.step), rows.first)

            def channels(o: Value, count: int) -> None:
                own = f.address(weight, f.add(f.mul(o, self.channel_weights), rows.tap * self.size[1] * count), self.scalar)
                for columns in self.columns:

                    def block(first: Value, static: int | None, positions: int, columns: Taps = columns) -> None:
                        tile = _Tile(count, self.together[0], positions, static, first)
                        results = self._sums(f, rows, columns, line, own, limits, tile)
                        column = f.add(f.mul(first, columns.step), columns.first)
                        corner = Corner(f.add(channel, o), place, column, columns.step)
                        epilogue.store(results, corner, (count, self.together[0], positions))

                    column_blocks(f, columns, width, block)

            blocks(f, self.outs, height, channels)

        f.each(rows.count // self.together[0], row)

    def _block(self) -> tuple[int, int]:
        """Output channels and positions of the fastest block, by a simple count of instructions."""
        widest = max(columns.count for columns in self.columns)
        most = self.limits
        rows, unit = self.together
        heights, widths = range(1, min(most.outs, self.outs) + 1), range(unit, max(unit, min(most.across, widest)) + 1, unit)

        def split(length: int, size: int) -> list[int]:
            return [size] * (length // size) + ([length % size] if length % size else [])

        def cost(height: int, width: int) -> float:
            shapes = [(h, rows * w) for h in split(self.outs, height) for w in split(widest, width)]
            return sum(max(h * w, 0.6 * (h + w), 4.0) + 0.3 for h, w in shapes)

        def registers(height: int, width: int) -> int:
            read_again = height > 1 or self.size[1] > 1
            return rows * height * width + (rows * width if read_again else 0) + 1

        def fits(height: int, width: int) -> bool:
            return rows * height * width <= most.results and registers(height, width) <= most.registers

        choices = [(h, w) for h in heights for w in widths if fits(h, w)]
        return min(choices, key=lambda choice: (cost(*choice), -choice[1]))

    def _sums(
        self, f: Function, rows: Taps, columns: Taps, line: Value, weight: Value, limits: list[Value], tile: _Tile
    ) -> list[Value]:
        """The sums of a block, position by position of each channel."""
        type = Type(self.scalar.name, self.lanes)
        zero = [number(type, 0.0)] * (tile.height * tile.across)
        if not rows.taps or not columns.taps:
            return zero
        line = f.address(line, f.mul(tile.first, columns.along * self.source.column), self.scalar)

        def place(r: int, w: int, tap: int) -> int:
            column = columns.source + columns.along * w + columns.across * tap
            return r * rows.along * self.source.row + column * self.source.column

        def entry(c: Value, k: Value, sums: Sequence[Value]) -> list[Value]:
            source = f.address(line, f.add(f.mul(c, self.source.channel), f.mul(k, rows.across * self.source.row)), self.scalar)
            offset = f.add(f.mul(c, self.size[0] * self.size[1]), f.mul(k, rows.tap_step * self.size[1]))
            own = f.address(weight, f.mul(offset, tile.height), self.scalar)
            sums, loaded = list(sums), {}
            for tap in range(columns.taps):
                reaching = tile.reaching(columns, tap)
                used = {r * tile.width + w: place(r, w, tap) for r in range(tile.rows) for w in reaching}
                for at in used.values():
                    if at not in loaded:
                        loaded[at] = f.load(type, f.address(source, integer(at), self.scalar))
                for h in range(tile.height if used else 0):
                    at_tap = (columns.tap + columns.tap_step * tap) * tile.height + h
                    factor = f.splat(f.load(self.scalar, f.address(own, integer(at_tap), self.scalar)), self.lanes)
                    for w, at in used.items():
                        sums[h * tile.across + w] = f.fma(factor, loaded[at], sums[h * tile.across + w])
            return sums

        return self._over_channels(f, rows, limits, entry, zero, tile.height * tile.across * columns.taps)

    def _over_channels(
        self, f: Function, rows: Taps, limits: list[Value], entry: Entry, zero: list[Value], multiply_adds: int
    ) -> list[Value]:
        """The sums of what `entry`, of so many multiply-adds, adds for each input channel and row of the kernel."""
        if rows.taps > 1 or not all(rows.reached(m) for m in range(rows.count)):
            low, high = limits

            def channel(c: Value, sums: Sequence[Value]) -> list[Value]:
                return f.loop(low, high, 1, partial(entry, c), sums)[1]

            return f.loop(integer(0), integer(self.ins), 1, channel, zero)[1]
        # One row of the kernel: several channels in one run of code.
        several = max(1, min(8, MAX_UNROLLED_MULTIPLY_ADDS // multiply_adds))
        while self.ins % several:
            several -= 1

        def channels(c: Value, sums: Sequence[Value]) -> list[Value]:
            for n in range(several):
                sums = entry(f.add(c, n), integer(0), sums)
            return list(sums)

        return f.loop(integer(0), integer(self.ins), several, channels, zero)[1]


@dataclass(frozen=True)
class _Tile:
    """A block of results: output channels times rows times positions of a row. `static` is the first, where it is known now."""

    height: int
    rows: int
    width: int
    static: int | None
    first: Value

    @property
    def across(self) -> int:
        """Results of an output channel."""
        return self.rows * self.width

    def reaching(self, columns: Taps, tap: int) -> list[int]:
        """The positions to which this kernel entry contributes."""
        return [w for w in range(self.width) if self.static is None or tap in columns.reached(self.static + w)]


def lower_convolve_weight(frame: Frame, operation: ConvolveWeight) -> None:
    """The gradient with respect to the kernels: sums over the positions and the samples of the tile."""
    (out,), (x, dy) = operation.outs, operation.ins
    frame.outlined("convolve_weight", [frame.base(view) for view in (out, x, dy)], _WeightSums(frame, operation).write)


def _repeated(f: Function, one: Callable[[Value, Sequence[Value]], list[Value]], count: int) -> Callable[..., list[Value]]:
    """The step that does `one` for so many positions."""

    def step(j: Value, sums: Sequence[Value]) -> list[Value]:
        for n in range(count):
            sums = one(f.add(j, n), sums)
        return list(sums)

    return step


class _WeightSums:
    """``out[o, c, tap] = sum over i, j and the samples: dy[o, i, j] * x[c, source(i), source(j)]``."""

    def __init__(self, frame: Frame, operation: ConvolveWeight) -> None:
        (out,), (x, dy) = operation.outs, operation.ins
        window, self.groups = operation.window, operation.groups
        self.lanes, self.limits, self.scalar = frame.lanes, frame.shapes.convolve_weight, real_type(out.dtype)
        self.outs, self.ins = (view.sample_shape[0] // self.groups for view in (dy, x))  # channels of a group
        self.dy, self.x = Images.of(dy), Images.of(x)
        self.weight = out.strides  # output channel, input channel, row, column
        self.rows, self.columns = (output_taps(window, k, x.sample_shape[1 + k], dy.sample_shape[1 + k])[0] for k in range(2))

    def write(self, f: Function, arguments: list[Value]) -> None:
        out, x, dy, count, first = arguments
        alive = f.first_lanes(self.lanes, count)
        begin = f.compare("ne", first, integer(0))
        height, width, taps = self._block()
        covered = [
            [m for m in range(self.rows.count) if k in self.rows.reached(m)] for k in range(self.rows.taps)
        ]  # the output rows that entry k of the kernel reaches
        low = f.module.table([rows[0] if rows else 0 for rows in covered])
        high = f.module.table([rows[-1] + 1 if rows else 0 for rows in covered])

        def group(g: Value) -> None:
            own_out = f.address(out, f.mul(g, self.outs * self.weight[0]), self.scalar)
            own_x = f.address(x, f.mul(g, self.ins * self.x.channel), self.scalar)
            own_dy = f.address(dy, f.mul(g, self.outs * self.dy.channel), self.scalar)

            def block(o: Value, c: Value, h: int, w: int) -> None:
                def entry(k: Value) -> None:
                    limits = [f.load(I64, f.address(table, k, I64)) for table in (low, high)]
                    for start in range(0, self.columns.taps, taps):
                        some = _SumBlock(o, c, k, h, w, range(start, min(start + taps, self.columns.taps)))
                        self._add(f, own_out, some, self._sums(f, own_x, own_dy, some, limits), alive, begin)

                f.each(self.rows.taps, entry)

            blocks(f, self.outs, height, lambda o, h: blocks(f, self.ins, width, lambda c, w: block(o, c, h, w)))

        _each_group(f, self.groups, group)

    def _block(self) -> tuple[int, int, int]:
        """Output channels, input channels and columns of the kernel in a block."""
        most = self.limits
        taps = min(self.columns.taps, most.taps)
        heights, widths = range(1, min(most.outs, self.outs) + 1), range(1, min(most.across, self.ins) + 1)

        def cost(h: int, w: int) -> float:
            return (h + w * taps + max(h * w * taps, 4)) * -(-self.outs // h) * -(-self.ins // w)

        choices = [
            (h, w) for h in heights for w in widths if h * w * taps <= most.results and h * w * taps + h < most.registers
        ]
        height, width = min(choices, key=lambda choice: cost(*choice))
        return height, width, taps

    def _sums(self, f: Function, x: Value, dy: Value, block: _SumBlock, limits: list[Value]) -> list[Value]:
        type = Type(self.scalar.name, self.lanes)
        columns, rows = self.columns, self.rows
        o, c, k, height, width, taps = block
        dy = f.address(dy, f.mul(o, self.dy.channel), self.scalar)
        x = f.address(x, f.mul(c, self.x.channel), self.scalar)
        x = f.address(x, f.mul(f.add(f.mul(k, rows.across), rows.source), self.x.row), self.scalar)

        def row(m: Value, sums: list[Value]) -> list[Value]:
            dy_row = f.address(dy, f.mul(m, self.dy.row), self.scalar)
            x_row = f.address(x, f.mul(m, rows.along * self.x.row), self.scalar)

            def position(reached: Sequence[int], j: Value, sums: Sequence[Value]) -> list[Value]:
                """One position of the row, for the kernel's columns that reach it."""
                sums = list(sums)
                at = f.address(dy_row, f.mul(j, self.dy.column), self.scalar)
                slopes = [f.load(type, f.address(at, integer(h * self.dy.channel), self.scalar)) for h in range(height)]
                at = f.address(x_row, f.mul(j, columns.along * self.x.column), self.scalar)
                for w in range(width):
                    for t in reached:
                        offset = w * self.x.channel + (columns.source + columns.across * t) * self.x.column
                        value = f.load(type, f.address(at, integer(offset), self.scalar))
                        for h in range(height):
                            n = (h * width + w) * len(taps) + t - taps.start
                            sums[n] = f.fma(slopes[h], value, sums[n])
                return sums

            # Runs of positions that the same columns of the kernel reach.
            for reached, run in groupby(range(columns.count), lambda j: [t for t in taps if t in columns.reached(j)]):
                start, *others = run
                stop = start + 1 + len(others)
                if not reached:
                    continue
                if not others:
                    sums = position(reached, integer(start), sums)
                    continue
                most = max(1, MAX_UNROLLED_SUMS // len(sums))
                several = next(n for n in range(min(most, stop - start), 0, -1) if (stop - start) % n == 0)
                positions = _repeated(f, partial(position, reached), several)
                sums = f.loop(integer(start), integer(stop), several, positions, sums)[1]
            return list(sums)

        return f.loop(limits[0], limits[1], 1, row, [number(type, 0.0)] * (height * width * len(taps)))[1]

    def _add(self, f: Function, out: Value, block: _SumBlock, sums: list[Value], alive: Value, begin: Value) -> None:
        """Add up the lanes of each sum. The first tile stores these totals; later tiles add theirs."""
        o, c, k, height, width, taps = block
        offset = f.add(f.add(f.mul(o, self.weight[0]), f.mul(c, self.weight[1])), f.mul(k, self.weight[2]))
        out = f.address(out, offset, self.scalar)
        type = sums[0].type
        zero = number(type, 0.0)
        together = self.weight[3] == 1 and MIN_COMBINED_SUMS <= len(taps) <= self.lanes
        for h, w in product(range(height), range(width)):
            here = (h * width + w) * len(taps)
            own = [f.select(alive, each, zero) for each in sums[here : here + len(taps)]]
            place = h * self.weight[0] + w * self.weight[1] + taps.start * self.weight[3]
            if together:
                totals = [sums_of_lanes(f, [*own, *[zero] * (self.lanes - len(own))])]
                mask = f.lane_mask(self.lanes, len(own))
            else:
                totals, mask = [horizontal(f, each) for each in own], None
            for t, total in enumerate(totals):
                pointer = f.address(out, integer(place + t * self.weight[3]), self.scalar)
                before = f.select(begin, number(total.type, 0.0), f.load(total.type, pointer, mask))
                f.store(f.binary("fadd", before, total), pointer, mask)


class _SumBlock(NamedTuple):
    """A block of sums: output channels from `o` on, input channels from `c` on, and columns `taps` of row `k` of the kernel."""

    o: Value
    c: Value
    k: Value
    height: int
    width: int
    taps: range


def _each_group(f: Function, groups: int, body: Callable[[Value], None]) -> None:
    """Call `body` for each group of channels. A single group needs no loop."""
    if groups == 1:
        body(integer(0))
    else:
        f.each(groups, body)
