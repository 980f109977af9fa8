"""The functions that run a compiled program.

`run` calls other threads for shared work. `member` is one thread's share of a whole run, for the threads of a team
(`runtime/workers.py`). Both take the address of a list of words: `ARGUMENTS`, then a `THREAD` for each thread. Each thread
adds its own sums. The first thread's sums are the results: the sums of the other threads are added to them in order. A thread
with very many tiles adds up blocks of tiles first, then the sums of blocks, so that rounding errors hardly grow with the
number of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from chains.backends.native.kernels.samples import prefetch_run
from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, Value, integer, real_type
from chains.backends.native.llvm.struct import ARGUMENTS, THREAD
from chains.backends.native.llvm.vectormath import maximum
from chains.backends.native.plan.execution_plan import ExecutionPlan, FusedUpdate, Segment, SumRun, Work
from chains.backends.native.plan.segments import MIN_SHARED_ELEMENTS, MIN_TEAM_ELEMENTS
from chains.program.view import Buffer

MAX_PREFETCHED_BYTES = 16 << 10  # of a vector that all threads have read and each changes a part of
MAX_PREFETCHED_ROW_BYTES = 1 << 10  # of a sample's numbers that threads exchange, for about ten samples

word = ARGUMENTS.load


def table_of(f: Function, words: Value, thread: Value | int) -> tuple[Value, Value]:
    """The addresses of a thread's table and scratch memory."""
    thread = thread if isinstance(thread, Value) else integer(thread)
    start = THREAD.element(f, thread, ARGUMENTS)
    return THREAD.load(f, words, "table", start), THREAD.load(f, words, "scratch", start)


