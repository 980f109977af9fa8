"""Matrix products as register-blocked kernels, sizes known when they are compiled.

A kernel keeps a block of the result in registers: some rows, and vectors of columns. Each step of the inner
loop loads the vectors of one row of b once and multiplies them by one number of a for each row.

Three situations, told apart by where the batch is:

- rows are samples (forward, input gradient): the weights are b, a block of samples at a time; maps that follow on the
  same elements are done in the registers (`Epilogue`);
- the inner axis is the batch (weight gradient): a block of the result sums over all samples of the tile;
- no batch at all (a penalty's sum of squares).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.elementwise import Frame, evaluate, horizontal
from chains.backends.native.emit import Type, Value, integer, number, real_type
from chains.operations import Map, MatMul
from chains.view import Batch, View

UNROLLED = 96  # multiply-adds in one straight run of code, at most


@dataclass(frozen=True)
class Kernel:
    """A product ``out = a @ b`` with what is done to its elements before they are stored."""

    out: View
    a: View
    b: View
    accumulate: bool = False
    maps: tuple[Map, ...] = ()
    padded: bool = False  # whether b's rows are padded to whole vectors (`pack`)

    @property
    def sums_over_batch(self) -> bool:
        return isinstance(self.a.shape[1], Batch)


def kernel_of(operation: MatMul, maps: Sequence[Map]) -> Kernel:
    (out,), (a, b) = operation.outs, operation.ins
    if isinstance(out.shape[1], Batch):
        raise UnsupportedOperationError(
            f"backend 'native' wants samples in rows, not in columns: `{operation}` ({operation.label})"
        )
    return Kernel(out, a, b, operation.accumulate, tuple(maps))


def fusible(operation: MatMul, maps: Sequence[Map], candidate: Map, lanes: int) -> bool:
    """Whether `candidate`, after `maps`, can be done to the product's elements while they are in registers."""
    out = operation.outs[0]
    if not isinstance(out.shape[0], Batch) or out.strides[1] != 1:
        return False
    if {view.buffer for view in candidate.outs} & {view.buffer for view in operation.ins}:
        return False  # other blocks of the product still read them
    columns = int(out.shape[1])  # type: ignore[arg-type]
    registers = [out, *(view for fused in maps for view in fused.outs)]
    broadcast = False
    for view in candidate.ins:
        if any(_same_rows(view, register) for register in registers):
            continue
        if any(view.buffer is register.buffer for register in registers):
            return False
        if view.batched:
            if view.ndim < 2 or view.shape[-1] != columns or not _same_rows_shape(view, out) or view.strides[-1] != 1:
                return False
        elif not (
            view.sample_size == 1 or (view.shape[-1] == columns and view.sample_size == columns and view.strides[-1] == 1)
        ):
            return False
        else:
            broadcast = broadcast or view.sample_size > 1
    if not all(_same_rows_shape(view, out) and view.strides[-1] == 1 for view in candidate.outs):
        return False
    touches = any(_same_rows(view, register) for view in candidate.views for register in registers)
    share = columns / (-(-columns // lanes) * lanes)
    return touches and (broadcast or share >= 0.5)


def _as_rows(view: View) -> View:
    return view.rows if view.ndim != 2 else view


def _same_rows_shape(view: View, out: View) -> bool:
    if not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return _as_rows(view).shape == out.shape


def _same_rows(view: View, other: View) -> bool:
    """Whether two views are the same elements, seen as matrices."""
    if view.buffer is not other.buffer or not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return _as_rows(view) == _as_rows(other)


def needs_packing(kernel: Kernel) -> bool:
    """Whether b must be copied to rows of whole vectors before the product."""
    return isinstance(kernel.out.shape[0], Batch) and not kernel.b.batched and kernel.b.strides[1] != 1


def lower_matmul(frame: Frame, kernel: Kernel) -> None:
    if kernel.sums_over_batch:
        _sum_over_samples(frame, kernel)
    else:
        _rows(frame, kernel)


def _rows(frame: Frame, kernel: Kernel) -> None:
    """The result a block of rows at a time."""
    f, out, a = frame.f, kernel.out, kernel.a
    columns, inner = int(out.shape[1]), int(a.shape[1])  # type: ignore[arg-type]
    scalar = real_type(out.dtype)
    if columns == 1 and a.strides[1] == 1 and kernel.b.strides[0] == 1 and inner >= frame.lanes:
        _dots(frame, kernel)
        return
    lanes = frame.lanes if out.strides[1] == 1 and (kernel.b.strides[1] == 1 or kernel.padded) else 1
    vectors = -(-columns // lanes)
    registers = frame.registers
    panel = min(vectors, 4 if registers >= 32 else 2)
    height = max(1, min(12, (registers - 2 - panel) // panel)) if panel > 1 else min(12, registers - 4)
    height = {1: height, 2: min(height, 12), 3: min(height, 8), 4: min(height, 6)}[panel]
    rows = frame.extent(out.shape[0])

    def run_panel(column: Value, masks: list[Value | None]) -> None:
        position: Value = integer(0)
        for block in dict.fromkeys((height, max(1, height // 3), 1)):

            def step(i: Value, _: list[Value], block: int = block) -> list[Value]:
                _block(frame, kernel, i, block, column, masks, lanes, inner, scalar)
                return []

            position, _ = f.loop(position, f.add(rows, 1 - block), block, step)

    _panels(frame, columns, lanes, panel, run_panel)


def _panels(frame: Frame, columns: int, lanes: int, panel: int, run: Callable[[Value, list[Value | None]], None]) -> None:
    """Call `run` for panels of up to `panel` vectors of columns, with the first column and a mask for each vector."""
    f, width = frame.f, lanes * panel
    whole = columns // width * width
    if whole > width:

        def step(column: Value, _: list[Value]) -> list[Value]:
            run(column, [None] * panel)
            return []

        f.loop(integer(0), integer(whole), width, step)
    elif whole:
        run(integer(0), [None] * panel)
    if columns > whole:
        run(integer(whole), [f.lane_mask(lanes, columns - k) for k in range(whole, columns, lanes)])


def _block(
    frame: Frame,
    kernel: Kernel,
    row: Value,
    block: int,
    column: Value,
    masks: list[Value | None],
    lanes: int,
    inner: int,
    scalar: Type,
) -> None:
    """`block` rows from `row` on, of a vector of columns for each mask, from `column` on."""
    f, a, b = frame.f, kernel.a, kernel.b
    type = Type(scalar.name, lanes)
    a_rows = [f.address(frame.base(a), f.mul(f.add(row, r), a.strides[0]), scalar) for r in range(block)]
    b_base = f.address(frame.base(b), f.mul(column, b.strides[1]), scalar)

    def multiply(k: Value, sums: list[Value]) -> list[Value]:
        b_row = f.address(b_base, f.mul(k, b.strides[0]), scalar)
        weights = [
            f.load(type, f.address(b_row, integer(c * lanes * b.strides[1]), scalar), None if kernel.padded else mask)
            for c, mask in enumerate(masks)
        ]
        results = []
        for r in range(block):
            x = f.splat(f.load(scalar, f.address(a_rows[r], f.mul(k, a.strides[1]), scalar)), lanes)
            results += [f.fma(x, w, sums[r * len(weights) + c]) for c, w in enumerate(weights)]
        return results

    width = block * len(masks)
    # With few sums in flight the additions would wait for one another: several independent sets run side by side.
    sets = max(1, min(4, inner, 8 // width))
    start = [number(type, 0.0)] * (width * sets)
    per_step = max(1, min(inner, UNROLLED // (2 * width)))
    per_step = max(sets, per_step // sets * sets)

    def steps(k: Value, sums: list[Value], count: int) -> list[Value]:
        for u in range(count):
            s = u % sets
            sums[s * width : (s + 1) * width] = multiply(f.add(k, u), sums[s * width : (s + 1) * width])
        return sums

    whole = inner // per_step * per_step
    if whole == per_step:
        sums = steps(integer(0), start, per_step)
    else:
        sums = f.loop(integer(0), integer(whole), per_step, lambda k, carried: steps(k, list(carried), per_step), start)[1]
    sums = steps(integer(whole), list(sums), inner - whole)
    results = sums[:width]
    for s in range(1, sets):
        results = [f.binary("fadd", x, y) for x, y in zip(results, sums[s * width :], strict=False)]
    _finish(frame, kernel, row, results, column, masks, lanes, scalar)


def _finish(
    frame: Frame,
    kernel: Kernel,
    row: Value,
    results: list[Value],
    column: Value,
    masks: list[Value | None],
    lanes: int,
    scalar: Type,
) -> None:
    """Apply the maps to a block of results, row after row, and store what they give."""
    f, out = frame.f, kernel.out
    type = Type(scalar.name, lanes)
    shared: dict[tuple[int, int], Value] = {}  # operands that are the same for every row, by identity and vector

    def element(view: View, r: int, c: int) -> Value:
        offset = f.add(f.mul(f.add(row, r), view.strides[0]), f.mul(f.add(column, c * lanes), view.strides[1]))
        return f.address(frame.base(view), offset, scalar)

    def operand(view: View, r: int, c: int, values: dict[View, Value]) -> Value:
        if view.batched:
            matrix = _as_rows(view)
            return values[matrix] if matrix in values else f.load(type, element(matrix, r, c), masks[c])
        key = (id(view), c)
        if key not in shared:
            if view.sample_size == 1:
                shared[key] = f.splat(f.load(scalar, frame.base(view)), lanes)
            else:
                pointer = f.address(frame.base(view), f.add(column, c * lanes), scalar)
                shared[key] = f.load(type, pointer, masks[c])
        return shared[key]

    for r in range(len(results) // len(masks)):
        for c, mask in enumerate(masks):
            result = results[r * len(masks) + c]
            if kernel.accumulate:
                result = f.binary("fadd", result, f.load(type, element(out, r, c), mask))
            values: dict[View, Value] = {out: result}
            for fused in kernel.maps:
                ins = [operand(view, r, c, values) for view in fused.ins]
                for view, value in zip(fused.outs, evaluate(f, fused.formula, ins, type), strict=True):
                    values[_as_rows(view)] = value
            for view, value in values.items():
                f.store(value, element(view, r, c), mask)


def _dots(frame: Frame, kernel: Kernel) -> None:
    """A single column: each element the sum of a product of two contiguous runs."""
    f, out, a, b = frame.f, kernel.out, kernel.a, kernel.b
    scalar, lanes = real_type(out.dtype), frame.lanes
    type = Type(scalar.name, lanes)
    inner = int(a.shape[1])  # type: ignore[arg-type]
    whole = inner // lanes * lanes

    def step(i: Value, _: list[Value]) -> list[Value]:
        a_row = f.address(frame.base(a), f.mul(i, a.strides[0]), scalar)

        def multiply(k: Value, total: Value, mask: Value | None = None) -> Value:
            x = f.load(type, f.address(a_row, k, scalar), mask)
            return f.fma(x, f.load(type, f.address(frame.base(b), k, scalar), mask), total)

        (total,) = f.loop(integer(0), integer(whole), lanes, lambda k, s: [multiply(k, s[0])], [number(type, 0.0)])[1]
        if inner > whole:
            total = multiply(integer(whole), total, f.lane_mask(lanes, inner - whole))
        result = horizontal(f, total)
        _finish(frame, kernel, i, [result], integer(0), [None], 1, scalar)
        return []

    f.loop(integer(0), frame.extent(out.shape[0]), 1, step)


def _sum_over_samples(frame: Frame, kernel: Kernel) -> None:
    """Blocks of the result, each a sum over the samples of the tile."""
    rows, columns = (int(extent) for extent in kernel.out.shape)  # type: ignore[arg-type]
    lanes = frame.lanes
    by_columns = rows * -(-columns // lanes)
    by_rows = columns * -(-rows // lanes)
    # The transposed product stores its results number by number, which pays only where it saves much.
    if kernel.a.strides[0] == 1 and (2 * by_rows < by_columns or kernel.b.strides[1] != 1):
        kernel = replace(kernel, out=kernel.out.T, a=kernel.b.T, b=kernel.a.T)
        rows, columns = columns, rows
    f = frame.f
    scalar = real_type(kernel.out.dtype)
    if kernel.b.strides[1] != 1:
        lanes = 1
    vectors = -(-columns // lanes)
    panel = min(vectors, 4 if frame.registers >= 32 else 2)
    height = min(rows, {1: 12, 2: 12 if frame.registers >= 32 else 5, 3: 8, 4: 6}[panel])

    def run_panel(column: Value, masks: list[Value | None]) -> None:
        whole = rows // height * height

        def step(i: Value, _: list[Value]) -> list[Value]:
            _sum_block(frame, kernel, i, height, column, masks, lanes, scalar)
            return []

        f.loop(integer(0), integer(whole), height, step)
        if rows > whole:
            _sum_block(frame, kernel, integer(whole), rows - whole, column, masks, lanes, scalar)

    _panels(frame, columns, lanes, panel, run_panel)


def _sum_block(
    frame: Frame, kernel: Kernel, row: Value, block: int, column: Value, masks: list[Value | None], lanes: int, scalar: Type
) -> None:
    f, out, a, b = frame.f, kernel.out, kernel.a, kernel.b
    type = Type(scalar.name, lanes)
    a_base = f.address(frame.base(a), f.mul(row, a.strides[0]), scalar)
    b_base = f.address(frame.base(b), f.mul(column, b.strides[1]), scalar)

    def step(s: Value, sums: list[Value]) -> list[Value]:
        b_row = f.address(b_base, f.mul(s, b.strides[0]), scalar)
        a_column = f.address(a_base, f.mul(s, a.strides[1]), scalar)
        vectors = [
            f.load(type, f.address(b_row, integer(c * lanes * b.strides[1]), scalar), mask) for c, mask in enumerate(masks)
        ]
        results = []
        for r in range(block):
            x = f.splat(f.load(scalar, f.address(a_column, integer(r * a.strides[0]), scalar)), lanes)
            results += [f.fma(x, v, sums[r * len(masks) + c]) for c, v in enumerate(vectors)]
        return results

    samples = frame.extent(a.shape[1])
    sums = f.loop(integer(0), samples, 1, step, [number(type, 0.0)] * (block * len(masks)))[1]
    for r in range(block):
        for c, mask in enumerate(masks):
            total = sums[r * len(masks) + c]
            offset = f.add(f.mul(f.add(row, r), out.strides[0]), f.mul(f.add(column, c * lanes), out.strides[1]))
            pointer = f.address(frame.base(out), offset, scalar)
            if out.strides[1] == 1:
                _add(frame, kernel, total, pointer, mask)
                continue
            used = lanes if mask is None else mask.text.count("i1 1")
            for lane in range(used):
                x = f.assign(scalar, f"extractelement {total}, i64 {lane}") if lanes > 1 else total
                _add(frame, kernel, x, f.address(pointer, integer(lane * out.strides[1]), scalar), None)


def _add(frame: Frame, kernel: Kernel, value: Value, pointer: Value, mask: Value | None) -> None:
    """Store a sum over the samples of this tile, or add it to that of the tiles before."""
    f = frame.f
    before = f.load(value.type, pointer, mask)
    total = f.binary("fadd", before, value)
    if frame.first is not None and not kernel.accumulate:
        total = f.select(frame.first, value, total)
    f.store(total, pointer, mask)
