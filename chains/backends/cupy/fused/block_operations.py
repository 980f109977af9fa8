"""Operations by one block of threads, on a tile of samples or on arrays without samples.

In matrix products, each thread has a few rows and columns of the result in registers. The distance between a thread's rows is
the number of threads along the rows, so neighbouring threads read neighbouring numbers. If an operand allows it, four float32
or two float64 numbers are read in one instruction. For few results with long sums, several threads share a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chains.backends.cupy.fused.block import TERMS_PER_THREAD, THREADS, Block, Repetition, Stored, Unit, whole
from chains.backends.cupy.kernels.indexed import NUMBERS_PER_ROUND, round_lines
from chains.backends.cupy.kernels.products import prepared
from chains.backends.cupy.source.axes import Space, advances, count, count_text, extent_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Pointers
from chains.backends.cupy.source.maps import ELEMENTWISE, Run, run_at, run_lines, staged
from chains.backends.cupy.source.reduction import join, start, step_in_memory
from chains.lowering.axes import aligned_strides
from chains.lowering.c_language import sum_text
from chains.program.loop import Loop
from chains.program.operations import Fill, MatMul, Operation, Random, Reduce
from chains.program.view import Extent, View

WARP_SCHEDULERS = 4  # of a multiprocessor, each of which starts an instruction of one warp at a time
LATENCY_CYCLES = 24  # cycles that a step of a thread takes at least, roughly


class Cell:
    """An element of a matrix, by the variables ``row`` and ``column``."""

    def index_of(self, view: View) -> str:
        return sum_text(view.offset, [*zip(("row", "column"), aligned_strides(view, 2), strict=True), *advances(view)])


@dataclass(frozen=True)
class Side:
    """An operand: `count` rows or columns of it for each thread, with the steps in memory along them and along the sum.

    `read` says how: "inner" (several terms of the sum together), "outer" (several rows or columns) or "single".
    """

    view: View
    extent: Extent
    count: int
    along: int
    inner: int
    read: str

    def number(self, first: str, m: str, tiles: str) -> str:
        """The thread's row or column `m`, as C; `tiles` threads lie along it, of which this is number `first`."""
        return f"{first} * {self.count} + {m}" if self.read == "outer" else f"{first} + {m} * {tiles}"

    def numbers(self, name: str, first: str, tiles: str) -> list[str]:
        """Statements for the rows or columns that a thread reads, those beyond the last being the last."""
        extent = extent_text(self.extent)
        return [
            f"Index {name}_at[{self.count}];",
            "#pragma unroll",
            f"for (int m = 0; m < {self.count}; ++m) {{",
            f"    const Index at = {self.number(first, 'm', tiles)};",
            f"    {name}_at[m] = at < {extent} ? at : {extent} - 1;",
            "}",
        ]

    def load(self, name: str, pointer: str, type_: str, step: int) -> list[str]:
        """Statements that read `step` terms of the sum, from number k on, into `name`[row or column][term]."""

        def place(number: str, term: str) -> str:
            return sum_text(self.view.offset, [(number, self.along), (term, self.inner), *advances(self.view)])

        vector, parts = f"{type_}{self.width}", "xyzw"[: self.width]
        if self.read == "inner":
            taken = "".join(f" {name}[m][{k}] = q.{part};" for k, part in enumerate(parts))
            address = f"({pointer} + {place(f'{name}_at[m]', 'k')})"
            loop, body = f"for (int m = 0; m < {self.count}; ++m)", f"const {vector} q = *(const {vector}*){address};{taken}"
        elif self.read == "outer":
            taken = "".join(f" {name}[{k}][u] = q.{part};" for k, part in enumerate(parts))
            address = f"({pointer} + {place(f'{name}_at[0]', '(k + u)')})"
            loop, body = f"for (int u = 0; u < {step}; ++u)", f"const {vector} q = *(const {vector}*){address};{taken}"
        else:
            loop = f"for (int m = 0; m < {self.count}; ++m) for (int u = 0; u < {step}; ++u)"
            body = f"{name}[m][u] = {pointer}[{place(f'{name}_at[m]', '(k + u)')}];"
        return [f"{type_} {name}[{self.count}][{step}];", "#pragma unroll", f"{loop} {{ {body} }}"]

    @property
    def width(self) -> int:
        return vector_width(self.view)


def vector_width(view: View) -> int:
    """How many numbers are 16 bytes."""
    return 16 // view.dtype.itemsize


