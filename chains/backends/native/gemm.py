"""Large products: the whole batch at once, blocked for the caches, a share of the columns to each thread.

The scheme is that of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008): a block of a, packed
so that the kernel reads it in order, stays in the second-level cache while panels of b, packed likewise, pass by; the
kernel keeps a few rows times a panel's vectors of the result in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.blocking import row_blocks
from chains.backends.native.elementwise import Frame, horizontal
from chains.backends.native.emit import Function, Type, Value, integer, number, real_type
from chains.backends.native.shuffles import transposed
from chains.operations import MatMul, Operation
from chains.view import Batch, View, concrete

LARGE = 1 << 17  # elements of the operand without samples, from which on a product is blocked
INNER = 256  # of a block, along the summed axis
OUTER = 384  # rows of a block
THIN = 12  # rows up to which packing would cost more than it saves


def is_large(operation: Operation) -> bool:
    """Whether the operation is a product over samples with many weights."""
    if not isinstance(operation, MatMul) or not any(view.batched for view in operation.views):
        return False
    weights = next((view for view in operation.views if not view.batched), None)
    if weights is None or any(isinstance(e, Batch) and e.per_sample != 1 for v in operation.views for e in v.shape):
        return False
    rows, columns = concrete(weights.shape, 1)
    return rows * columns >= LARGE and not operation.accumulate and operation.outs[0].strides[1] == 1


def workspace(lanes: int) -> int:
    """Elements that each thread needs for its packed blocks."""
    return OUTER * INNER + INNER * 4 * lanes


def lower_large(frame: Frame, operation: MatMul, space: Value, thread: Value, threads: Value) -> None:
    """This thread's share of ``out = a @ b``; `space` is where it packs."""
    (out,), (a, b) = operation.outs, operation.ins
    if 1 not in b.strides:
        raise UnsupportedOperationError(f"backend 'native' wants rows or columns of `{b}` without gaps: `{operation}`")
    product = _Product(frame, out, a, b)
    rows, inner = (frame.extent(extent) for extent in a.shape)
    pointers = [frame.base(out), frame.base(a), frame.base(b), space]
    # Strides but 1 are arguments, so that products of different sizes may share their code.
    strides = [integer(stride) for view in (out, a, b) for stride in view.strides if stride != 1]
    arguments = [*pointers, rows, inner, thread, threads, *strides]
    name = frame.f.module.outline("gemm", [argument.type for argument in arguments], product.write)
    frame.f.line(f"call void @{name}({', '.join(map(str, arguments))})")


