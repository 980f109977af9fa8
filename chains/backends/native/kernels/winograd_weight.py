"""Gradients of kernels of three by three with fewer multiplications, on images whose lanes are samples.

The transpose of `winograd.py`: additions transform four by four inputs and two by two slopes of the outputs, and the kernel's
nine sums take 16 products a tile instead of 36. For each of the 16 elements, the sum over the tiles is a matrix product of
slopes and inputs. The code works on some rows of tiles at a time, and on four elements, so that operands stay in cache. The
lanes of the sums are added before the transform back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from chains.backends.native.kernels.block_shapes import Block, block_shapes
from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.taps import Images
from chains.backends.native.kernels.winograd import FEWEST_CHANNELS, MAX_CHANNELS, TILE_ELEMENTS, input_line
from chains.backends.native.llvm.blocking import blocks
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import sums_of_lanes
from chains.program.operations import ConvolveWeight, Operation
from chains.program.window import Window

FEWEST_TILES = 16  # of an image: with fewer, adding lanes and the transform back cost more than the products save
MAX_TILES = 64  # of a part
ROW_ELEMENTS = 4  # elements of a row of a transformed tile
RESULTS = 9  # entries of a kernel

# Rows of a transformed tile: `input_line` and `_slope_line` as sums of two rows, by number and factor.
INPUT_ROWS = ((0, 1.0), (2, -1.0)), ((1, 1.0), (2, 1.0)), ((2, 1.0), (1, -1.0)), ((1, 1.0), (3, -1.0))
SLOPE_ROWS = ((0, 1.0), (1, 0.0)), ((0, 1.0), (1, 1.0)), ((0, 1.0), (1, -1.0)), ((0, 0.0), (1, -1.0))


def suits(operation: Operation, lanes: int) -> TypeGuard[ConvolveWeight]:
    """Whether the operation is a gradient of kernels for which this method is faster. Wide vectors want more channels."""
    if not isinstance(operation, ConvolveWeight) or operation.groups > 1:
        return False
    x, dy = operation.ins
    channels = x.sample_shape[0], dy.sample_shape[0]
    rows, columns = (-(-size // 2) for size in dy.sample_shape[1:])
    plain = Window((3, 3), padding=operation.window.padding) == operation.window
    fits = min(channels) >= max(FEWEST_CHANNELS, 2 * lanes) and max(channels) <= MAX_CHANNELS
    return plain and fits and rows * columns >= FEWEST_TILES and columns <= MAX_TILES


def workspace(operation: Operation, lanes: int, registers: int) -> int:
    """Elements that each thread needs for transformed operands and for sums."""
    return _WeightSums.of(lanes, registers, operation).workspace if suits(operation, lanes) else 0


def lower_winograd_weight(frame: Frame, operation: ConvolveWeight, space: Value) -> None:
    """The gradient with respect to the kernels; `space` is this thread's workspace."""
    plan = _WeightSums.of(frame.lanes, frame.registers, operation)
    views = *operation.outs, *operation.ins
    frame.outlined("winograd_weight", [*(frame.base(view) for view in views), space], plan.write)


