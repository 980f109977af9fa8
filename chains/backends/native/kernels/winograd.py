"""Convolutions with kernels of three by three and fewer multiplications, on images whose lanes are samples.

Additions transform four by four inputs and the kernel. Two by two outputs then take 16 products instead of 36 for each pair of
channels. This is the minimal filtering of Winograd, "Arithmetic complexity of computations" (1980), as used by Lavin and Gray
in "Fast algorithms for convolutional neural networks" (2016), F(2x2, 3x3). For each of the 16 elements, the sum over the
channels is a matrix product. The code works on a part of a row of tiles at a time, which stays in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from chains.backends.native.kernels.block_shapes import Block, block_shapes
from chains.backends.native.kernels.convolve import Epilogue
from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.taps import Images
from chains.backends.native.llvm.blocking import blocks
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number, real_type
from chains.program.operations import Convolve, ConvolveInput, Map, Operation
from chains.program.view import View
from chains.program.window import Window

FEWEST_CHANNELS = 16  # with fewer, the transforms cost more than they save
MAX_CHANNELS = 256  # with more, a part of a row of tiles does not stay in cache
CACHED_BYTES = 448 << 10  # bytes of transformed inputs to work on at a time
TILE_ELEMENTS = 16  # elements of a transformed tile


def suits(operation: Operation) -> TypeGuard[Convolve | ConvolveInput]:
    """Whether the operation is a convolution, or its gradient with respect to the input, for which this method is faster."""
    if not isinstance(operation, (Convolve, ConvolveInput)) or operation.groups > 1:
        return False
    plain = Window((3, 3), padding=operation.window.padding) == operation.window
    outs, ins = operation.outs[0].sample_shape[0], operation.ins[0].sample_shape[0]
    return plain and min(operation.outs[0].sample_shape[1:]) >= 4 and min(outs, ins) >= FEWEST_CHANNELS and ins <= MAX_CHANNELS


def packed_size(operation: Convolve | ConvolveInput) -> int:
    """Elements of the transformed kernels."""
    return TILE_ELEMENTS * operation.outs[0].sample_shape[0] * operation.ins[0].sample_shape[0]


def workspace(operation: Operation, lanes: int, registers: int) -> int:
    """Elements that each thread needs for transformed inputs and products."""
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
            def channel(c: Value, _: list[Value]) -> None:
                for h in range(count):
                    one(o, count, h, c)

            f.loop(integer(0), integer(plan.ins), 1, channel)

        blocks(f, plan.outs, plan.height, block)

    frame.outlined("transform_kernels", [frame.base(target), frame.base(weight)], write)


def lower_winograd(frame: Frame, operation: Convolve | ConvolveInput, packed: View, space: Value, maps: Sequence[Map]) -> None:
    """The convolution with transformed kernels, and maps on the results; `space` is this thread's workspace."""
    (out,), source = operation.outs, operation.ins[0]
    plan = _Winograd.of(frame.lanes, frame.registers, operation)
    operands = list(dict.fromkeys(view for fused in maps for view in (*fused.outs, *fused.ins) if view != out))
    pointers = [frame.base(out), frame.base(source), frame.base(packed), space, *(frame.base(view) for view in operands)]
    epilogue = Epilogue(out, operands, maps)
    frame.outlined("winograd", pointers, lambda f, arguments: plan.write(f, arguments, epilogue))