def share(f: Function, length: int, lanes: int, thread: Value, threads: Value) -> tuple[Value, Value]:
    """The begin and end of a thread's part of a vector: whole registers, except for the last part."""

    def bound(part: Value) -> Value:
        blocks = f.binary("sdiv", f.binary("mul", integer(-(-length // lanes)), part), threads)
        elements = f.mul(blocks, lanes)
        return f.least(elements, integer(length))

    return bound(thread), bound(f.add(thread, 1))


def write_driver(module: Module, plan: ExecutionPlan) -> None:
    """Add `run`, `member` and the functions that they call to a module.

    The module has these functions for every segment, where they are needed: `prepare` for each packer, `early`, `list`, each
    `tile` or the `product`, each `once`, and `rest`, which stands for one `once` where products do a part of it.
    """
    for k, segment in enumerate(plan.segments):
        if segment.product:
            _write_product(module, k)
        else:
            _write_work(module, k, segment, plan.lists_rows(segment))
        if segment.sums:
            _write_add(module, k, segment.sums, plan)
            _write_reduce(module, k)
        for position, work in enumerate(segment.once):
            if work.length:
                _write_share(module, f"{k}_{position}")
    _write_run(module, plan)
    (_write_partitioned if plan.parts > 1 else _write_member)(module, plan)


def _do(f: Function, words: Value, name: str, *more: Value | str, thread: Value | int = 0) -> None:
    """Call a function on the whole batch, with a thread's memory."""
    f.invoke(name, None, *table_of(f, words, thread), "i64 0", word(f, words, "batch"), "i64 1", *more)


def _write_run(module: Module, plan: ExecutionPlan) -> None:
    """``run(words)``: the whole program. It calls other threads for each piece of shared work."""
    f = Function(module, "run", [(PTR, "words")])
    (words,) = f.arguments
    threads, sharing = word(f, words, "threads"), word(f, words, "sharing")

    def share(name: str, parts: Value, then: Callable[[], None] | None = None) -> None:
        """Call a function with `words` and a part, for all parts."""

        def together() -> None:
            f.invoke(word(f, words, "parallel"), None, word(f, words, "pool"), f"ptr @{name}", words, parts)
            if then is not None:
                then()

        alone = f.compare("eq", parts, integer(1))
        f.when(alone, lambda: f.invoke(name, None, words, "i64 0"), together)

    def reduce(k: int, sums: Sequence[SumRun]) -> None:
        if sum(run.stop - run.start for run in sums) < MIN_SHARED_ELEMENTS:
            f.invoke(f"reduce_{k}", None, words, "i64 0", "i64 1")
        else:
            share(f"reduce_part_{k}", threads)

    for k, segment in enumerate(plan.segments):
        if segment.early:
            _do(f, words, f"early_{k}")
        then = partial(reduce, k, segment.sums) if segment.sums else None
        share(f"work_{k}", threads if segment.product else sharing, then)
        for position, work in enumerate(segment.once):
            name, update = f"{k}_{position}", segment.fused_update
            once = partial(_do, f, words, f"once_{name}", "i64 0", "i64 1")
            if work.length >= MIN_SHARED_ELEMENTS:
                once = partial(share, f"share_{name}", threads)
            if update and position == update.work:
                f.when(_in_products(f, words, update), partial(_do, f, words, f"rest_{k}"), once)
            else:
                once()
    module.add(f)


def _in_products(f: Function, words: Value, update: FusedUpdate) -> Value:
    """Whether products do the optimiser's step in this run."""
    return f.compare("sle", word(f, words, "batch"), integer(1) if update.alone else word(f, words, "tile"))


def _barrier(f: Function, words: Value, thread: Value) -> None:
    """Wait for the other threads of a team."""
    pool, barrier, threads = ARGUMENTS.loads(f, words, "pool", "barrier", "threads")
    f.invoke(barrier, None, pool, thread, threads)


def _write_member(module: Module, plan: ExecutionPlan) -> None:
    """``member(words, thread)``: one thread's share of a run by a team. A barrier is before and after it."""
    f = Function(module, "member", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    first = f.compare("eq", thread, integer(0))

    barrier = partial(_barrier, f, words, thread)

    def share(name: str) -> None:
        f.invoke(name, None, words, thread)

    for k, segment in enumerate(plan.segments):
        if k > 0:
            barrier()
        if segment.early:
            f.when(first, partial(_do, f, words, f"early_{k}"))
        if segment.product:
            share(f"work_{k}")
        else:
            f.when(f.compare("slt", thread, word(f, words, "sharing")), partial(share, f"work_{k}"))
        barrier()
        if segment.sums:
            _prefetch_changed(f, words, thread, segment, plan)
            share(f"reduce_part_{k}")
        for position, work in enumerate(segment.once):
            if segment.barriers[position]:
                barrier()
            if segment.fused_update and position == segment.fused_update.work:
                fused = _in_products(f, words, segment.fused_update)
                rest = partial(f.when, first, partial(_do, f, words, f"rest_{k}"))
                f.when(fused, rest, partial(share, f"share_{k}_{position}"))
            elif work.length:
                share(f"share_{k}_{position}")
            else:
                f.when(first, partial(_do, f, words, f"once_{k}_{position}", "i64 0", "i64 1"))
    module.add(f)


def _prefetch_changed(f: Function, words: Value, thread: Value, segment: Segment, plan: ExecutionPlan) -> None:
    """Prefetch the elements that this thread will change, and that all threads have read: they arrive during the sums."""
    read = {view.buffer for step in segment.tiled_steps for operation in step.operations for view in operation.ins}
    table, _ = table_of(f, words, thread)
    for work in (work for work in segment.once if work.length):
        changed = dict.fromkeys(view for operation in work.operations for view in operation.outs if view.buffer in read)
        for view in changed:
            if view.buffer.nbytes <= MAX_PREFETCHED_BYTES:
                begin, end = share(f, work.length, plan.lanes, thread, word(f, words, "threads"))
                scalar = real_type(view.dtype)
                base = f.load(PTR, f.address(table, integer(plan.positions[view.buffer]), PTR))
                first = f.address(base, f.add(begin, view.offset), scalar)
                prefetch_run(f, first, f.mul(f.binary("sub", end, begin), scalar.size), to_write=True)


def _write_partitioned(module: Module, plan: ExecutionPlan) -> None:
    """`member` where products are partitioned: each thread does its parts, and the first thread all other work."""
    f = Function(module, "member", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    table, scratch = table_of(f, words, thread)
    batch = word(f, words, "batch")

    barrier = partial(_barrier, f, words, thread)

    def only(owner: int, name: str, *more: str) -> None:
        def call() -> None:
            f.invoke(name, None, table, scratch, "i64 0", batch, "i64 1", *more)

        f.when(f.compare("eq", thread, integer(owner)), call)

    def prefetch(owner: int, buffers: Iterable[Buffer], to_write: bool) -> None:
        """Let a thread prefetch buffers of the tile: no other thread has a copy of its data."""
        found = [buffer for buffer in buffers if plan.offset(buffer) is not None and buffer.nbytes <= MAX_PREFETCHED_ROW_BYTES]

        def ask() -> None:
            for buffer in found:
                first = f.address(scratch, integer(plan.offset(buffer) or 0), Type("i8"))
                prefetch_run(f, first, f.mul(batch, buffer.nbytes), to_write)

        if found:
            f.when(f.compare("eq", thread, integer(owner)), ask)

    for k, segment in enumerate(plan.segments):
        if k > 0:
            barrier()
        if segment.early:
            only(0, f"early_{k}")
        lists = plan.lists_rows(segment)
        if lists:
            f.invoke(f"list_{k}", None, table, scratch, "i64 0", batch, "i64 1")
        for packer in segment.packers:
            only(packer, f"prepare_{k}_{packer}")
        for owner in range(plan.parts):
            prefetch(owner, _exchanged(segment.tiled, segment.tiled, owner, to_others=True), to_write=True)
        for position, work in enumerate(segment.tiled):
            if segment.barriers[1 + position]:
                barrier()
                for owner in range(plan.parts):
                    coming = _exchanged(segment.tiled[:position], segment.tiled[position:], owner, to_others=False)
                    prefetch(owner, coming, to_write=False)
            only(work.thread, f"tile_{k}_{position}", "i64 1")
        for position, work in enumerate(segment.once):
            if segment.barriers[1 + len(segment.tiled) + position]:
                barrier()
            if segment.fused_update and position == segment.fused_update.work:
                only(0, f"rest_{k}")
            elif work.length:
                f.invoke(f"share_{k}_{position}", None, words, thread)
            else:
                only(0, f"once_{k}_{position}", "i64 0", "i64 1")
        if lists and not any(segment.barriers):
            barrier()  # the first thread may change which samples are read
    f.when(f.compare("ne", word(f, words, "gathers"), integer(0)), barrier)
    module.add(f)


def _exchanged(before: Sequence[Work], after: Sequence[Work], owner: int, to_others: bool) -> list[Buffer]:
    """The buffers that a thread writes `before` for works of others `after`, or gets from others."""
    writers = [work for work in before if (work.thread == owner) == to_others]
    readers = [work for work in after if (work.thread == owner) != to_others]
    written = {view.buffer for work in writers for operation in work.operations for view in operation.writes}
    return list(dict.fromkeys(v.buffer for work in readers for o in work.operations for v in o.reads if v.buffer in written))


def _write_share(module: Module, name: str) -> None:
    """``share_name(words, thread)``: one thread's part of vectors that all threads share."""
    f = Function(module, f"share_{name}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    _do(f, words, f"once_{name}", thread, word(f, words, "threads"))
    module.add(f)


def _write_work(module: Module, k: int, segment: Segment, lists: bool) -> None:
    """``work_k(words, thread)``: one thread's tiles. Each thread packs weights for itself before its tiles."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, tile, threads = (word(f, words, name) for name in ("batch", "tile", "sharing"))
    own, scratch = table_of(f, words, thread)
    for packer in segment.packers:
        f.invoke(f"prepare_{k}_{packer}", None, own, scratch, "i64 0", batch, "i64 1")
    tiles = f.binary("sdiv", f.binary("sub", f.binary("add", batch, tile), integer(1)), tile)
    whole = f.cast("zext", f.compare("eq", tiles, integer(1)), I64)
    begin = f.binary("sdiv", f.binary("mul", tiles, thread), threads)
    end = f.binary("sdiv", f.binary("mul", tiles, f.add(thread, 1)), threads)

    def step(table: Value, i: Value, carried: list[Value]) -> list[Value]:
        start = f.binary("mul", i, tile)
        left = f.binary("sub", batch, start)
        count = f.least(left, tile)
        if lists:
            f.invoke(f"list_{k}", None, table, scratch, start, count, *carried)
        for part in range(len(segment.tiled)):
            f.invoke(f"tile_{k}_{part}", None, table, scratch, start, count, *carried, whole)
        return [integer(0)]

    if not segment.sums:
        f.loop(begin, end, 1, partial(step, own), [integer(1)])
    else:
        length = word(f, words, "block")

        def block(start: Value, _: list[Value]) -> None:
            leads = f.compare("eq", start, begin)
            number = f.select(leads, thread, f.binary("add", thread, word(f, words, "threads")))
            table, _unused = table_of(f, words, number)
            f.loop(start, f.least(f.binary("add", start, length), end), 1, partial(step, table), [integer(1)])
            follows = f.compare("ne", start, begin)
            f.when(follows, lambda: f.invoke(f"add_{k}", None, own, table, "i64 0", "i64 1"))

        f.loop(begin, end, length, block)
    module.add(f)


def _write_product(module: Module, k: int) -> None:
    """``work_k(words, thread)``: one thread's share of a large product."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    _do(f, words, f"product_{k}", thread, word(f, words, "threads"), thread=thread)
    module.add(f)


def _write_add(module: Module, k: int, sums: Sequence[SumRun], plan: ExecutionPlan) -> None:
    """``add_k(table, other, part, parts)``: add the sums of `other` to those of `table`, in a part of each long vector.

    The first part includes the short vectors. Of two maxima, the larger is kept.
    """
    f = Function(module, f"add_{k}", [(PTR, "table"), (PTR, "other"), (I64, "part"), (I64, "parts")])
    for run, count, distance in _grids(sums):
        add = partial(_add_row, f, run, plan, distance)
        if count == 1:
            add(integer(0))
        else:
            f.loop(integer(0), integer(count), 1, add)
    module.add(f)


def _add_row(f: Function, run: SumRun, plan: ExecutionPlan, distance: int, k: Value, _: object = None) -> None:
    """Add the run that is `k` distances after this one."""
    *tables, part, parts = f.arguments
    lanes, size, scalar = plan.lanes, run.stop - run.start, real_type(run.buffer.dtype)
    type, position = Type(scalar.name, lanes), integer(plan.sum_positions[run.buffer])
    first = f.add(f.mul(k, distance), run.start)
    target, source = (f.address(f.load(PTR, f.address(t, position, PTR)), first, scalar) for t in tables)
    begin, end = integer(0), f.select(f.compare("eq", part, integer(0)), integer(size), integer(0))
    if size >= MIN_TEAM_ELEMENTS:
        begin, end = share(f, size, lanes, part, parts)
    whole = f.add(begin, f.binary("and", f.binary("sub", end, begin), integer(-lanes)))
    add = partial(_add_vector, f, run.kind, type, target, source)
    f.loop(begin, whole, lanes, partial(add, None))
    if size % lanes:
        rest = f.binary("sub", end, whole)
        f.when(f.compare("sgt", rest, integer(0)), partial(add, f.first_lanes(lanes, rest), whole))


def _grids(sums: Sequence[SumRun]) -> Iterator[tuple[SumRun, int, int]]:
    """The first of runs of one length at even distances, such as the rows of a block, with their number and distance."""
    k = 0
    while k < len(sums):
        first, count, distance = sums[k], 1, 0
        while k + count < len(sums):
            distance = sums[k + 1].start - first.start
            shift = count * distance
            if sums[k + count] != first._replace(start=first.start + shift, stop=first.stop + shift):
                break
            count += 1
        yield first, count, distance
        k += count


def _add_vector(
    f: Function, kind: str, type: Type, target: Value, source: Value, mask: Value | None, i: Value, _: object = None
) -> None:
    """Add elements i, i + 1, ... of `source` to those of `target`, or keep the larger ones (kind "max")."""
    to, of = (f.address(p, i, Type(type.name)) for p in (target, source))
    a, b = f.load(type, to, mask), f.load(type, of, mask)
    f.store(maximum(f, a, b) if kind == "max" else f.binary("fadd", a, b), to, mask)


def _write_reduce(module: Module, k: int) -> None:
    """``reduce_k(words, part, parts)``: add the other threads' sums to the first thread's, in a part of each long vector.

    ``reduce_part_k(words, part)`` does the part of one thread.
    """
    f = Function(module, f"reduce_{k}", [(PTR, "words"), (I64, "part"), (I64, "parts")])
    words, part, parts = f.arguments
    table, _ = table_of(f, words, 0)

    def add_thread(thread: Value, _: list[Value]) -> None:
        other, _unused = table_of(f, words, thread)
        f.invoke(f"add_{k}", None, table, other, part, parts)

    f.loop(integer(1), word(f, words, "sharing"), 1, add_thread)
    module.add(f)
    f = Function(module, f"reduce_part_{k}", [(PTR, "words"), (I64, "part")])
    words, part = f.arguments
    f.invoke(f"reduce_{k}", None, words, part, word(f, words, "threads"))
    module.add(f)
