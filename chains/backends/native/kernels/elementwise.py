"""Maps, reductions, copies, random numbers and sums over processes, as loops over vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chains.backends.native.kernels.block_shapes import BlockShapes, block_shapes
from chains.backends.native.llvm import vectormath
from chains.backends.native.llvm.emit import I64, PTR, Function, Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import accumulate, accumulators_for, panels
from chains.backends.native.llvm.shuffles import shuffled
from chains.expr import Formula
from chains.lowering.axes import Axis, loops_over
from chains.program.operations import AllReduce, Copy, Fill, Map, Random, Reduce
from chains.program.view import Batch, Buffer, Extent, View


@dataclass(frozen=True)
class RowPointers:
    """An input whose samples are found by pointers: its buffer, the list of pointers, and an offset in elements to each."""

    buffer: Buffer
    pointers: Value
    offset: Value = field(default_factory=lambda: integer(0))


@dataclass
class Frame:
    """The facts for a kernel about the function that it is written into: the places of views, and the samples."""

    f: Function
    lanes: int  # numbers of the program's type in a vector register
    registers: int  # number of vector registers
    base: Callable[[View], Value]  # the address of a view's first element, in the first sample
    count: Value  # number of samples
    start: Value  # the number of the first sample in the batch
    small_tiles: bool  # whether a tile has as many samples as a vector has lanes
    in_tile: Callable[[Buffer], bool]  # whether a buffer is in a tile's memory, with room for whole vectors of samples
    laned: frozenset[Buffer]  # the buffers with samples in lanes
    workspace_offset: int  # of the kernels' workspace in the memory of a tile, in bytes
    first: Value | None = None  # whether sums over samples begin with these samples (i1); None outside of tiles
    whole: Value | None = None  # whether these samples are the whole batch (i1)
    rows: RowPointers | None = None  # the input whose samples are found by pointers, if any
    steps: tuple[Value, ...] = ()  # the numbers of the current steps of the loops around, the outermost first
    prefetch: Value | None = None  # the address of `PREFETCH`, which says what to prefetch; None for nothing
    call_alike: Callable[..., None] | None = None  # `Outlines.call`: writes a call of the code that steps share

    @property
    def shapes(self) -> BlockShapes:
        """The blocks that kernels keep in registers."""
        return block_shapes(self.registers)

    @property
    def workspace(self) -> Value:
        """The address of the kernels' workspace, which follows the buffers of a tile."""
        return self.f.address(self.f.arguments[1], integer(self.workspace_offset), Type("i8"))

    def outlined(self, hint: str, pointers: list[Value], write: Callable[[Function, list[Value]], None]) -> None:
        """Call a function that `write` fills. Its arguments are `pointers`, the number of samples and whether sums begin."""
        begun = integer(0) if self.first is None else self.f.cast("zext", self.first, I64)
        arguments = [*pointers, self.count, begun]
        name = self.f.module.outline(hint, [argument.type for argument in arguments], write)
        self.f.invoke(name, None, *arguments)

    def begins(self, accumulate: bool, continued: bool) -> Value | None:
        """Whether a sum over samples begins with this tile (i1); None if this tile always adds to a present sum.

        Each thread's sum begins with its first tile. If the sum accumulates to earlier contents, the first thread adds to these
        contents, and the other threads begin new sums. A `continued` sum, which an earlier operation of the tile has begun,
        does not begin anew.
        """
        if self.first is None or continued:
            return None
        if not accumulate:
            return self.first
        return self.f.binary("and", self.first, self.f.compare("ne", self.start, integer(0)))

    def row(self, view: View, i: Value, stride: int) -> Value:
        """The address of row i or of column i of a matrix: of the axis that has this stride."""
        scalar = real_type(view.dtype)
        rows = self.rows
        if rows is not None and view.buffer is rows.buffer and stride == view.buffer.size:
            sample = self.f.load(PTR, self.f.address(rows.pointers, i, PTR))
            return self.f.address(sample, self.f.add(rows.offset, view.offset), scalar)
        return self.f.address(self.base(view), self.f.mul(i, stride), scalar)

    def extent(self, extent: Extent) -> Value:
        return self.f.mul(self.count, extent.per_sample) if isinstance(extent, Batch) else integer(extent)