@dataclass(frozen=True)
class _Winograd:
    lanes: int
    block: Block
    scalar: Type
    outs: int
    ins: int
    source: Images
    source_size: tuple[int, int]
    out_size: tuple[int, int]
    before: tuple[int, int]  # padding above and to the left

    @staticmethod
    def of(lanes: int, registers: int, operation: Convolve | ConvolveInput) -> _Winograd:
        (out,), source = operation.outs, operation.ins[0]
        (above, _), (left, _) = operation.window.padding
        before = (above, left) if isinstance(operation, Convolve) else (2 - above, 2 - left)
        (outs, *out_size), (ins, *source_size) = out.sample_shape, source.sample_shape
        images = Images.of(source)
        return _Winograd(
            lanes, block_shapes(registers).winograd, real_type(out.dtype), outs, ins, images,
            (source_size[0], source_size[1]), (out_size[0], out_size[1]), before,
        )  # fmt: skip

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

    def write(self, f: Function, arguments: list[Value], epilogue: Epilogue) -> None:
        out, source, weight, space, *rest = arguments
        pointers = [out, *rest]
        products = f.address(space, integer(TILE_ELEMENTS * self.lanes * self.ins * self.part), self.scalar)
        zeros = f.module.zeros(4 * self.lanes, self.scalar)

        def row(i: Value, _: list[Value]) -> None:
            for start in range(0, self.tiles[1], self.part):
                part = range(start, min(start + self.part, self.tiles[1]))
                self._transform(f, source, zeros, space, i, part)
                blocks(f, self.outs, self.height, lambda o, count, part=part: channels(i, o, count, part))  # type: ignore[misc]

        def channels(i: Value, o: Value, count: int, part: range) -> None:
            own = f.address(weight, f.mul(o, TILE_ELEMENTS * self.ins), self.scalar)

            def some(t: Value, width: int) -> None:
                self._multiply(f, own, f.address(space, f.mul(t, self.lanes), self.scalar), products, count, width, len(part))
                self._finish(f, products, epilogue, pointers, i, o, count, t, width, part)

            blocks(f, len(part), self.width, some)

        f.loop(integer(0), integer(self.tiles[0]), 1, row)

    def _transform(self, f: Function, source: Value, zeros: Value, space: Value, i: Value, part: range) -> None:
        """Transform the inputs of a part of row `i` of tiles, to (element, channel, tile)."""
        type = Type(self.scalar.name, self.lanes)
        inside: list[Value] = []
        lines: list[Value] = []
        for r in range(4):
            row = f.add(f.mul(i, 2), r - self.before[0])
            inside.append(f.compare("ult", row, integer(self.source_size[0])))  # unsigned: negative rows are outside too
            lines.append(f.address(source, f.mul(row, self.source.row), self.scalar))

        def channel(c: Value, _: list[Value]) -> None:
            own = [f.address(line, f.mul(c, self.source.channel), self.scalar) for line in lines]

            def tile(t: Value, columns: Sequence[int]) -> None:
                """Transform tile `t` of the row. Only these of its columns are inside the image."""
                d = [patch_row(own[r], inside[r], t, columns) for r in range(4)]
                lines = [input_line(f, [d[r][s] for r in range(4)]) for s in range(4)]  # by column
                for r in range(4):
                    for s, value in enumerate(input_line(f, [lines[k][r] for k in range(4)])):
                        place = f.mul(f.add(c, (4 * r + s) * self.ins), len(part))
                        place = f.mul(f.add(place, f.add(t, -part.start)), self.lanes)
                        f.store(value, f.address(space, place, self.scalar))

            def patch_row(line: Value, inside: Value, t: Value, columns: Sequence[int]) -> list[Value]:
                at = f.address(line, f.mul(f.add(f.mul(t, 2), -self.before[1]), self.source.column), self.scalar)
                at = f.select(inside, at, zeros)
                places = [f.address(at, integer(s * self.lanes), self.scalar) for s in range(4)]
                return [f.load(type, place) if s in columns else number(type, 0.0) for s, place in enumerate(places)]

            reached = {t: [s for s in range(4) if 0 <= 2 * t + s - self.before[1] < self.source_size[1]] for t in part}
            whole = [t for t in part if len(reached[t]) == 4]
            for t in part:
                if t not in whole:
                    tile(integer(t), reached[t])
            if whole:
                f.loop(integer(whole[0]), integer(whole[-1] + 1), 1, lambda t, _: tile(t, range(4)))

        f.loop(integer(0), integer(self.ins), 1, channel)

    def _multiply(self, f: Function, weight: Value, inputs: Value, products: Value, height: int, width: int, part: int) -> None:
        """For each element: the sums over the input channels, to (element, channel of the block, tile of the block)."""
        type = Type(self.scalar.name, self.lanes)
        several = next(n for n in (4, 3, 2, 1) if self.ins % n == 0)

        def element(e: Value, _: list[Value]) -> None:
            own = f.address(weight, f.mul(e, self.ins * height), self.scalar)
            tiles = f.address(inputs, f.mul(e, self.ins * part * self.lanes), self.scalar)

            def step(c: Value, sums: Sequence[Value]) -> list[Value]:
                sums = list(sums)
                for n in range(several):
                    at = f.address(tiles, f.mul(f.add(c, n), part * self.lanes), self.scalar)
                    vectors = [f.load(type, f.address(at, integer(w * self.lanes), self.scalar)) for w in range(width)]
                    for h in range(height):
                        x = f.load(self.scalar, f.address(own, f.add(f.mul(f.add(c, n), height), h), self.scalar))
                        x = f.splat(x, self.lanes)
                        for w, vector in enumerate(vectors):
                            sums[h * width + w] = f.fma(x, vector, sums[h * width + w])
                return sums

            zero = [number(type, 0.0)] * (height * width)
            sums = f.loop(integer(0), integer(self.ins), several, step, zero)[1]
            for k, total in enumerate(sums):
                place = f.mul(f.add(f.mul(e, height * width), k), self.lanes)
                f.store(total, f.address(products, place, self.scalar))

        f.loop(integer(0), integer(TILE_ELEMENTS), 1, element)

    def _finish(
        self,
        f: Function,
        products: Value,
        epilogue: Epilogue,
        pointers: list[Value],
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
                epilogue.store(f, pointers, results[r], channel, f.add(row, r), column, 1, 1, 1 + both)

            store(0)
            if rows % 2:
                f.when(f.compare("slt", f.add(row, 1), integer(rows)), lambda: store(1))
            else:
                store(1)

        def channel(h: Value, _: list[Value]) -> None:
            def tile(w: Value, _: list[Value]) -> None:
                if columns % 2 and part.stop == self.tiles[1]:
                    last = f.compare("eq", f.add(f.add(t, w), part.start), integer(self.tiles[1] - 1))
                    f.when(last, lambda: outputs(h, w, False), lambda: outputs(h, w, True))
                else:
                    outputs(h, w, True)

            f.loop(integer(0), integer(width), 1, tile)

        f.loop(integer(0), integer(height), 1, channel)


def input_line(f: Function, d: list[Value]) -> list[Value]:
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