@dataclass(frozen=True)
class _Operand:
    """Images to transform: those of the inputs, or those of the slopes."""

    images: Images
    channels: int
    size: tuple[int, int]
    before: tuple[int, int]  # padding above and to the left
    patch: int  # rows and columns of a patch
    rows: Sequence[Sequence[tuple[int, float]]]
    line: Callable[[Function, list[Value]], list[Value]]


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
        (ins, *x_size), (outs, *dy_size) = x.sample_shape, dy.sample_shape
        return _WeightSums(
            lanes, block_shapes(registers).winograd_weight, real_type(out.dtype),
            _Operand(Images.of(x), ins, (x_size[0], x_size[1]), (above, left), 4, INPUT_ROWS, input_line),
            _Operand(Images.of(dy), outs, (dy_size[0], dy_size[1]), (0, 0), 2, SLOPE_ROWS, _slope_line),
            out.strides,  # type: ignore[arg-type]
        )  # fmt: skip

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
        return operands + TILE_ELEMENTS * self.totals + RESULTS * self.lanes

    def write(self, f: Function, arguments: list[Value]) -> None:
        out, x, dy, inputs, count, first = arguments
        slopes = f.address(inputs, integer(ROW_ELEMENTS * self.x.channels * self.stride), self.scalar)
        totals = f.address(slopes, integer(ROW_ELEMENTS * self.dy.channels * self.stride), self.scalar)
        alive = f.first_lanes(self.lanes, count)

        def part(i: Value, _: list[Value]) -> None:
            rows = f.least(f.binary("sub", integer(self.tiles[0]), i), integer(self.part))

            def row(r: Value, _: list[Value]) -> None:
                self._transform(f, self.x, x, inputs, i, rows, r)
                self._transform(f, self.dy, dy, slopes, i, rows, r)

                def element(s: Value, _: list[Value]) -> None:
                    own = f.address(totals, f.mul(f.add(f.mul(r, ROW_ELEMENTS), s), self.totals), self.scalar)
                    left, right = (
                        f.address(base, f.mul(s, operand.channels * self.stride), self.scalar)
                        for base, operand in ((slopes, self.dy), (inputs, self.x))
                    )
                    self._multiply(f, left, right, own, f.mul(rows, self.tiles[1]), f.compare("eq", i, integer(0)), alive)

                f.loop(integer(0), integer(ROW_ELEMENTS), 1, element)

            f.loop(integer(0), integer(ROW_ELEMENTS), 1, row)

        f.loop(integer(0), integer(self.tiles[0]), self.part, part)
        self._finish(f, totals, out, f.compare("ne", first, integer(0)))

    def _transform(self, f: Function, operand: _Operand, source: Value, space: Value, i: Value, rows: Value, r: Value) -> None:
        """Row `r` of the transformed tiles in `rows` rows of tiles from `i` on, to (element, channel, tile)."""
        type, images = Type(self.scalar.name, self.lanes), operand.images
        zeros = f.module.zeros(operand.patch * self.lanes, self.scalar)
        chosen = [f.load(r.type, f.address(f.module.table([row[k][0] for row in operand.rows]), r, r.type)) for k in range(2)]
        factors = []
        for k in range(2):
            factor = number(self.scalar, operand.rows[0][k][1])
            for n, row in enumerate(operand.rows):
                factor = f.select(f.compare("eq", r, integer(n)), number(self.scalar, row[k][1]), factor)
            factors.append(f.splat(factor, self.lanes))
        reached = [
            [s for s in range(operand.patch) if 0 <= 2 * t + s - operand.before[1] < operand.size[1]]
            for t in range(self.tiles[1])
        ]
        whole = [t for t, columns in enumerate(reached) if len(columns) == operand.patch]

        def channel(c: Value, _: list[Value]) -> None:
            def row(u: Value, _: list[Value]) -> None:
                lines = []
                for k in chosen:
                    at = f.binary("add", f.add(f.mul(f.add(i, u), 2), -operand.before[0]), k)
                    inside = f.compare("ult", at, integer(operand.size[0]))  # unsigned: negative rows are outside too
                    line = f.add(f.mul(c, images.channel), f.mul(at, images.row))
                    lines.append((f.address(source, line, self.scalar), inside))

                def tile(t: Value, columns: Sequence[int]) -> None:
                    patches = []
                    for line, inside in lines:
                        at = f.address(line, f.mul(f.add(f.mul(t, 2), -operand.before[1]), images.column), self.scalar)
                        at = f.select(inside, at, zeros)
                        places = [f.address(at, integer(s * self.lanes), self.scalar) for s in range(operand.patch)]
                        zero = number(type, 0.0)
                        patches.append([f.load(type, place) if s in columns else zero for s, place in enumerate(places)])
                    scaled = [f.binary("fmul", factors[0], value) for value in patches[0]]
                    combined = [f.fma(factors[1], b, a) for a, b in zip(scaled, patches[1], strict=True)]
                    place = f.add(f.mul(c, self.stride), f.mul(f.add(f.mul(u, self.tiles[1]), t), self.lanes))
                    for s, value in enumerate(operand.line(f, combined)):
                        f.store(value, f.address(space, f.add(place, s * operand.channels * self.stride), self.scalar))

                for t, columns in enumerate(reached):
                    if t not in whole:
                        tile(integer(t), columns)
                if whole:
                    f.loop(integer(whole[0]), integer(whole[-1] + 1), 1, lambda t, _: tile(t, range(operand.patch)))

            f.loop(integer(0), rows, 1, row)

        f.loop(integer(0), integer(operand.channels), 1, channel)

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
                lines = [_kernel_line(f, m[s::ROW_ELEMENTS]) for s in range(ROW_ELEMENTS)]  # by column
                results = [value for k in range(3) for value in _kernel_line(f, [line[k] for line in lines])]
                for k, value in enumerate(results):
                    f.store(value, f.address(spare, integer(k * self.lanes), self.scalar))
                for n in range(first, min(first + self.lanes, height * width)):
                    start = f.add(f.mul(f.add(o, n // width), self.weight[0]), f.mul(f.add(c, n % width), self.weight[1]))
                    entry = f.address(out, start, self.scalar)
                    for k in range(RESULTS):
                        place = f.address(entry, integer(k // 3 * self.weight[2] + k % 3 * self.weight[3]), self.scalar)
                        x = f.load(self.scalar, f.address(spare, integer(k * self.lanes + n - first), self.scalar))
                        before = f.select(begins, number(self.scalar, 0.0), f.load(self.scalar, place))
                        f.store(f.binary("fadd", before, x), place)

        self._pairs(f, block)


def _slope_line(f: Function, dy: list[Value]) -> list[Value]:
    return [dy[0], f.binary("fadd", *dy), f.binary("fsub", *dy), f.binary("fsub", number(dy[1].type, 0.0), dy[1])]


def _kernel_line(f: Function, m: list[Value]) -> list[Value]:
    half = number(m[0].type, 0.5)
    middle = f.binary("fmul", half, f.binary("fadd", m[1], m[2]))
    return [
        f.binary("fadd", m[0], middle),
        f.binary("fmul", half, f.binary("fsub", m[1], m[2])),
        f.binary("fadd", middle, m[3]),
    ]
