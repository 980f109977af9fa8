"""Matrix products by a block of threads: each thread has a few rows and columns of the result in registers.

A thread's rows are as far apart as there are threads along the rows, so that neighbouring threads read neighbouring numbers.
Where an operand allows it, four float32 or two float64 numbers are read in one instruction. Where the
results are few and the sums long, several threads share a result.
"""

from __future__ import annotations

from dataclasses import dataclass

from chains.backends.cupy.fused.block import TERMS_PER_THREAD, THREADS, Block, Stored, Unit, whole
from chains.backends.cupy.source.axes import advances, extent_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Pointers
from chains.backends.cupy.source.fusion import Run
from chains.lowering.axes import aligned_strides
from chains.lowering.c_language import sum_text
from chains.program.operations import MatMul
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

    `read` says how: "inner" (several terms of the sum at once), "outer" (several rows or columns) or "single".
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
    """The unit, or where threads share results the two, for a product and the elementwise `run` on its result."""
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
    """Rows and columns of the result for each thread, and threads that share a result: what should take the fewest cycles.

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
