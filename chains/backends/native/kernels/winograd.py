"""Convolutions with kernels of three by three and fewer multiplications, on images whose lanes are samples.

Additions transform four by four inputs and the kernel. Two by two outputs then take 16 products instead of 36 for each pair of
channels. This is the minimal filtering of Winograd, "Arithmetic complexity of computations" (1980), as used by Lavin and Gray
in "Fast algorithms for convolutional neural networks" (2016), F(2x2, 3x3). For each of the 16 elements, the sum over the
channels is a matrix product. The code works on a part of a row of tiles at a time, which stays in cache.

The gradient with respect to the kernel is the transpose: additions transform four by four inputs and two by two slopes of the
outputs, and the kernel's nine sums take 16 products a tile instead of 36. For each of the 16 elements, the sum over the tiles
is a matrix product of slopes and inputs. The code works on some rows of tiles at a time, and on four elements, so that operands
stay in cache. The lanes of the sums are added before the transform back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chains.backends.native.kernels.block_shapes import Block, block_shapes
from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.epilogue import Corner, Ending, Epilogue
from chains.backends.native.kernels.taps import Images
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import blocks, multiply_add
from chains.backends.native.llvm.shuffles import sums_of_lanes
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Window
from chains.program.view import View

MIN_CHANNELS = 16  # with fewer, the transforms cost more than they save
MAX_CHANNELS = 256  # with more, a part of a row of tiles does not stay in cache
CACHED_BYTES = 448 << 10  # bytes of transformed inputs to work on at a time
TILE_ELEMENTS = 16  # elements of a transformed tile
ROW_ELEMENTS = 4  # elements of a row of a transformed tile
KERNEL_ELEMENTS = 9  # entries of a kernel
# For the gradient of kernels:
MIN_TILES = 16  # tiles of an image: with fewer, adding lanes and the transform back cost more than the products save
MAX_TILES = 64  # tiles of a part
# Rows of a transformed tile: `_input_line` and `_slope_line` as sums of two rows, by number and factor.
INPUT_ROWS = ((0, 1.0), (2, -1.0)), ((1, 1.0), (2, 1.0)), ((2, 1.0), (1, -1.0)), ((1, 1.0), (3, -1.0))
SLOPE_ROWS = ((0, 1.0), (1, 0.0)), ((0, 1.0), (1, 1.0)), ((0, 1.0), (1, -1.0)), ((0, 0.0), (1, -1.0))


def suits(operation: Convolve | ConvolveInput) -> bool:
    """Whether this method is faster."""
    if operation.groups > 1:
        return False
    plain = Window((3, 3), padding=operation.window.padding) == operation.window
    outs, ins = operation.outs[0].sample_shape[0], operation.ins[0].sample_shape[0]
    return plain and min(operation.outs[0].sample_shape[1:]) >= 4 and min(outs, ins) >= MIN_CHANNELS and ins <= MAX_CHANNELS


def packed_size(operation: Convolve | ConvolveInput) -> int:
    """Elements of the transformed kernels."""
    return TILE_ELEMENTS * operation.outs[0].sample_shape[0] * operation.ins[0].sample_shape[0]


def workspace(operation: Convolve | ConvolveInput, lanes: int, registers: int) -> int:
    """Elements that each thread needs for transformed operands, and for products."""
    if not suits(operation):
        return 0
    plan = _Winograd.of(lanes, registers, operation)
    return TILE_ELEMENTS * lanes * (plan.ins * plan.part + plan.height * plan.width)


def pack_transformed(frame: Frame, operation: Convolve | ConvolveInput, target: View) -> None:
    """The transformed kernels: for each block of output channels, (element, input channel, channel of the block)."""
    plan, weight = _Winograd.of(frame.lanes, frame.registers, operation), operation.ins[1]
    forward = isinstance(operation, Convolve)
    outs, ins = weight.strides[:2] if forward else weight.strides[1::-1]

    def write(f: Function, arguments: list[Value]) -> None:
        to, of, *_ = arguments
        scalar = plan.scalar

        def one(o: Value, count: int, h: int, c: Value) -> None:
            start = f.add(f.mul(f.add(o, h), outs), f.mul(c, ins))
            order = range(3) if forward else range(2, -1, -1)  # in the gradient, the kernel is rotated by half a turn

            def entry(i: int, j: int) -> Value:
                offset = f.add(start, i * weight.strides[2] + j * weight.strides[3])
                return f.load(scalar, f.address(of, offset, scalar))

            g = [[entry(i, j) for j in order] for i in order]
            rows = [_kernel_line(f, [g[i][j] for i in range(3)]) for j in range(3)]  # by column of the kernel
            for i in range(4):
                for j, value in enumerate(_kernel_line(f, [rows[k][i] for k in range(3)])):
                    place = f.add(f.mul(f.add(c, (4 * i + j) * plan.ins), count), h)
                    place = f.add(place, f.mul(o, TILE_ELEMENTS * plan.ins))
                    f.store(value, f.address(to, place, scalar))

        def block(o: Value, count: int) -> None:
            def channel(c: Value) -> None:
                for h in range(count):
                    one(o, count, h, c)

            f.each(plan.ins, channel)

        blocks(f, plan.outs, plan.height, block)

    frame.outlined("transform_kernels", [frame.base(target), frame.base(weight)], write)


def lower_winograd(frame: Frame, operation: Convolve | ConvolveInput, packed: View, space: Value, ending: Ending) -> None:
    """The convolution with transformed kernels, and what is done to its results; `space` is this thread's workspace."""
    plan = _Winograd.of(frame.lanes, frame.registers, operation)
    bases = [frame.base(view) for view in (operation.ins[0], packed)]

    def write(f: Function, arguments: list[Value]) -> None:
        source, weight, space, *rest = arguments
        plan.write(f, source, weight, space, Epilogue(f, ending, dict(zip(ending.views, rest, strict=False))))

    frame.outlined("winograd", [*bases, space, *map(frame.base, ending.views)], write)