@dataclass
class _Product:
    frame: Frame
    out: View
    a: View
    b: View

    def __post_init__(self) -> None:
        self.lanes = self.frame.lanes
        wide = self.frame.registers >= 32
        self.vectors, self.height = (4, 6) if wide else (2, 5)
        self.heights = tuple(dict.fromkeys((self.height, self.height // 2, 1)))
        self.scalar = real_type(self.out.dtype)
        self.type = Type(self.scalar.name, self.lanes)
        self.columns = int(self.out.shape[1])  # type: ignore[arg-type]
        self.width = self.vectors * self.lanes  # of a panel
        self.outer = OUTER // self.height * self.height

    def write(self, f: Function, arguments: list[Value]) -> None:
        out, a, b, packed_a, rows, inner, thread, threads, *given = arguments
        strides = iter(given)
        self.out_strides, self.a_strides, self.b_strides = (
            [integer(1) if stride == 1 else next(strides) for stride in view.strides] for view in (self.out, self.a, self.b)
        )
        packed_b = f.address(packed_a, integer(OUTER * INNER), self.scalar)
        panels = -(-self.columns // self.width)
        begin, end = (
            f.binary("sdiv", f.binary("mul", integer(panels), share), threads) for share in (thread, f.add(thread, 1))
        )
        whole = self.columns // self.width
        end_whole = f.select(f.compare("slt", end, integer(whole)), end, integer(whole))

        rest = self.columns - whole * self.width
        masks = [f.lane_mask(self.lanes, rest - n) for n in range(0, rest, self.lanes)]

        def block(i: Value, k: Value) -> None:
            height = _least(f, f.binary("sub", rows, i), integer(self.outer))
            depth = _least(f, f.binary("sub", inner, k), integer(INNER))
            corner = f.add(f.mul(i, self.a_strides[0]), f.mul(k, self.a_strides[1]))
            self._pack_a(f, f.address(a, corner, self.scalar), packed_a, height, depth)

            def panel(column: Value, masks: Sequence[Value | None]) -> None:
                source = f.add(f.mul(k, self.b_strides[0]), f.mul(column, self.b_strides[1]))
                self._pack_b(f, f.address(b, source, self.scalar), packed_b, depth, masks)
                target = f.address(out, f.add(f.mul(i, self.out_strides[0]), column), self.scalar)
                self._multiply(f, target, f.compare("eq", k, integer(0)), packed_a, packed_b, height, depth, masks)

            f.loop(begin, end_whole, 1, lambda n, _: panel(f.mul(n, self.width), [None] * self.vectors))
            if masks:
                f.when(f.compare("sgt", end, integer(whole)), lambda: panel(integer(whole * self.width), masks))

        def rows_block(i: Value, _: list[Value]) -> None:
            f.loop(integer(0), inner, INNER, lambda k, _: block(i, k))

        def thick() -> None:
            f.loop(integer(0), rows, self.outer, rows_block)

        def thin() -> None:
            if self.b.strides[1] != 1:
                first = f.mul(begin, self.width)
                self._dots(f, out, a, b, rows, first, _least(f, f.mul(end, self.width), integer(self.columns)))
                return
            f.loop(begin, end_whole, 1, lambda n, _: columns(f.mul(n, self.width), [None] * self.vectors))
            if masks:
                f.when(f.compare("sgt", end, integer(whole)), lambda: columns(integer(whole * self.width), masks))

        def columns(column: Value, masks: Sequence[Value | None]) -> None:
            target = f.address(out, column, self.scalar)
            source = f.address(b, column, self.scalar)
            self._multiply(f, target, None, a, source, rows, inner, masks)

        if isinstance(self.a.shape[0], Batch):
            f.when(f.compare("sle", rows, integer(THIN)), thin, thick)
        else:
            thick()

    def _dots(self, f: Function, out: Value, a: Value, b: Value, rows: Value, begin: Value, end: Value) -> None:
        """Few rows times the transpose of b: each result is the sum of a product of two contiguous runs."""
        depth = int(self.a.shape[1])  # type: ignore[arg-type]
        whole = depth // self.lanes * self.lanes
        rest = f.lane_mask(self.lanes, depth - whole)

        def block(i: Value, height: int, n: Value, width: int) -> None:
            def multiply(k: Value, sums: Sequence[Value], mask: Value | None = None) -> list[Value]:
                def vector(base: Value, row: Value, stride: Value) -> Value:
                    return f.load(self.type, f.address(base, f.add(f.mul(row, stride), k), self.scalar), mask)

                left = [vector(a, f.add(i, r), self.a_strides[0]) for r in range(height)]
                right = [vector(b, f.add(n, c), self.b_strides[1]) for c in range(width)]
                return [f.fma(x, y, sums[r * width + c]) for r, x in enumerate(left) for c, y in enumerate(right)]

            zero = [number(self.type, 0.0)] * (height * width)
            sums = f.loop(integer(0), integer(whole), self.lanes, multiply, zero)[1]
            if depth > whole:
                sums = multiply(integer(whole), sums, rest)
            for r in range(height):
                for c in range(width):
                    place = f.add(f.mul(f.add(i, r), self.out_strides[0]), f.add(n, c))
                    f.store(horizontal(f, sums[r * width + c]), f.address(out, place, self.scalar))

        def some(n: Value, width: int) -> None:
            row_blocks(f, integer(0), rows, (4, 1), lambda i, height: block(i, height, n, width))

        row_blocks(f, begin, end, (4, 1), some)

    def _pack_a(self, f: Function, source: Value, target: Value, height: Value, depth: Value) -> None:
        """Blocks of rows, each (inner, row of the block)."""
        down, along = self.a_strides

        def rows(i: Value, count: int) -> None:
            def step(k: Value, _: list[Value]) -> None:
                for r in range(count):
                    offset = f.add(f.mul(f.add(i, r), down), f.mul(k, along))
                    x = f.load(self.scalar, f.address(source, offset, self.scalar))
                    place = f.add(f.binary("mul", i, depth), f.add(f.mul(k, count), r))
                    f.store(x, f.address(target, place, self.scalar))

            f.loop(integer(0), depth, 1, step)

        row_blocks(f, integer(0), height, self.heights, rows)

    def _pack_b(self, f: Function, source: Value, target: Value, depth: Value, masks: Sequence[Value | None]) -> None:
        """Rows of the panel's vectors."""
        down, along = self.b_strides
        width = len(masks) * self.lanes

        def row(k: Value, _: list[Value]) -> None:
            for n, mask in enumerate(masks):
                x = f.load(self.type, f.address(source, f.add(f.mul(k, down), n * self.lanes), self.scalar), mask)
                f.store(x, f.address(target, f.add(f.mul(k, width), n * self.lanes), self.scalar))

        def square(k: Value, used: Value | None) -> None:
            """As many columns as there are lanes, transposed; `used` numbers of each."""
            mask = None if used is None else f.first_lanes(self.lanes, used)
            for n, columns in enumerate(masks):
                count = self.lanes if columns is None else columns.text.count("i1 1")
                vectors = [
                    f.load(self.type, f.address(source, f.add(k, f.mul(along, n * self.lanes + j)), self.scalar), mask)
                    if j < count
                    else number(self.type, 0.0)
                    for j in range(self.lanes)
                ]
                for j, vector in enumerate(transposed(f, vectors)):
                    f.store(vector, f.address(target, f.add(f.mul(f.add(k, j), width), n * self.lanes), self.scalar))

        if along.text == "1":
            f.loop(integer(0), depth, 1, row)
            return
        whole = f.binary("and", depth, integer(-self.lanes))
        f.loop(integer(0), whole, self.lanes, lambda k, _: square(k, None))
        rest = f.binary("sub", depth, whole)
        # The block's rows behind the last are written too: there is room, and nobody reads them.
        f.when(f.compare("sgt", rest, integer(0)), lambda: square(whole, rest))

    def _multiply(
        self,
        f: Function,
        out: Value,
        fresh: Value | None,
        a: Value,
        b: Value,
        height: Value,
        depth: Value,
        masks: Sequence[Value | None],
    ) -> None:
        """Add a packed block of a times a packed panel of b to the result, or begin with it.

        Without `fresh`, a and b are not packed, and the result begins with their product.
        """
        width, packed = len(masks), fresh is not None
        down = integer(width * self.lanes) if packed else self.b_strides[0]

        def rows(i: Value, count: int) -> None:
            own = f.binary("mul", i, depth) if packed else f.mul(i, self.a_strides[0])
            own = f.address(a, own, self.scalar)

            def place(r: int, n: int) -> Value:
                offset = f.add(f.mul(f.add(i, r), self.out_strides[0]), n * self.lanes)
                return f.address(out, offset, self.scalar)

            def multiply(k: Value, sums: Sequence[Value]) -> list[Value]:
                vectors = [
                    f.load(
                        self.type,
                        f.address(b, f.add(f.mul(k, down), n * self.lanes), self.scalar),
                        None if packed else mask,
                    )
                    for n, mask in enumerate(masks)
                ]
                results = []
                for r in range(count):
                    if packed:
                        offset = f.add(f.mul(k, count), r)
                    else:
                        offset = f.add(f.mul(k, self.a_strides[1]), f.mul(self.a_strides[0], r))
                    x = f.splat(f.load(self.scalar, f.address(own, offset, self.scalar)), self.lanes)
                    results += [f.fma(x, v, sums[r * width + n]) for n, v in enumerate(vectors)]
                return results

            def several(k: Value, sums: Sequence[Value]) -> list[Value]:
                for u in range(4):
                    sums = multiply(f.add(k, u), sums)
                return list(sums)

            zero = [number(self.type, 0.0)] * (count * width)
            whole = f.binary("and", depth, integer(-4))
            sums = f.loop(integer(0), whole, 4, several, zero)[1]
            sums = f.loop(whole, depth, 1, multiply, sums)[1]

            def store(fresh: bool) -> None:
                for r in range(count):
                    for n, mask in enumerate(masks):
                        result = sums[r * width + n]
                        if not fresh:
                            result = f.binary("fadd", f.load(self.type, place(r, n), mask), result)
                        f.store(result, place(r, n), mask)

            if fresh is None:
                store(True)
            else:
                f.when(fresh, lambda: store(True), lambda: store(False))

        row_blocks(f, integer(0), height, self.heights, rows)


def _least(f: Function, a: Value, b: Value) -> Value:
    return f.select(f.compare("slt", a, b), a, b)
