"""Large products: the whole batch together, blocked for the caches. Each thread computes a share of the columns.

The scheme follows Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008). Blocks of both operands
are packed in the order in which they are read. A block of b serves all rows; a block of some rows of a serves all panels of b.
The registers hold a few rows of the result times the vectors of a panel. Results are read and written once for each block
along the summed axis, so these blocks are long. The maps that follow are applied after the last block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chains.backends.native.kernels.block_shapes import block_shapes
from chains.backends.native.kernels.elementwise import Frame, horizontal
from chains.backends.native.kernels.products import FusedProduct, ResultBlock, as_rows, store_block
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import along_vectors, row_blocks
from chains.backends.native.llvm.shuffles import transposed
from chains.lowering.tiling import is_large
from chains.program.operations import Operation
from chains.program.view import Batch, View

MIN_VERY_LARGE_ELEMENTS = 1 << 20  # weights worth one pass for the whole batch, although images gain by tiles
MAX_SCALAR_LINES = 4  # with no more lines, packing goes number by number, with little code

Masks = Sequence[Value | None]  # the masks of a panel's vectors


def is_very_large(operation: Operation) -> bool:
    """Whether the operation is a large product whose weights exceed the second-level caches."""
    return is_large(operation) and any(
        view.sample_size >= MIN_VERY_LARGE_ELEMENTS for view in operation.views if not view.batched
    )


def workspace(lanes: int, itemsize: int, registers: int) -> int:
    """Elements that each thread needs for its packed blocks."""
    shape = block_shapes(registers).gemm
    return shape.outer(itemsize) * shape.inner + lanes + shape.inner * shape.across


def lower_large(frame: Frame, product: FusedProduct, space: Value, thread: Value, threads: Value) -> None:
    """This thread's share of a product and of the maps on it; `space` takes its packed blocks."""
    out, a, b = product.out, product.a, product.b
    rows, inner = (frame.extent(extent) for extent in a.shape)
    views = [out, a, b, *(view for each in product.maps for view in each.views)]
    bases = {(view.buffer, view.offset): frame.base(view) for view in views}
    # Strides other than 1 are arguments, so that products of different sizes may share code.
    strides = [integer(stride) for view in (a, b) for stride in view.strides if stride != 1]
    arguments = [space, rows, inner, thread, threads, *strides, *bases.values()]

    def write(f: Function, arguments: list[Value]) -> None:
        space, rows, inner, thread, threads, *others = arguments
        own = dict(zip(bases, others[len(strides) :], strict=True))
        inside = replace(frame, f=f, base=lambda view: own[view.buffer, view.offset])
        _Product(inside, product, space, rows, inner, thread, threads, others[: len(strides)]).write()

    name = frame.f.module.outline("gemm", [argument.type for argument in arguments], write)
    frame.f.invoke(name, None, *arguments)