@dataclass(frozen=True)
class _Operand:
    """Images to transform: the inputs, or the slopes of the outputs."""

    images: Images
    channels: int
    size: tuple[int, int]
    before: tuple[int, int] = (0, 0)  # padding above and to the left
    patch: int = 4  # rows and columns of a patch

    @staticmethod
    def of(view: View, *patch: Any) -> _Operand:
        channels, rows, columns = view.sample_shape
        return _Operand(Images.of(view), channels, (rows, columns), *patch)

    def patch_row(
        self, f: Function, type: Type, zeros: Value, line: Value, inside: Value, t: Value, columns: Sequence[int]
    ) -> list[Value]:
        """A row of the patch of tile `t`, on an image's row at `line`; zeros where no numbers are inside the image."""
        scalar = Type(type.name)
        at = f.address(line, f.mul(f.add(f.mul(t, 2), -self.before[1]), self.images.column), scalar)
        at = f.select(inside, at, zeros)
        places = [f.address(at, integer(s * type.lanes), scalar) for s in range(self.patch)]
        return [f.load(type, place) if s in columns else number(type, 0.0) for s, place in enumerate(places)]

    def each_tile(self, f: Function, tiles: range, body: Callable[[Value, Sequence[int]], None]) -> None:
        """Call `body` for each of these tiles of a row, with the columns of its patch that are inside the image."""
        patch = range(self.patch)
        inside = {t: [s for s in patch if 0 <= 2 * t + s - self.before[1] < self.size[1]] for t in tiles}
        whole = [t for t in tiles if len(inside[t]) == self.patch]
        for t in tiles:
            if t not in whole:
                body(integer(t), inside[t])
        if whole:
            f.loop(integer(whole[0]), integer(whole[-1] + 1), 1, lambda t, _: body(t, patch))