def lower_map(frame: Frame, operation: Map) -> None:
    """outs = formula(ins)."""
    if all(view.ndim == 0 for view in operation.views):
        _scalar_map(frame, operation)
        return
    _map_elements(frame, operation)


def lower_shared_map(frame: Frame, operation: Map, begin: Value, count: Value) -> None:
    """A part of a map of long vectors: `count` elements from `begin` on."""
    f = frame.f

    def share(view: View) -> View:
        return replace(view, shape=(Batch(),), strides=(1,)) if view.sample_size > 1 else replace(view, shape=(), strides=())

    def base(view: View) -> Value:
        return f.address(frame.base(view), begin, real_type(view.dtype)) if view.ndim else frame.base(view)

    part = Map(tuple(map(share, operation.outs)), tuple(map(share, operation.ins)), operation.formula)
    _map_elements(replace(frame, base=base, count=count), part)


def _map_elements(frame: Frame, operation: Map) -> None:
    f, formula = frame.f, operation.formula
    views = operation.outs + operation.ins
    n_outs = len(operation.outs)
    in_place = any(view in operation.ins for view in operation.outs)

    def body(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
        ins = [values[k] if k in values else f.load(type, pointers[k], mask) for k in range(n_outs, len(views))]
        results = evaluate(f, formula, ins, type)
        # Otherwise LLVM stores a choice between an operand and another number with a mask, which is slow.
        return [f.intrinsic("arithmetic.fence", each) if in_place and mask is None else each for each in results]

    nest(frame, loops_over(operation.outs[0].shape, views), [frame.base(view) for view in views], views[0].dtype, n_outs, body)


# The body of a nest of loops. It gets pointers to the current elements, the values of operands that are constant along the
# innermost loop, or gathered (as vectors, by operand), the type to load, and the mask of the lanes in use. It returns the
# results.
NestBody = Callable[[list[Value], dict[int, Value], Type, Value | None], list[Value]]


def nest(frame: Frame, loops: list[Axis], pointers: list[Value], dtype: np.dtype, n_outs: int, body: NestBody) -> None:
    """Write all loops."""
    f = frame.f
    scalar = real_type(dtype)
    if not loops:
        loops = [Axis(1, (1,) * len(pointers))]
    inner = loops[-1]
    lanes = frame.lanes if all(stride in (0, 1) for stride in inner.strides) else 1
    type = Type(scalar.name, lanes)

    def run_inner(pointers: list[Value]) -> None:
        fixed = {k: f.splat(f.load(scalar, pointers[k]), lanes) for k in range(n_outs, len(pointers)) if inner.strides[k] == 0}
        length = frame.extent(inner.extent)

        def chunk(i: Value, mask: Value | None) -> None:
            at = _moved(f, inner, pointers, i, scalar)
            for result, target in zip(body(at, fixed, type, mask), at, strict=False):
                f.store(result, target, mask)

        if lanes == 1:
            f.each(length, lambda i: chunk(i, None))
            return
        if isinstance(inner.extent, Batch):
            whole = f.binary("and", length, integer(-lanes))
        else:
            whole = integer(inner.extent // lanes * lanes)
        if whole.text != "0":
            f.loop(integer(0), whole, lanes, lambda i, _: chunk(i, None))
        if isinstance(inner.extent, Batch):
            rest = f.binary("sub", length, whole)
            f.when(f.compare("sgt", rest, integer(0)), lambda: chunk(whole, f.first_lanes(lanes, rest)))
        elif inner.extent % lanes:
            chunk(whole, f.lane_mask(lanes, inner.extent % lanes))

    def run_rows(pointers: list[Value]) -> None:
        """Rows shorter than a vector: as many rows as a vector has lanes are as many vectors as a row has numbers.

        Where operands have gaps between rows, or one number for each row, vectors hold whole rows.
        """
        outer, size = loops[-2], int(inner.extent)  # type: ignore[arg-type]
        repeated = [k for k in range(n_outs, len(pointers)) if outer.strides[k] == 0]
        patterns = {k: _repeated(f, pointers[k], inner.strides[k], size, type) for k in repeated}
        rows = frame.extent(outer.extent)
        strides = list(zip(outer.strides, inner.strides, strict=True))
        apart = [k for k, each in enumerate(strides) if k not in patterns and each != (size, 1)]

        def vector(first: Value, j: int, mask: Value | None) -> None:
            start, row = f.add(f.mul(first, size), j * lanes), f.add(first, j * lanes // size)
            at = [
                p if k in patterns else f.address(p, f.mul(row, strides[k][0]) if k in apart else start, scalar)
                for k, p in enumerate(pointers)
            ]
            values = {k: pattern[j] for k, pattern in patterns.items()}
            values |= {k: _joined(f, at[k], strides[k], size, type) for k in apart if k >= n_outs}
            for k, result in enumerate(body(at, values, type, mask)):
                if k in apart:
                    _store_apart(f, result, at[k], strides[k][0], size)
                else:
                    f.store(result, at[k], mask)

        def block(first: Value, _: list[Value]) -> None:
            for j in range(size):
                vector(first, j, None)

        first, _ = f.loop(integer(0), f.add(rows, 1 - lanes), lanes, block)
        if apart:
            f.loop(first, rows, 1, lambda i, _: run_inner(_moved(f, outer, pointers, i, scalar)))
            return
        rest = f.mul(f.binary("sub", rows, first), size)
        for j in range(size):
            left = f.binary("sub", rest, integer(j * lanes))
            more = f.compare("sgt", left, integer(0))
            f.when(more, lambda j=j, left=left: vector(first, j, f.first_lanes(lanes, left)))  # type: ignore[misc]

    if _has_short_rows(loops, n_outs, lanes):
        step_through(frame, loops[:-2], pointers, scalar, run_rows)
    else:
        step_through(frame, loops[:-1], pointers, scalar, run_inner)


def _has_short_rows(loops: Sequence[Axis], n_outs: int, lanes: int) -> bool:
    """Whether rows are shorter than a vector, and each operand is contiguous over the rows or the same for all of them.

    Where vectors can hold whole rows, operands may also have gaps between rows, or one number for each row.
    """
    if len(loops) < 2 or not isinstance(size := loops[-1].extent, int) or not size < lanes:
        return False
    strides = list(zip(loops[-2].strides, loops[-1].strides, strict=True))
    if size > 1 and lanes % size == 0:
        return all(across == 1 and down for down, across in strides[:n_outs]) and all(across in (0, 1) for _, across in strides)
    return all(each == (size, 1) for each in strides[:n_outs]) and all(
        each in ((size, 1), (0, 0), (0, 1)) for each in strides[n_outs:]
    )


def _repeated(f: Function, pointer: Value, stride: int, size: int, type: Type) -> list[Value]:
    """The vectors of `size` numbers at a pointer, repeated; of one number, where the stride is 0."""
    scalar = Type(type.name)
    if not stride:
        return [f.splat(f.load(scalar, pointer), type.lanes)] * size
    numbers = [f.load(scalar, f.address(pointer, integer(k), scalar)) for k in range(size)]
    vectors = []
    for j in range(size):
        vector = Value("poison", type)
        for lane in range(type.lanes):
            each = numbers[(j * type.lanes + lane) % size]
            vector = f.assign(type, f"insertelement {vector}, {each}, i64 {lane}")
        vectors.append(vector)
    return vectors


def _joined(f: Function, start: Value, strides: tuple[int, int], size: int, type: Type) -> Value:
    """A vector of rows of `size` numbers, or of one number repeated `size` times, which begin some elements apart."""
    (down, across), count = strides, type.lanes // size
    scalar, numbers = Type(type.name), Type(type.name, count)
    places = [f.address(start, integer(k * down), scalar) for k in range(count)]
    if across:
        parts = [f.load(Type(type.name, size), place) for place in places]
        while len(parts) > 1:
            lanes = range(2 * parts[0].type.lanes)
            parts = [shuffled(f, a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]
    vector = f.load(numbers, start) if down == 1 else Value("poison", numbers)
    for k, place in enumerate(places if down != 1 else ()):
        vector = f.assign(numbers, f"insertelement {vector}, {f.load(scalar, place)}, i64 {k}")
    return shuffled(f, vector, None, [lane // size for lane in range(type.lanes)])


def _store_apart(f: Function, vector: Value, start: Value, down: int, size: int) -> None:
    """Store a vector of rows of `size` numbers, which begin `down` elements apart."""
    for k in range(vector.type.lanes // size):
        row = shuffled(f, vector, None, range(k * size, (k + 1) * size))
        f.store(row, f.address(start, integer(k * down), Type(vector.type.name)))


def step_through(
    frame: Frame, loops: Sequence[Axis], pointers: list[Value], scalar: Type, body: Callable[[list[Value]], None]
) -> None:
    """Call `body` in each step of these loops, with pointers to the current elements."""
    if not loops:
        body(pointers)
        return

    def step(i: Value) -> None:
        step_through(frame, loops[1:], _moved(frame.f, loops[0], pointers, i, scalar), scalar, body)

    frame.f.each(frame.extent(loops[0].extent), step)


def _moved(f: Function, axis: Axis, pointers: Sequence[Value], i: Value, scalar: Type) -> list[Value]:
    """The pointers to the elements of step `i` along an axis."""
    return [f.address(p, f.mul(i, s), scalar) if s else p for p, s in zip(pointers, axis.strides, strict=True)]


def _scalar_map(frame: Frame, operation: Map) -> None:
    """A formula of scalars, always in double precision."""
    f, double = frame.f, Type("double")
    ins = []
    for view in operation.ins:
        value = f.load(real_type(view.dtype), frame.base(view))
        ins.append(value if value.type == double else f.cast("fpext", value, double))
    for view, result in zip(operation.outs, evaluate(f, operation.formula, ins, double), strict=True):
        type = real_type(view.dtype)
        f.store(result if type == double else f.cast("fptrunc", result, type), frame.base(view))


_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_CONDITIONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


def evaluate(f: Function, formula: Formula, ins: Sequence[Value], type: Type) -> list[Value]:
    """The results of a formula on vectors (or scalars) of `type`."""
    values = list(ins)
    for instruction in formula.instructions:
        operands = [values[operand] for operand in instruction.operands]
        values.append(_instruction(f, instruction.operation, operands, instruction.value, type))
    return [_as_real(f, values[output], type) for output in formula.outputs]


def _instruction(f: Function, name: str, operands: list[Value], value: float, type: Type) -> Value:
    if name == "const":
        return number(type, value)
    if name == "where":
        return f.select(_as_condition(f, operands[0]), *(_as_real(f, operand, type) for operand in operands[1:]))
    if name == "not":
        true = Value("true" if type.lanes == 1 else "splat (i1 true)", type.of("i1"))
        return f.binary("xor", _as_condition(f, operands[0]), true)
    if name in ("and", "or"):
        return f.binary(name, *(_as_condition(f, operand) for operand in operands))
    operands = [_as_real(f, operand, type) for operand in operands]
    if name in _ARITHMETIC:
        return f.binary(_ARITHMETIC[name], *operands)
    if name in _CONDITIONS:
        return f.compare(_CONDITIONS[name], *operands)
    if name == "min":
        return vectormath.minimum(f, *operands)
    if name == "max":
        return vectormath.maximum(f, *operands)
    if name == "pow":
        return f.intrinsic("pow", *operands)
    return vectormath.FUNCTIONS[name](f, *operands)


def _as_real(f: Function, value: Value, type: Type) -> Value:
    return f.cast("uitofp", value, type) if value.type.name == "i1" else value


def _as_condition(f: Function, value: Value) -> Value:
    return value if value.type.name == "i1" else f.compare("une", value, number(value.type, 0.0))


def lower_copy(frame: Frame, operation: Copy) -> None:
    """out = the operand, broadcast; a scalar is converted."""
    f, (out, source) = frame.f, operation.views
    if out.dtype != source.dtype:
        _scalar_map(frame, Map((out,), (source,), Formula(("x",), (), (0,))))
        return

    def body(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
        return [values[1] if 1 in values else f.load(type, pointers[1], mask)]

    nest(frame, loops_over(out.shape, (out, source)), [frame.base(out), frame.base(source)], out.dtype, 1, body)


def lower_fill(frame: Frame, operation: Fill) -> None:
    """out = value."""
    (out,), value = operation.outs, operation.value

    def body(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
        return [number(type, value)]

    nest(frame, loops_over(out.shape, (out,)), [frame.base(out)], out.dtype, 1, body)


def lower_reduce(frame: Frame, operation: Reduce) -> None:
    """out = the sum, or the maximum, of `a` over the axes along which out does not vary."""
    f = frame.f
    (out,), (a,) = operation.outs, operation.ins
    maximum = operation.kind == "max"
    loops = loops_over(a.shape, (out, a))
    kept = [loop for loop in loops if loop.strides[0]]
    reduced = [loop for loop in loops if not loop.strides[0]]
    across = bool(reduced) and reduced[-1] is loops[-1] and reduced[-1].strides[1] == 1  # lanes run along a reduced axis
    along = bool(kept) and kept[-1] is loops[-1] and kept[-1].strides == (1, 1) and not isinstance(kept[-1].extent, Batch)
    lanes = frame.lanes if across or along else 1
    scalar = real_type(a.dtype)
    type = Type(scalar.name, lanes)
    neutral = float("-inf") if maximum else 0.0

    def combine(x: Value, y: Value) -> Value:
        return vectormath.maximum(f, x, y) if maximum else f.binary("fadd", x, y)

    def fold_lanes(loop: Axis, pointer: Value, total: Value) -> Value:
        """Combine a contiguous run into a vector."""

        def step(i: Value, sums: list[Value]) -> list[Value]:
            return [combine(sums[0], f.load(type, f.address(pointer, i, scalar)))]

        length = frame.extent(loop.extent)
        whole = f.binary("and", length, integer(-lanes))
        (total,) = f.loop(integer(0), whole, lanes, step, [total])[1]
        mask = f.first_lanes(lanes, f.binary("sub", length, whole))
        x = f.load(type, f.address(pointer, whole, scalar), mask)
        return combine(total, f.select(mask, x, number(type, neutral)))

    def folded(loops: list[Axis], pointer: Value, masks: list[Value | None], sums: list[Value]) -> list[Value]:
        """The elements along these loops, combined into `sums`: one sum for each vector of a kept row, or one in all."""
        if not loops:
            places = (f.address(pointer, integer(k * lanes), scalar) for k in range(len(masks)))
            parts = zip(sums, places, masks, strict=True)
            return [combine(total, f.load(type, place, mask)) for total, place, mask in parts]
        loop, rest = loops[0], loops[1:]
        stride = loop.strides[1]
        if across and not rest:
            return [fold_lanes(loop, pointer, sums[0])]

        def element(i: Value, carried: list[Value]) -> list[Value]:
            return folded(rest, f.address(pointer, f.mul(i, stride), scalar), masks, carried)

        accumulators = 1 if rest or not isinstance(loop.extent, Batch) else accumulators_for(len(sums))
        return accumulate(f, frame.extent(loop.extent), accumulators, element, sums, combine, neutral)

    def finish(out_pointer: Value, results: list[Value], masks: list[Value | None]) -> None:
        for k, (result, mask) in enumerate(zip(results, masks, strict=True)):
            target = f.address(out_pointer, integer(k * lanes), scalar) if along else out_pointer
            if across:
                result, mask = horizontal(f, result, maximum), None
            if operation.sums_over_batch and frame.first is not None:
                result = f.select(frame.first, result, combine(f.load(result.type, target, mask), result))
            f.store(result, target, mask)

    def reduce(pointers: list[Value]) -> None:
        if not along:
            results = folded(reduced, pointers[1], [None], [number(type, neutral)])
            finish(pointers[0], results, [None])
            return
        length = int(kept[-1].extent)  # type: ignore[arg-type]

        def block(begin: Value, masks: list[Value | None]) -> None:
            here = [f.address(pointer, begin, scalar) for pointer in pointers]
            finish(here[0], folded(reduced, here[1], masks, [number(type, neutral)] * len(masks)), masks)

        panels(frame.f, length, lanes, frame.shapes.reduce, block)

    step_through(frame, kept[:-1] if along else kept, [frame.base(out), frame.base(a)], scalar, reduce)


def horizontal(f: Function, x: Value, maximum: bool = False) -> Value:
    """The sum, or the maximum, of a vector's lanes. NaN in any lane gives NaN."""
    scalar = Type(x.type.name)
    if x.type.lanes == 1:
        return x
    if maximum:
        return f.call(f"llvm.vector.reduce.fmaximum.{x.type.mangled}", scalar, x)
    name = f"llvm.vector.reduce.fadd.{x.type.mangled}"
    declaration = f"declare {scalar} @{name}({scalar}, {x.type})"
    f.module.declare(name, declaration)
    return f.assign(scalar, f"call reassoc {scalar} @{name}({number(scalar, -0.0)}, {x})")


def lower_random(frame: Frame, operation: Random) -> None:
    """Uniform numbers from Philox4x64-10, in blocks of 8 elements; see `chains.program.operations.Random`."""
    f = frame.f
    (out,), (key, *first) = operation.outs, operation.ins
    key_pointer, pointer = frame.base(key), frame.base(out)
    seed, step = (f.load(I64, f.address(key_pointer, integer(k), I64)) for k in range(2))
    scalar = real_type(out.dtype)
    start, count = (frame.start, frame.count) if out.batched else (integer(0), integer(1))
    for position in first:
        start = f.add(start, f.load(I64, frame.base(position)))
    begin = f.mul(start, out.sample_size)
    length = f.mul(count, out.sample_size)
    end = f.add(begin, length)

    def block(i: Value, _: list[Value]) -> list[Value]:
        words = philox(f, [f.add(i, 1), integer(operation.draw), step, integer(0)], [seed, integer(0)])
        vector = Value("poison", Type("i64", 4))
        for k, word in enumerate(words):
            vector = f.assign(vector.type, f"insertelement {vector}, {word}, i64 {k}")
        bits = f.binary("lshr", f.cast("bitcast", vector, Type("i32", 8)), number(Type("i32", 8), 8))
        uniform = f.binary("fmul", f.cast("uitofp", bits, Type(scalar.name, 8)), number(Type(scalar.name, 8), 2.0**-24))
        offset = f.binary("sub", f.mul(i, 8), begin)  # of the block's first element in this view; may be negative
        iota = Value("<" + ", ".join(f"i64 {k}" for k in range(8)) + ">", Type("i64", 8))
        place = f.binary("add", iota, f.splat(offset, 8))
        inside = f.compare("ult", place, f.splat(length, 8))  # unsigned: negative positions are outside too
        f.store(uniform, f.address(pointer, offset, scalar), inside)
        return []

    f.loop(f.binary("lshr", begin, integer(3)), f.binary("lshr", f.add(end, 7), integer(3)), 1, block)


def philox(f: Function, counter: list[Value], key: list[Value]) -> list[Value]:
    """Four 64-bit words (Salmon et al. 2011)."""
    wide = Type("i128")
    for round in range(10):
        if round:
            increments = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
            key = [f.add(word, integer(step - (1 << 64))) for word, step in zip(key, increments, strict=True)]
        parts = []
        for multiplier, word in ((0xD2E7470EE14C6C93, counter[0]), (0xCA5A826395121157, counter[2])):
            product = f.binary("mul", f.cast("zext", word, wide), Value(str(multiplier), wide))
            high = f.cast("trunc", f.binary("lshr", product, Value("64", wide)), I64)
            parts.append((high, f.cast("trunc", product, I64)))
        (high0, low0), (high1, low1) = parts
        counter = [
            f.binary("xor", f.binary("xor", high1, counter[1]), key[0]),
            low1,
            f.binary("xor", f.binary("xor", high0, counter[3]), key[1]),
            low0,
        ]
    return counter


def lower_all_reduce(frame: Frame, operation: AllReduce) -> None:
    """``MPI_Allreduce(a, out, count, type, sum, communicator)``; without processes, a copy.

    Handles are 32 bits wide in MPICH and pointers in Open MPI: all are passed as 64 bits, in registers, of which a function
    reads as many as it needs. An error ends the process, as the communicator is set up.
    """
    f = frame.f
    (out,), (a, communicator) = operation.outs, operation.ins
    source, target, words = frame.base(a), frame.base(out), frame.base(communicator)
    address, in_place, *handles = (f.load(I64, f.address(words, integer(k), I64)) for k in range(5))
    alone = f.compare("eq", address, integer(0))
    here = out == a

    def copy() -> None:
        count = out.sample_size * out.dtype.itemsize
        f.call("llvm.memmove.p0.p0.i64", None, target, source, integer(count), Value("false", Type("i1")))

    def reduce() -> None:
        function = f.cast("inttoptr", address, PTR)
        given = f.cast("inttoptr", in_place, PTR) if here else source
        rest = ", ".join(map(str, handles))
        f.line(f"call i32 {function.text}({given}, {target}, i32 {out.sample_size}, {rest})")

    f.when(alone, (lambda: None) if here else copy, reduce)
