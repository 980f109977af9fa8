"""Operations as work of one block of threads, on a tile of samples or on arrays without samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chains.backends.cupy.fused.block import TERMS_PER_THREAD, THREADS, Block, Repetition, Unit, whole
from chains.backends.cupy.fused.block_products import Stored, product
from chains.backends.cupy.kernels.indexed import NUMBERS_PER_ROUND
from chains.backends.cupy.kernels.products import prepared
from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Pointers
from chains.backends.cupy.source.fusion import ELEMENTWISE, Run, run_at, run_lines, staged
from chains.backends.cupy.source.reduction import join, start, step_in_memory
from chains.program.loop import Loop
from chains.program.operations import Fill, MatMul, Operation, Random, Reduce
from chains.program.view import View


def ready(operation: Operation, like: Callable[[View], View]) -> list[Operation]:
    """The operation as those that a block can do: no product writes where it reads. `like` makes scratch shaped like a view."""
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
    """A thread for each result, or, where there are few results of many terms, several that add a part of it.

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
    """As everywhere, numbers of the batch's elements, of which the tile's may begin within a round of the generator."""
    (out,), (key,) = operation.outs, operation.ins
    space, pointers = Space(out.shape, [out], kept="e"), block.pointers()
    state, into = pointers(key.buffer), pointers(out.buffer, write=True)
    before = [
        f"const int64 begin = {f'(int64)first * {out.sample_size}' if out.batched else 0};",
        f"const Index all = {count_text(space.kept)};",
    ]
    body = [
        f"const int64 round = begin / {NUMBERS_PER_ROUND} + i;",
        "uint64 words[4];",
        f"philox({state}[{key.offset}], (uint64)(round + 1), {operation.draw}ull, "
        f"{state}[{key.offset + key.strides[0]}], words);",
        f"for (int k = 0; k < {NUMBERS_PER_ROUND}; ++k) {{",
        f"    const Index e = (Index)(round * {NUMBERS_PER_ROUND} + k - begin);",
        "    if (e < 0 || e >= all) continue;",
        "    const unsigned int bits = (unsigned int)(words[k / 2] >> (k % 2 * 32));",
        *(f"    {line}" for line in space.kept_lines),
        f"    {into}[{space.index_of(out)}] = (bits >> 8) * (1.0f / 16777216.0f);",
        "}",
    ]
    rounds = f"(Index)((begin + all + {NUMBERS_PER_ROUND - 1}) / {NUMBERS_PER_ROUND} - begin / {NUMBERS_PER_ROUND})"
    block.add(Unit(rounds, count(space.kept, block.tile) // NUMBERS_PER_ROUND + 2, body, before), pointers, [out, key])


def follows(block: Block, first: Operation, before: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation can go along with the `first`, a product or a sum, element by element, after those `before` it.

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
    Random: lambda block, operation, stored: random(block, operation),
}
SUPPORTED = {MatMul, Reduce, *KERNELS, *ELEMENTWISE}


def supported(operation: Operation) -> bool:
    """Whether a block can do the operation."""
    if isinstance(operation, Loop):  # random numbers would need the step, sums over the batch a beginning
        return not operation.totals and all(type(each) in SUPPORTED - {Random} for each in operation.body)
    return type(operation) in SUPPORTED