def product(block: Block, operation: MatMul, run: Run, stored: Stored) -> None:
    """The unit for a product and the elementwise `run` on its result; two units if threads share results."""
    (out,), (a, b) = operation.outs, operation.ins
    (rows, columns), inner = out.shape, a.shape[1]
    sizes = (block.length(rows), block.length(columns), block.length(inner))
    tall, wide, parts = blocking(*sizes)
    left = _side(block, a, rows, inner, tall)
    right = _side(block, b.T, columns, inner, wide)
    step = left.width if "inner" in (left.read, right.read) else 1
    type_, pointers = ctype(out.dtype), block.pointers()
    from_a, from_b = pointers(a.buffer), pointers(b.buffer)
    m, n, k = (extent_text(extent) for extent in (rows, columns, inner))
    down, across = (f"(({text} + {each - 1}) / {each})" if each > 1 else text for text, each in ((m, tall), (n, wide)))
    terms = [f"const Index begin = 0, end = {k};"]
    if parts > 1:
        terms = [
            f"const Index part = i / (across * down), each = ({k} + {parts * step - 1}) / {parts * step} * {step};",
            f"const Index begin = part * each, end = begin + each < {k} ? begin + each : {k};",
        ]
    body = [
        f"const Index down = {down}, across = {across}, c = i % across, r = i / across % down;",
        *terms,
        *left.numbers("x", "r", "down"),
        *right.numbers("y", "c", "across"),
        f"{type_} sums[{tall}][{wide}];",
        "#pragma unroll",
        f"for (int m = 0; m < {tall}; ++m) for (int n = 0; n < {wide}; ++n) sums[m][n] = 0;",
        *(["#pragma unroll 4"] if step == 1 else []),
        f"for (Index k = begin; k < end; k += {step}) {{",
        *(f"    {line}" for line in left.load("x", from_a, type_, step)),
        *(f"    {line}" for line in right.load("y", from_b, type_, step)),
        "    #pragma unroll",
        f"    for (int u = 0; u < {step}; ++u) for (int m = 0; m < {tall}; ++m) for (int n = 0; n < {wide}; ++n)",
        "        sums[m][n] += x[m][u] * y[n][u];",
        "}",
    ]
    views = [out, a, b, *run.outs, *run.ins]
    if parts == 1:
        before, ending = block.ending(operation, run, stored, pointers, Cell())
        ending = [f"const {type_} total = sums[m][n];", *ending]
    else:
        work = block.workspace(out.dtype, parts * sizes[0] * sizes[1])
        before, ending = [], [f"{pointers(work, write=True)}[(part * {m} + row) * {n} + column] = sums[m][n];"]
        views = [a, b, whole(work)]
    row, column = left.number("r", "m", "down"), right.number("c", "n", "across")
    body += [
        "#pragma unroll",
        f"for (int m = 0; m < {tall}; ++m) for (int n = 0; n < {wide}; ++n) {{",
        f"    const Index row = {row}, column = {column};",
        f"    if (row < {m} && column < {n}) {{",
        *(f"        {line}" for line in ending),
        "    }",
        "}",
    ]
    tiles = -(-sizes[0] // tall) * -(-sizes[1] // wide)
    count = f"{down} * {across}" + (f" * {parts}" if parts > 1 else "")
    block.add(Unit(count, tiles * parts, body, before), pointers, views)
    if parts > 1:
        before, _ = block.hoisted(run, block.pointers(), out)

        def finish(pointers: Pointers) -> list[str]:
            _, ending = block.ending(operation, run, stored, pointers, Cell())
            return [f"const Index row = o / {n}, column = o % {n};", *ending]

        block.combine("sum", work, parts, f"{m} * {n}", sizes[0] * sizes[1], [out, *run.outs, *run.ins], finish, before)


def _side(block: Block, view: View, extent: Extent, inner: Extent, count: int) -> Side:
    """The operand with (rows or columns, terms of the sum) as its axes, and how it can be read."""
    along, terms = aligned_strides(view, 2)
    width, read = vector_width(view), "single"
    if block.is_shared(view.buffer) and not any(place % width for place in (view.offset, *view.loop_strides)):
        if terms == 1 and isinstance(inner, int) and inner % width == 0 and along % width == 0:
            read = "inner"
        elif along == 1 and count == width and isinstance(extent, int) and extent % width == 0 and terms % width == 0:
            read = "outer"
    return Side(view, extent, count, along, terms, read)


def blocking(rows: int, columns: int, inner: int) -> tuple[int, int, int]:
    """Rows and columns of the result for each thread, and threads that share a result, with the fewest estimated cycles.

    An estimate: in each step of the sum a thread reads its rows and columns, and multiplies them.
    """

    def cycles(choice: tuple[int, int, int]) -> float:
        tall, wide, parts = choice
        threads = -(-rows // tall) * -(-columns // wide) * parts
        rounds, warps = -(-threads // THREADS), -(-min(threads, THREADS) // 32)
        step = max(LATENCY_CYCLES, (tall * wide + 2 * (tall + wide)) * -(-warps // WARP_SCHEDULERS))
        adding = 0 if parts == 1 else 4 * LATENCY_CYCLES + parts * LATENCY_CYCLES / 4 * -(-rows * columns // THREADS)
        return rounds * (-(-inner // parts) * step + 4 * LATENCY_CYCLES) + adding

    sizes = (1, 2, 4)
    most = max(1, min(TERMS_PER_THREAD, inner // TERMS_PER_THREAD))
    splits = [parts for parts in (1, 2, 4, 8, 16) if parts <= most]
    choices = [(tall, wide, parts) for tall in sizes for wide in sizes for parts in splits]
    return min(choices, key=cycles)


def ready(operation: Operation, like: Callable[[View], View]) -> list[Operation]:
    """The operation as operations of a block: no product overwrites its operands. `like` makes scratch shaped like a view."""
    parts = [operation]
    if isinstance(operation, MatMul) and operation.outs[0].buffer in [view.buffer for view in operation.ins]:
        parts = prepared(operation, like)
    return [each for part in parts for each in staged(part, like)]


def take(block: Block, operations: Sequence[Operation], stored: Callable[[Sequence[Operation]], Stored]) -> None:
    """Make units of the operations; `stored` says which results later operations need."""
    at = 0
    while at < len(operations):
        operation, stop = operations[at], at + 1
        if isinstance(operation, MatMul | Reduce):
            while stop < len(operations) and follows(block, operation, operations[at + 1 : stop], operations[stop]):
                stop += 1
            along = Run(list(operations[at + 1 : stop]))
            if isinstance(operation, MatMul):
                product(block, operation, along, stored(operations[at:stop]))
            else:
                reduce(block, operation, Run(), stored(operations[at:stop]), along)
        elif isinstance(operation, Loop):
            loop(block, operation)
        elif type(operation) in KERNELS:
            KERNELS[type(operation)](block, operation, stored([operation]))
        else:
            run, after, stop = run_at(operations, at)
            if after is not None:
                reduce(block, after, run, stored(operations[at:stop]), Run())
            else:
                elementwise(block, run, stored(operations[at:stop]))
        at = stop


def loop(block: Block, operation: Loop) -> None:
    """The body's units, once a step. All results of a step are stored, since others may read them."""
    inner = Block(block.tile, block.shared, block.names, block.work)
    take(inner, operation.body, lambda operations: lambda buffer: True)
    block.units.append(Repetition.of(inner.units, operation.steps, operation.depth))


def elementwise(block: Block, run: Run, stored: Stored) -> None:
    pointers, space = block.pointers(), Space(run.shape, [*run.outs, *run.ins])
    before, known = block.hoisted(run, pointers)
    lines, values = run_lines(run, space, pointers, lambda buffer: False, known)
    results = []
    for out in dict.fromkeys(run.outs):
        if stored(out.buffer):
            place = f"{pointers(out.buffer, write=True)}[{space.index_of(out)}]"
            results.append((ctype(out.dtype), values[out], place))
    body, most = [*space.kept_lines, *lines], count(space.kept, block.tile)
    unit = Unit(count_text(space.kept), most, body, before, results, space.kept_lines)
    block.add(unit, pointers, [*run.outs, *run.ins])


def reduce(block: Block, operation: Reduce, run: Run, stored: Stored, along: Run) -> None:
    """A thread for each result; for few results of many terms, several threads that each add a part.

    The elementwise `run` computes the terms, unless it is empty; `along` continues with the results.
    """
    (out,), (a,) = operation.outs, operation.ins
    missing = a.ndim - out.ndim
    reduced = {k for k in range(a.ndim) if k < missing or out.shape[k - missing] != a.shape[k]}
    after = [out, *along.outs, *along.ins]
    views = [*run.outs, *run.ins, a, *after]
    space, pointers = Space(a.shape, views, reduced, kept="o", inner="r"), block.pointers()
    before: list[str] = []
    if run.operations:
        before, known = block.hoisted(run, pointers)
        lines, known = run_lines(run, space, pointers, stored, known)
        value = known[a]
    else:
        lines, value = [], f"{pointers(a.buffer)}[{space.index_of(a)}]"
    results, terms = count(space.kept, block.tile), count(space.inner, block.tile)
    parts = min(max(1, THREADS // max(1, results)), -(-terms // TERMS_PER_THREAD))
    parts = min(parts, TERMS_PER_THREAD) if parts <= 4 * TERMS_PER_THREAD else parts  # one more barrier is not worth it
    kind, type_, many = operation.kind, ctype(out.dtype), count_text(space.kept)
    adding = [
        f"{type_} total = {start(kind, type_)};",
        f"for (Index r = part; r < {count_text(space.inner)}; r += {parts}) {{",
        *(f"    {line}" for line in (*space.inner_lines, *lines)),
        f"    total = {join(kind, type_, 'total', value)};",
        "}",
    ]
    if parts == 1:
        hoisted, ending = block.ending(operation, along, stored, pointers, space)
        body = ["const Index o = i, part = 0;", *space.kept_lines, *adding, *ending]
        block.add(Unit(many, results, body, [*before, *hoisted]), pointers, views)
        return
    work = block.workspace(out.dtype, parts * results)
    in_rows = not space.kept or step_in_memory(space.inner, space, a) < step_in_memory(space.kept, space, a)
    numbers = f"o = i / {parts}, part = i % {parts}" if in_rows else f"o = i % ({many}), part = i / ({many})"
    store = f"{pointers(work, write=True)}[part * ({many}) + o] = total;"
    body = [f"const Index {numbers};", *space.kept_lines, *adding, store]
    block.add(Unit(f"({many}) * {parts}", results * parts, body, before), pointers, [*views, whole(work)])
    hoisted, _ = block.hoisted(along, block.pointers(), out)

    def finish(pointers: Pointers) -> list[str]:
        return [*space.kept_lines, *block.ending(operation, along, stored, pointers, space)[1]]

    block.combine(kind, work, parts, many, results, after, finish, hoisted)


def random(block: Block, operation: Random) -> None:
    """Random numbers of the batch's elements; those of the tile may begin within a round of the generator."""
    (out,), (key,) = operation.outs, operation.ins
    space, pointers = Space(out.shape, [out], kept="e"), block.pointers()
    state, into = pointers(key.buffer), pointers(out.buffer, write=True)
    before = [
        f"const int64 begin = {f'(int64)first * {out.sample_size}' if out.batched else 0};",
        f"const Index all = {count_text(space.kept)};",
    ]
    element = f"(Index)(round * {NUMBERS_PER_ROUND} + k - begin)"
    round_of_numbers = round_lines(operation, space, (state, into), "(uint64)(round + 1)", element)
    body = [f"const int64 round = begin / {NUMBERS_PER_ROUND} + i;", *round_of_numbers]
    rounds = f"(Index)((begin + all + {NUMBERS_PER_ROUND - 1}) / {NUMBERS_PER_ROUND} - begin / {NUMBERS_PER_ROUND})"
    block.add(Unit(rounds, count(space.kept, block.tile) // NUMBERS_PER_ROUND + 2, body, before), pointers, [out, key])


def follows(block: Block, first: Operation, before: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation can be fused with the `first`, a product or a sum, element by element, after those `before` it.

    A sum over the samples is not known before all tiles are done.
    """
    (out,) = first.outs
    if not operation.elementwise or (first.sums_over_batch and not block.whole):
        return False
    if isinstance(first, Reduce) and not first.sums_over_batch:
        return False
    if any(view.dtype != out.dtype for view in operation.outs):
        return False
    # A whole row and column of the operands is read for each element.
    if any(view.buffer is other.buffer for view in operation.outs for other in first.ins):
        return False
    return Run([Fill((out,), (), 0.0), *before]).takes(operation)


KERNELS: dict[type[Operation], Callable[[Block, Any, Stored], None]] = {
    Random: lambda block, operation, stored: random(block, operation)
}
SUPPORTED = {MatMul, Reduce, *KERNELS, *ELEMENTWISE}


def supported(operation: Operation) -> bool:
    """Whether a block can do the operation."""
    if isinstance(operation, Loop):  # random numbers would need the step, sums over the batch a beginning
        return not operation.totals and all(type(each) in SUPPORTED - {Random} for each in operation.body)
    return type(operation) in SUPPORTED