@dataclass(frozen=True)
class _Winograd:
    lanes: int
    block: Block
    scalar: Type
    outs: int
    source: _Operand
    out_size: tuple[int, int]

    @staticmethod
    def of(lanes: int, registers: int, operation: Convolve | ConvolveInput) -> _Winograd:
        (out,), source = operation.outs, operation.ins[0]
        (above, _), (left, _) = operation.window.padding
        before = (above, left) if isinstance(operation, Convolve) else (2 - above, 2 - left)
        outs, rows, columns = out.sample_shape
        block, operand = block_shapes(registers).winograd, _Operand.of(source, before)
        return _Winograd(lanes, block, real_type(out.dtype), outs, operand, (rows, columns))

    @property
    def ins(self) -> int:
        return self.source.channels

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles of two by two outputs."""
        return -(-self.out_size[0] // 2), -(-self.out_size[1] // 2)

    @property
    def height(self) -> int:
        """Output channels of a block of products."""
        return min(self.outs, self.block.rows)

    @property
    def width(self) -> int:
        """Tiles of a block of products."""
        return self.block.vectors

    @property
    def part(self) -> int:
        """Number of tiles of a row that are worked on at a time."""
        bytes_per_tile = TILE_ELEMENTS * self.ins * self.lanes * {"float": 4, "double": 8}[self.scalar.name]
        return max(self.width, CACHED_BYTES // bytes_per_tile // self.width * self.width)

    def write(self, f: Function, source: Value, weight: Value, space: Value, epilogue: Epilogue) -> None:
        products = f.address(space, integer(TILE_ELEMENTS * self.lanes * self.ins * self.part), self.scalar)

        def row(i: Value) -> None:
            for start in range(0, self.tiles[1], self.part):
                part = range(start, min(start + self.part, self.tiles[1]))
                self._transform(f, source, space, i, part)
                blocks(f, self.outs, self.height, lambda o, count, part=part: channels(i, o, count, part))  # type: ignore[misc]

        def channels(i: Value, o: Value, count: int, part: range) -> None:
            own = f.address(weight, f.mul(o, TILE_ELEMENTS * self.ins), self.scalar)

            def some(t: Value, width: int) -> None:
                self._multiply(f, own, f.address(space, f.mul(t, self.lanes), self.scalar), products, count, width, len(part))
                self._finish(f, products, epilogue, i, o, count, t, width, part)

            blocks(f, len(part), self.width, some)

        f.each(self.tiles[0], row)

    def _transform(self, f: Function, source: Value, space: Value, i: Value, part: range) -> None:
        """Transform the inputs of a part of row `i` of tiles, to (element, channel, tile)."""
        type, operand = Type(self.scalar.name, self.lanes), self.source
        zeros = f.module.zeros(4 * self.lanes, self.scalar)
        inside: list[Value] = []
        lines: list[Value] = []
        for r in range(4):
            row = f.add(f.mul(i, 2), r - operand.before[0])
            inside.append(f.compare("ult", row, integer(operand.size[0])))  # unsigned: negative rows are outside too
            lines.append(f.address(source, f.mul(row, operand.images.row), self.scalar))

        def channel(c: Value) -> None:
            own = [f.address(line, f.mul(c, operand.images.channel), self.scalar) for line in lines]

            def tile(t: Value, columns: Sequence[int]) -> None:
                d = [operand.patch_row(f, type, zeros, own[r], inside[r], t, columns) for r in range(4)]
                lines = [_input_line(f, [d[r][s] for r in range(4)]) for s in range(4)]  # by column
                for r in range(4):
                    for s, value in enumerate(_input_line(f, [lines[k][r] for k in range(4)])):
                        place = f.mul(f.add(c, (4 * r + s) * self.ins), len(part))
                        place = f.mul(f.add(place, f.add(t, -part.start)), self.lanes)
                        f.store(value, f.address(space, place, self.scalar))

            operand.each_tile(f, part, tile)

        f.each(self.ins, channel)

    def _multiply(self, f: Function, weight: Value, inputs: Value, products: Value, height: int, width: int, part: int) -> None:
        """For each element: the sums over the input channels, to (element, channel of the block, tile of the block)."""
        type = Type(self.scalar.name, self.lanes)
        several = next(n for n in (4, 3, 2, 1) if self.ins % n == 0)

        def element(e: Value) -> None:
            own = f.address(weight, f.mul(e, self.ins * height), self.scalar)
            tiles = f.address(inputs, f.mul(e, self.ins * part * self.lanes), self.scalar)

            def step(c: Value, sums: Sequence[Value]) -> list[Value]:
                for k in (f.add(c, n) for n in range(several)):
                    at = f.address(tiles, f.mul(k, part * self.lanes), self.scalar)
                    vectors = [f.load(type, f.address(at, integer(w * self.lanes), self.scalar)) for w in range(width)]
                    places = (f.address(own, f.add(f.mul(k, height), h), self.scalar) for h in range(height))
                    sums = multiply_add(f, (f.load(self.scalar, place) for place in places), vectors, sums)
                return list(sums)

            zero = [number(type, 0.0)] * (height * width)
            sums = f.loop(integer(0), integer(self.ins), several, step, zero)[1]
            for k, total in enumerate(sums):
                place = f.mul(f.add(f.mul(e, height * width), k), self.lanes)
                f.store(total, f.address(products, place, self.scalar))

        f.each(TILE_ELEMENTS, element)

    def _finish(
        self,
        f: Function,
        products: Value,
        epilogue: Epilogue,
        i: Value,
        o: Value,
        height: int,
        t: Value,
        width: int,
        part: range,
    ) -> None:
        """Transform the products back to two by two outputs for each tile and channel, and store the outputs."""
        type = Type(self.scalar.name, self.lanes)
        rows, columns = self.out_size

        def outputs(h: Value, w: Value, both: bool) -> None:
            def product(e: int) -> Value:
                place = f.mul(f.add(f.add(f.mul(h, width), w), e * height * width), self.lanes)
                return f.load(type, f.address(products, place, self.scalar))

            lines = [_output_line(f, [product(4 * r + s) for r in range(4)]) for s in range(4)]  # by column
            column = f.mul(f.add(f.add(t, w), part.start), 2)
            results = [_output_line(f, [lines[s][r] for s in range(4)])[: 1 + both] for r in range(2)]
            channel, row = f.add(o, h), f.mul(i, 2)

            def store(r: int) -> None:
                epilogue.store(results[r], Corner(channel, f.add(row, r), column), (1, 1, 1 + both))

            store(0)
            if rows % 2:
                f.when(f.compare("slt", f.add(row, 1), integer(rows)), lambda: store(1))
            else:
                store(1)

        def channel(h: Value) -> None:
            def tile(w: Value) -> None:
                if columns % 2 and part.stop == self.tiles[1]:
                    last = f.compare("eq", f.add(f.add(t, w), part.start), integer(self.tiles[1] - 1))
                    f.when(last, lambda: outputs(h, w, False), lambda: outputs(h, w, True))
                else:
                    outputs(h, w, True)

            f.each(width, tile)

        f.each(height, channel)


def _input_line(f: Function, d: list[Value]) -> list[Value]:
    return [
        f.binary("fsub", d[0], d[2]),
        f.binary("fadd", d[1], d[2]),
        f.binary("fsub", d[2], d[1]),
        f.binary("fsub", d[1], d[3]),
    ]


def _output_line(f: Function, m: list[Value]) -> list[Value]:
    total, difference = f.binary("fadd", m[1], m[2]), f.binary("fsub", m[1], m[2])
    return [f.binary("fadd", m[0], total), f.binary("fsub", difference, m[3])]


def _kernel_line(f: Function, g: list[Value]) -> list[Value]:
    half = number(g[0].type, 0.5)
    ends = f.binary("fadd", g[0], g[2])
    return [
        g[0],
        f.binary("fmul", half, f.binary("fadd", ends, g[1])),
        f.binary("fmul", half, f.binary("fsub", ends, g[1])),
        g[2],
    ]


def weight_workspace(operation: ConvolveWeight, lanes: int, registers: int) -> int:
    """Elements that each thread needs for transformed operands, and for sums."""
    return _WeightSums.of(lanes, registers, operation).workspace if suits_weight(operation, lanes) else 0


def suits_weight(operation: ConvolveWeight, lanes: int) -> bool:
    """Whether this method is faster. Wide vectors need more channels."""
    if operation.groups > 1:
        return False
    x, dy = operation.ins
    channels = x.sample_shape[0], dy.sample_shape[0]
    rows, columns = (-(-size // 2) for size in dy.sample_shape[1:])
    plain = Window((3, 3), padding=operation.window.padding) == operation.window
    fits = min(channels) >= max(MIN_CHANNELS, 2 * lanes) and max(channels) <= MAX_CHANNELS
    return plain and fits and rows * columns >= MIN_TILES and columns <= MAX_TILES


def lower_winograd_weight(frame: Frame, operation: ConvolveWeight, space: Value) -> None:
    """The gradient with respect to the kernels; `space` is this thread's workspace."""
    plan = _WeightSums.of(frame.lanes, frame.registers, operation)
    views = *operation.outs, *operation.ins
    frame.outlined("winograd_weight", [*(frame.base(view) for view in views), space], plan.write)


