"""Kernels for random numbers, and for rows chosen by numbers: gather and scatter-add."""

from __future__ import annotations

import math

from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.commands import HELPERS, THREADS, Command, Pointers, Source, blocks, each_element, indented
from chains.program.operations import Gather, Random, ScatterAdd
from chains.program.view import View

PHILOX = """\
DEVICE void philox(uint64 seed, uint64 c0, uint64 c1, uint64 c2, uint64* words)
{
    uint64 k0 = seed, k1 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        const uint64 h0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), l0 = 0xD2E7470EE14C6C93ull * c0;
        const uint64 h1 = __umul64hi(0xCA5A826395121157ull, c2), l1 = 0xCA5A826395121157ull * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B97F4A7C15ull; k1 += 0xBB67AE8584CAA73Bull;
    }
    words[0] = c0; words[1] = c1; words[2] = c2; words[3] = c3;
}
"""
HELPERS.append(PHILOX)
NUMBERS_PER_ROUND = 8  # random numbers that one round of the generator makes


def random(source: Source, operation: Random) -> list[Command]:
    """A thread makes the eight numbers of one counter; some may belong to samples before those of the operation."""
    (out,), (key, *first) = operation.outs, operation.ins
    space, pointers = Space(out.shape, [out], kept="e"), Pointers()
    state, into = pointers(key.buffer), pointers(out.buffer, write=True)
    before = f"{pointers(first[0].buffer)}[{first[0].offset}] * {out.sample_size}ull" if first else "0"
    element = f"i * {NUMBERS_PER_ROUND} + k - (Index)(before % {NUMBERS_PER_ROUND})"
    body = [
        f"const uint64 before = {before}, counter = before / {NUMBERS_PER_ROUND} + i;",
        f"const Index all = {count_text(space.kept)};",
        *round_lines(operation, space, (state, into), "counter + 1", element),
    ]
    body = each_element(f"({count_text(space.kept)} + {2 * NUMBERS_PER_ROUND - 2}) / {NUMBERS_PER_ROUND}", body)
    grid = lambda batch: (blocks(count(space.kept, batch) // NUMBERS_PER_ROUND + 2), 1)  # noqa: E731
    return [pointers.launch(source, "random", body, grid, label=operation.label)]


def round_lines(operation: Random, space: Space, names: tuple[str, str], counter: str, element: str) -> list[str]:
    """Statements that store the numbers of one counter. Number k is that of the `element`, which is left out if not inside.

    `names` are the pointers to the key and to the result.
    """
    (out,), (key, *_), (state, into) = operation.outs, operation.ins, names
    step = f"{state}[{key.offset + key.strides[0]}]"
    return [
        "uint64 words[4];",
        f"philox({state}[{key.offset}], {counter}, {operation.draw}ull, {step}, words);",
        f"for (int k = 0; k < {NUMBERS_PER_ROUND}; ++k) {{",
        f"    const Index e = {element};",
        "    if (e < 0 || e >= all) continue;",
        "    const unsigned int bits = (unsigned int)(words[k / 2] >> (k % 2 * 32));",
        *indented(space.kept_lines),
        f"    {into}[{space.index_of(out)}] = (bits >> 8) * (1.0f / 16777216.0f);",
        "}",
    ]


def gather(source: Source, operation: Gather) -> list[Command]:
    """A thread copies an element of a chosen row; numbers out of range take the nearest row."""
    (out,), (table, index) = operation.outs, operation.ins
    more = out.ndim - index.ndim
    wide = View(index.buffer, (*index.shape, *(1,) * more), (*index.strides, *(0,) * more), index.offset)
    row = View(table.buffer, table.shape[1:], table.strides[1:], table.offset)
    space, pointers = Space(out.shape, [out, wide, row]), Pointers()
    into, rows, numbers = pointers(out.buffer, write=True), pointers(table.buffer), pointers(index.buffer)
    body = [
        *space.kept_lines,
        f"int64 row = (int64){numbers}[{space.index_of(wide)}];",
        f"row = row < 0 ? 0 : row >= {_rows(table)} ? {_rows(table)} - 1 : row;",
        f"{into}[{space.index_of(out)}] = {rows}[row * {table.strides[0]} + {space.index_of(row)}];",
    ]
    grid = lambda batch: (blocks(count(space.kept, batch)), 1)  # noqa: E731
    return [pointers.launch(source, "gather", each_element(count_text(space.kept), body), grid, label=operation.label)]


ROW_GROUPS = 128  # groups of blocks, among which rows are divided by their number: an estimate, not measured on a GPU
EACH = 4  # numbers that a thread looks at, at a time


def scatter_add(source: Source, operation: ScatterAdd) -> list[Command]:
    """Each row has one block, which adds its entries in order: the same sums every time, without atomics.

    The threads of a block look at `EACH` numbers each, and list in shared memory, in order, those of the block's rows. Then
    each thread goes through that list for its column.
    """
    (out,), (index, rows) = operation.outs, operation.ins
    one = View(rows.buffer, rows.shape[index.ndim :], rows.strides[index.ndim :], 0)
    target = View(out.buffer, out.shape[1:], out.strides[1:], out.offset)
    each = View(rows.buffer, rows.shape[: index.ndim], rows.strides[: index.ndim], rows.offset)
    columns, numbers, pointers = Space(one.shape, [one, target]), Space(index.shape, [index, each], kept="n"), Pointers()
    into, which, what = pointers(out.buffer, write=True), pointers(index.buffer), pointers(rows.buffer)
    pointers(out.buffer)
    adding = [
        *columns.kept_lines,
        f"for (int k = 0; k < listed; ++k) {into}[of_row[k] + {columns.index_of(target)}]",
        f"    += {what}[from[k] + {columns.index_of(one)}];",
    ]
    body = [
        f"SHARED Index of_row[{THREADS * EACH}], from[{THREADS * EACH}];",
        f"SHARED int ends[{THREADS}];",
        f"const Index all = {count_text(numbers.kept)};",
        f"for (Index first = 0; first < all; first += {THREADS * EACH}) {{",
        f"    Index rows[{EACH}], starts[{EACH}];",
        "    int mine = 0;",
        f"    for (int j = 0; j < {EACH}; ++j) {{",
        f"        const Index n = first + threadIdx.x * {EACH} + j;",
        "        rows[j] = -1;",
        "        if (n < all) {",
        *(f"            {line}" for line in numbers.kept_lines),
        f"            int64 row = (int64){which}[{numbers.index_of(index)}];",
        f"            row = row < 0 ? 0 : row >= {_rows(out)} ? {_rows(out)} - 1 : row;",
        f"            starts[j] = {numbers.index_of(each)};",
        "            if ((Index)row % (Index)gridDim.y == (Index)blockIdx.y) rows[j] = (Index)row;",
        "        }",
        "        mine += rows[j] >= 0;",
        "    }",
        "    ends[threadIdx.x] = mine;",
        "    __syncthreads();",
        f"    for (int step = 1; step < {THREADS}; step *= 2) {{",
        "        const int before = threadIdx.x >= step ? ends[threadIdx.x - step] : 0;",
        "        __syncthreads();",
        "        ends[threadIdx.x] += before;",
        "        __syncthreads();",
        "    }",
        "    int place = ends[threadIdx.x] - mine;",
        f"    for (int j = 0; j < {EACH}; ++j) {{",
        "        if (rows[j] < 0) continue;",
        f"        of_row[place] = rows[j] * {out.strides[0]};",
        "        from[place] = starts[j];",
        "        ++place;",
        "    }",
        "    __syncthreads();",
        f"    const int listed = ends[{THREADS - 1}];",
        *(f"    {line}" for line in each_element(count_text(columns.kept), adding)),
        "    __syncthreads();",
        "}",
    ]
    parts = min(ROW_GROUPS, math.prod(length for length in out.shape[:1] if isinstance(length, int)))

    def grid(batch: int) -> tuple[int, int]:
        return min(-(-count(columns.kept, batch) // THREADS), 1 << 16), parts

    return [pointers.launch(source, "scatter_add", body, grid, label=operation.label)]


def _rows(table: View) -> str:
    return str(table.shape[0])