@dataclass
class _Product:
    frame: Frame
    product: FusedProduct
    space: Value
    rows: Value
    inner: Value
    thread: Value
    threads: Value
    strides: Sequence[Value]  # the strides of a and b other than 1

    def __post_init__(self) -> None:
        out, a, b = self.product.out, self.product.a, self.product.b
        self.f, self.lanes = self.frame.f, self.frame.lanes
        wide = self.frame.lanes * self.product.out.dtype.itemsize > 16
        self.shape = self.frame.shapes.gemm if wide else self.frame.shapes.gemm_128
        self.vectors, self.height = self.shape.vectors, self.shape.rows
        self.scalar = real_type(out.dtype)
        self.type = Type(self.scalar.name, self.lanes)
        self.out, self.a, self.b = map(self.frame.base, (out, a, b))
        self.columns = int(out.shape[1])  # type: ignore[arg-type]
        self.width = self.vectors * self.lanes  # of a panel
        inner = a.shape[1]
        self.ragged = isinstance(inner, Batch) or inner % self.lanes > 0  # whether blocks of the summed axis may have a rest
        outer = self.shape.outer(self.scalar.size)
        self.outer = outer // self.height * self.height
        self.packed_b = self._at(self.space, integer(outer * self.shape.inner + self.lanes))
        strides = iter(self.strides)
        self.a_strides, self.b_strides = (
            [integer(1) if stride == 1 else next(strides) for stride in view.strides] for view in (a, b)
        )

    def write(self) -> None:
        f = self.f
        panels = integer(-(-self.columns // self.width))
        begin, end = (
            f.binary("sdiv", f.binary("mul", panels, share), self.threads) for share in (self.thread, f.add(self.thread, 1))
        )
        contiguous = self.product.b.strides[1] == 1 or self.product.a.strides[1] == self.product.b.strides[0] == 1
        if isinstance(self.product.a.shape[0], Batch) and contiguous:
            thin = f.compare("sle", self.rows, integer(self.shape.thin_rows))
            f.when(thin, lambda: self._thin(begin, end), lambda: self._thick(begin, end))
        else:
            self._thick(begin, end)

    def _at(self, base: Value, index: Value) -> Value:
        return self.f.address(base, index, self.scalar)

    def _panels(self, begin: Value, end: Value, run: Callable[[Value, Masks], None]) -> None:
        """Call `run` for the panels from `begin` to `end`."""
        f = self.f
        whole, rest = integer(self.columns // self.width), self.columns % self.width
        f.loop(begin, self.f.least(end, whole), 1, lambda panel, _: run(panel, [None] * self.vectors))
        if rest:
            masks = [f.lane_mask(self.lanes, rest - n) for n in range(0, rest, self.lanes)]
            f.when(f.compare("sgt", end, whole), lambda: run(whole, masks))

    # Many rows

    def _thick(self, begin: Value, end: Value) -> None:
        f = self.f

        def columns(j: Value, _: list[Value]) -> None:
            last = f.least(f.add(j, self.shape.across // self.width), end)
            f.loop(integer(0), self.inner, self.shape.inner, lambda k, _: self._block(j, last, k))

        f.loop(begin, end, self.shape.across // self.width, columns)

    def _block(self, begin: Value, end: Value, k: Value) -> None:
        """All rows of the panels from `begin` to `end`, for one block of the summed axis."""
        f = self.f
        depth = f.least(f.binary("sub", self.inner, k), integer(self.shape.inner))

        def packed(panel: Value) -> Value:
            return self._at(self.packed_b, f.mul(f.mul(f.binary("sub", panel, begin), self.width), depth))

        def pack(panel: Value, masks: Masks) -> None:
            along, across = self.b_strides
            source = self._at(self.b, f.add(f.mul(k, along), f.mul(f.mul(panel, self.width), across)))
            used = self.width if masks == [None] * self.vectors else self.columns % self.width
            self._pack(source, packed(panel), used, len(masks) * self.lanes, depth, across, along)

        def rows(i: Value, _: list[Value]) -> None:
            height = f.least(f.binary("sub", self.rows, i), integer(self.outer))
            self._pack_a(i, k, height, depth)

            def multiply(panel: Value, masks: Masks) -> None:
                def rows(r: Value, count: int) -> None:
                    block = ResultBlock(f.add(i, r), count, f.mul(panel, self.width), masks, self.lanes)
                    self._multiply(block, k, depth, self._at(self.space, f.mul(r, depth)), packed(panel))

                row_blocks(f, integer(0), height, self.shape.heights, rows)

            self._panels(begin, end, multiply)

        self._panels(begin, end, pack)
        f.loop(integer(0), self.rows, self.outer, rows)

    def _pack_a(self, i: Value, k: Value, height: Value, depth: Value) -> None:
        """Blocks of rows, each (inner, row of the block)."""
        f, (across, along) = self.f, self.a_strides

        def rows(r: Value, count: int) -> None:
            source = self._at(self.a, f.add(f.mul(f.add(i, r), across), f.mul(k, along)))
            self._pack(source, self._at(self.space, f.mul(r, depth)), count, count, depth, across, along)

        row_blocks(f, integer(0), height, self.shape.heights, rows)

    def _pack(self, source: Value, target: Value, used: int, width: int, depth: Value, across: Value, along: Value) -> None:
        """Copy `used` lines of `depth` numbers to `depth` rows of `width` numbers.

        Stores of whole vectors reach beyond a row: the next row overwrites the excess, and the last row has room after it.
        """
        f = self.f
        pieces = [(n, min(self.lanes, used - n)) for n in range(0, used, self.lanes)]

        def vector(k: Value, line: int, mask: Value | None) -> Value:
            return f.load(self.type, self._at(source, f.add(f.mul(k, along), f.mul(across, line))), mask)

        def keep(vector: Value, k: Value, n: int) -> None:
            f.store(vector, self._at(target, f.add(f.mul(k, width), n)))

        def row(k: Value, _: list[Value]) -> None:
            for n, count in pieces:
                keep(vector(k, n, f.lane_mask(self.lanes, count)), k, n)

        def square(k: Value, used: Value | None) -> None:
            """Pack as many rows as a vector has lanes, transposed; only `used` of them exist."""
            mask = None if used is None else f.first_lanes(self.lanes, used)
            zero = number(self.type, 0.0)
            columns = [
                transposed(f, [vector(k, n + line, mask) if line < count else zero for line in range(self.lanes)])
                for n, count in pieces
            ]
            for j, row in enumerate(zip(*columns, strict=True)):
                for (n, _), numbers in zip(pieces, row, strict=True):
                    keep(numbers, f.add(k, j), n)

        def by_number(k: Value, _: list[Value]) -> None:
            for line in range(used):
                x = f.load(self.scalar, self._at(source, f.add(f.mul(k, along), f.mul(across, line))))
                f.store(x, self._at(target, f.add(f.mul(k, width), line)))

        if across.text == "1":
            f.loop(integer(0), depth, 1, row)
        elif along.text == "1" and used > MAX_SCALAR_LINES:
            whole = f.binary("and", depth, integer(-self.lanes))
            f.loop(integer(0), whole, self.lanes, lambda k, _: square(k, None))
            if self.ragged:
                rest = f.binary("sub", depth, whole)
                f.when(f.compare("sgt", rest, integer(0)), lambda: square(whole, rest))
        else:
            f.loop(integer(0), depth, 1, by_number)

    def _multiply(self, block: ResultBlock, k: Value, depth: Value, a: Value, b: Value) -> None:
        """Packed rows of a times a packed panel of b; both begin with element `k` of the summed axis."""
        f, width = self.f, len(block.masks) * self.lanes
        first, last = f.compare("eq", k, integer(0)), f.compare("sge", f.add(k, self.shape.inner), self.inner)
        self._fetch(block, first, last)

        def multiply(k: Value, sums: list[Value]) -> list[Value]:
            vectors = [self._at(b, f.add(f.mul(k, width), n * self.lanes)) for n in range(len(block.masks))]
            numbers = [self._at(a, f.add(f.mul(k, block.height), n)) for n in range(block.height)]
            return self._added(sums, [f.load(self.scalar, x) for x in numbers], [f.load(self.type, x) for x in vectors])

        sums = f.loop(integer(0), depth, 1, multiply, [number(self.type, 0.0)] * block.size)[1]

        def added() -> list[Value]:
            before = [f.load(self.type, *place) for place in self._places(self.product.out, block)]
            return [f.binary("fadd", *pair) for pair in zip(before, sums, strict=True)]

        sums = added() if self.product.accumulate else f.choice(first, lambda: sums, added)

        def store(product: FusedProduct) -> None:
            store_block(self.frame, product, block, sums)

        product = replace(self.product, accumulate=False)  # earlier contents have been added
        if product.maps:
            plain = replace(product, maps=(), transient=False)
            f.when(last, lambda: store(product), lambda: store(plain))
        else:
            store(product)

    def _added(self, sums: Sequence[Value], numbers: Sequence[Value], vectors: Sequence[Value]) -> list[Value]:
        """The sums with the products of numbers of a and vectors of b."""
        products = [(self.f.splat(x, self.lanes), vector) for x in numbers for vector in vectors]
        return [self.f.fma(x, vector, total) for (x, vector), total in zip(products, sums, strict=True)]

    def _fetch(self, block: ResultBlock, first: Value, last: Value) -> None:
        """Prefetch the data that is read and written after the sums."""
        f, out = self.f, self.product.out
        views = [view for each in self.product.maps for view in each.views if view.batched or view.shape == out.shape]
        others = [view for view in dict.fromkeys(map(as_rows, views)) if view != out]

        def fetch(views: Sequence[View]) -> None:
            for place, _ in (each for view in views for each in self._places(view, block)):
                f.prefetch(place, to_write=True)

        if others:
            f.when(last, lambda: fetch(others))
        if self.product.transient:
            f.when(first, lambda: None, lambda: fetch([out]))
        else:
            fetch([out])

    def _places(self, view: View, block: ResultBlock) -> Iterator[tuple[Value, Value | None]]:
        """The addresses of a block's vectors in a matrix, with their masks."""
        for n in range(block.height):
            row = self.f.mul(self.f.add(block.row, n), view.strides[0])
            for c, mask in enumerate(block.masks):
                offset = self.f.add(row, self.f.add(block.column, c * self.lanes))
                yield self._at(self.frame.base(view), offset), mask

    # Few rows: nothing is packed

    def _thin(self, begin: Value, end: Value) -> None:
        f = self.f
        if self.product.b.strides[1] != 1:
            last = f.least(f.mul(end, self.width), integer(self.columns))
            self._dots(f.mul(begin, self.width), last)
            return

        def columns(panel: Value, masks: Masks) -> None:
            def rows(i: Value, count: int) -> None:
                self._multiply_as_it_is(ResultBlock(i, count, f.mul(panel, self.width), masks, self.lanes))

            row_blocks(f, integer(0), self.rows, self.shape.heights, rows)

        self._panels(begin, end, columns)

    def _multiply_as_it_is(self, block: ResultBlock) -> None:
        f, (across, along), (along_b, _) = self.f, self.a_strides, self.b_strides
        rows = [self._at(self.a, f.mul(f.add(block.row, n), across)) for n in range(block.height)]

        def multiply(k: Value, sums: list[Value]) -> list[Value]:
            row = self._at(self.b, f.add(f.mul(k, along_b), block.column))
            vectors = [f.load(self.type, self._at(row, integer(n * self.lanes)), mask) for n, mask in enumerate(block.masks)]
            return self._added(sums, [f.load(self.scalar, self._at(x, f.mul(k, along))) for x in rows], vectors)

        sums = f.loop(integer(0), self.inner, 1, multiply, [number(self.type, 0.0)] * block.size)[1]
        store_block(self.frame, self.product, block, sums)

    def _dots(self, begin: Value, end: Value) -> None:
        """A product with the transpose of b: each result is the dot product of two contiguous runs."""
        f = self.f
        depth = int(self.product.a.shape[1])  # type: ignore[arg-type]
        sizes = (self.shape.dots, 1)

        def block(i: Value, height: int, n: Value, width: int) -> None:
            def multiply(k: Value, sums: Sequence[Value], mask: Value | None) -> list[Value]:
                def vector(base: Value, line: Value, stride: Value) -> Value:
                    return f.load(self.type, self._at(base, f.add(f.mul(line, stride), k)), mask)

                left = [vector(self.a, f.add(i, r), self.a_strides[0]) for r in range(height)]
                right = [vector(self.b, f.add(n, c), self.b_strides[1]) for c in range(width)]
                return [f.fma(x, y, sums[r * width + c]) for r, x in enumerate(left) for c, y in enumerate(right)]

            zero = [number(self.type, 0.0)] * (height * width)
            results = [horizontal(f, each) for each in along_vectors(f, depth, self.lanes, multiply, zero)]
            store_block(self.frame, self.product, ResultBlock(i, height, n, [None] * width, 1), results)

        def some(n: Value, width: int) -> None:
            row_blocks(f, integer(0), self.rows, sizes, lambda i, height: block(i, height, n, width))

        row_blocks(f, begin, end, sizes, some)