@dataclass(frozen=True)
class _WeightSums:
    lanes: int
    block: Block  # output channels times input channels
    scalar: Type
    x: _Operand
    dy: _Operand
    weight: tuple[int, int, int, int]  # strides: output channel, input channel, row, column

    @staticmethod
    def of(lanes: int, registers: int, operation: ConvolveWeight) -> _WeightSums:
        (out,), (x, dy) = operation.outs, operation.ins
        (above, _), (left, _) = operation.window.padding
        block, operands = block_shapes(registers).winograd_weight, (_Operand.of(x, (above, left)), _Operand.of(dy, (0, 0), 2))
        return _WeightSums(lanes, block, real_type(out.dtype), *operands, out.strides)  # type: ignore[arg-type]

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-self.dy.size[0] // 2), -(-self.dy.size[1] // 2)

    @property
    def part(self) -> int:
        """Rows of tiles that are worked on at a time."""
        return min(self.tiles[0], max(1, MAX_TILES // self.tiles[1]))

    @property
    def stride(self) -> int:
        """Elements from channel to channel of a transformed operand: a vector more than the tiles, as in `layout.py`."""
        return (self.part * self.tiles[1] + 1) * self.lanes

    @property
    def totals(self) -> int:
        """Sums of an element of the tile: one for each pair of channels, in whole blocks."""
        pairs = zip((self.dy.channels, self.x.channels), (self.block.rows, self.block.vectors), strict=True)
        rows, columns = (-(-channels // size) * size for channels, size in pairs)
        return rows * columns

    @property
    def workspace(self) -> int:
        operands = ROW_ELEMENTS * (self.x.channels + self.dy.channels) * self.stride
        return operands + TILE_ELEMENTS * self.totals + KERNEL_ELEMENTS * self.lanes

    def write(self, f: Function, arguments: list[Value]) -> None:
        out, x, dy, inputs, count, first = arguments
        slopes = f.address(inputs, integer(ROW_ELEMENTS * self.x.channels * self.stride), self.scalar)
        totals = f.address(slopes, integer(ROW_ELEMENTS * self.dy.channels * self.stride), self.scalar)
        alive = f.first_lanes(self.lanes, count)

        def part(i: Value, _: list[Value]) -> None:
            rows = f.least(f.binary("sub", integer(self.tiles[0]), i), integer(self.part))

            def row(r: Value) -> None:
                self._transform(f, self.x, x, inputs, i, rows, r)
                self._transform(f, self.dy, dy, slopes, i, rows, r)

                def element(s: Value) -> None:
                    own = f.address(totals, f.mul(f.add(f.mul(r, ROW_ELEMENTS), s), self.totals), self.scalar)
                    left, right = (
                        f.address(base, f.mul(s, operand.channels * self.stride), self.scalar)
                        for base, operand in ((slopes, self.dy), (inputs, self.x))
                    )
                    self._multiply(f, left, right, own, f.mul(rows, self.tiles[1]), f.compare("eq", i, integer(0)), alive)

                f.each(ROW_ELEMENTS, element)

            f.each(ROW_ELEMENTS, row)

        f.loop(integer(0), integer(self.tiles[0]), self.part, part)
        self._finish(f, totals, out, f.compare("ne", first, integer(0)))

    def _transform(self, f: Function, operand: _Operand, source: Value, space: Value, i: Value, rows: Value, r: Value) -> None:
        """Row `r` of the transformed tiles in `rows` rows of tiles from `i` on, to (element, channel, tile)."""
        type, images = Type(self.scalar.name, self.lanes), operand.images
        zeros = f.module.zeros(operand.patch * self.lanes, self.scalar)
        tile_rows, line = (INPUT_ROWS, _input_line) if operand.patch == 4 else (SLOPE_ROWS, _slope_line)
        chosen = [f.load(r.type, f.address(f.module.table([row[k][0] for row in tile_rows]), r, r.type)) for k in range(2)]
        factors = []
        for k in range(2):
            factor = number(self.scalar, tile_rows[0][k][1])
            for n, row in enumerate(tile_rows):
                factor = f.select(f.compare("eq", r, integer(n)), number(self.scalar, row[k][1]), factor)
            factors.append(f.splat(factor, self.lanes))

        def channel(c: Value) -> None:
            def row(u: Value, _: list[Value]) -> None:
                lines = []
                for k in chosen:
                    at = f.binary("add", f.add(f.mul(f.add(i, u), 2), -operand.before[0]), k)
                    inside = f.compare("ult", at, integer(operand.size[0]))  # unsigned: negative rows are outside too
                    offset = f.add(f.mul(c, images.channel), f.mul(at, images.row))
                    lines.append((f.address(source, offset, self.scalar), inside))

                def tile(t: Value, columns: Sequence[int]) -> None:
                    patches = [operand.patch_row(f, type, zeros, *each, t, columns) for each in lines]
                    scaled = [f.binary("fmul", factors[0], value) for value in patches[0]]
                    combined = [f.fma(factors[1], b, a) for a, b in zip(scaled, patches[1], strict=True)]
                    place = f.add(f.mul(c, self.stride), f.mul(f.add(f.mul(u, self.tiles[1]), t), self.lanes))
                    for s, value in enumerate(line(f, combined)):
                        f.store(value, f.address(space, f.add(place, s * operand.channels * self.stride), self.scalar))

                operand.each_tile(f, range(self.tiles[1]), tile)

            f.loop(integer(0), rows, 1, row)

        f.each(operand.channels, channel)

    def _multiply(
        self, f: Function, slopes: Value, inputs: Value, totals: Value, tiles: Value, begins: Value, alive: Value
    ) -> None:
        """For each pair of channels: the sum over the tiles and the samples, added to `totals`."""
        type, size = Type(self.scalar.name, self.lanes), self.block.rows * self.block.vectors
        across = self.totals // (-(-self.dy.channels // self.block.rows) * self.block.rows)

        def block(o: Value, height: int, c: Value, width: int) -> None:
            left, right = (f.address(base, f.mul(k, self.stride), self.scalar) for base, k in ((slopes, o), (inputs, c)))

            def vector(base: Value, k: int, t: Value) -> Value:
                return f.load(type, f.address(base, f.add(f.mul(t, self.lanes), k * self.stride), self.scalar))

            def step(t: Value, sums: Sequence[Value]) -> list[Value]:
                columns = [vector(right, w, t) for w in range(width)]
                rows = (vector(left, h, t) for h in range(height))
                products = [(row, column) for row in rows for column in columns]
                return [f.fma(*pair, total) for pair, total in zip(products, sums, strict=True)]

            sums = f.loop(integer(0), tiles, 1, step, [number(type, 0.0)] * (height * width))[1]
            sums = [f.select(alive, total, number(type, 0.0)) for total in sums]
            sums += [number(type, 0.0)] * (size - len(sums))
            own = f.address(totals, f.add(f.mul(o, across), f.mul(c, self.block.rows)), self.scalar)
            for k in range(0, size, self.lanes):
                place = f.address(own, integer(k), self.scalar)
                before = f.select(begins, number(type, 0.0), f.load(type, place))
                f.store(f.binary("fadd", before, sums_of_lanes(f, sums[k : k + self.lanes])), place)

        self._pairs(f, block)

    def _pairs(self, f: Function, body: Callable[[Value, int, Value, int], None]) -> None:
        """Call `body` for blocks of output channels times blocks of input channels."""
        blocks(
            f, self.dy.channels, self.block.rows,
            lambda o, height: blocks(f, self.x.channels, self.block.vectors, lambda c, width: body(o, height, c, width)),
        )  # fmt: skip

    def _finish(self, f: Function, totals: Value, out: Value, begins: Value) -> None:
        """Transform the sums back, and add them to the gradient, or begin it with them."""
        type = Type(self.scalar.name, self.lanes)
        across = self.totals // (-(-self.dy.channels // self.block.rows) * self.block.rows)
        spare = f.address(totals, integer(TILE_ELEMENTS * self.totals), self.scalar)

        def block(o: Value, height: int, c: Value, width: int) -> None:
            own = f.address(totals, f.add(f.mul(o, across), f.mul(c, self.block.rows)), self.scalar)
            for first in range(0, height * width, self.lanes):
                m = [f.load(type, f.address(own, integer(e * self.totals + first), self.scalar)) for e in range(TILE_ELEMENTS)]
                lines = [_totals_line(f, m[s::ROW_ELEMENTS]) for s in range(ROW_ELEMENTS)]  # by column
                results = [value for k in range(3) for value in _totals_line(f, [line[k] for line in lines])]
                for k, value in enumerate(results):
                    f.store(value, f.address(spare, integer(k * self.lanes), self.scalar))
                for n in range(first, min(first + self.lanes, height * width)):
                    start = f.add(f.mul(f.add(o, n // width), self.weight[0]), f.mul(f.add(c, n % width), self.weight[1]))
                    entry = f.address(out, start, self.scalar)
                    for k in range(KERNEL_ELEMENTS):
                        place = f.address(entry, integer(k // 3 * self.weight[2] + k % 3 * self.weight[3]), self.scalar)
                        x = f.load(self.scalar, f.address(spare, integer(k * self.lanes + n - first), self.scalar))
                        before = f.select(begins, number(self.scalar, 0.0), f.load(self.scalar, place))
                        f.store(f.binary("fadd", before, x), place)

        self._pairs(f, block)


def _slope_line(f: Function, dy: list[Value]) -> list[Value]:
    return [dy[0], f.binary("fadd", *dy), f.binary("fsub", *dy), f.binary("fsub", number(dy[1].type, 0.0), dy[1])]


def _totals_line(f: Function, m: list[Value]) -> list[Value]:
    half = number(m[0].type, 0.5)
    middle = f.binary("fmul", half, f.binary("fadd", m[1], m[2]))
    return [
        f.binary("fadd", m[0], middle),
        f.binary("fmul", half, f.binary("fsub", m[1], m[2])),
        f.binary("fadd", middle, m[3]),
    ]
