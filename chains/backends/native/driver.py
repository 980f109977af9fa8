"""The function that runs a compiled program, and the one that each thread runs.

Both take the address of a list of 64-bit words, `ARGUMENTS`: the batch size, the samples in a tile, the number of
threads, how many of them have tiles, the pool and its function `parallel`, then for each thread the addresses of its table of
buffers and of its scratch memory. The first thread's sums are the results; the others' are added to them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from chains.backends.native.emit import I64, PTR, Function, Module, Type, Value, integer, real_type
from chains.backends.native.vectormath import maximum
from chains.view import Buffer

ARGUMENTS = ("batch", "tile", "threads", "sharing", "pool", "parallel")
Run = tuple[Buffer, int, int, str]  # entries start..stop of a buffer, and the operation that gives them
Runs = tuple[Run, ...]
Positions = dict[Buffer, tuple[int, int]]  # in a table: of a buffer, and of a thread's own block of sums for it


def word(f: Function, words: Value, position: Value | int, type: Type = I64) -> Value:
    """A 64-bit word of a list."""
    return f.load(type, f.address(words, position if isinstance(position, Value) else integer(position), I64))


def table_of(f: Function, words: Value, thread: Value | int) -> tuple[Value, Value]:
    """The addresses of a thread's table and scratch memory."""
    thread = thread if isinstance(thread, Value) else integer(thread)
    position = f.add(f.mul(thread, 2), len(ARGUMENTS))
    return word(f, words, position, PTR), word(f, words, f.add(position, 1), PTR)


def write_driver(module: Module, segments: list[Runs], positions: Positions, lanes: int, products: Collection[int]) -> None:
    """Add `run` and what it needs to a module that has prepare, tile or product, and once of every segment."""
    for k, sums in enumerate(segments):
        if k in products:
            _write_product(module, k)
        else:
            _write_work(module, k)
        _write_reduce(module, k, sums, positions, lanes)
    f = Function(module, "run", [(PTR, "words")])
    (words,) = f.arguments
    batch, threads, sharing = (word(f, words, position) for position in (0, 2, 3))
    table, scratch = table_of(f, words, 0)
    for k, sums in enumerate(segments):
        f.line(f"call void @prepare_{k}({table}, {scratch}, i64 0, {batch}, i64 1)")

        def single(k: int = k) -> None:
            f.line(f"call void @work_{k}({words}, i64 0)")

        def together(k: int = k, sums: Runs = sums) -> None:
            pool, parallel = word(f, words, 4, PTR), word(f, words, 5, PTR)
            parts = threads if k in products else sharing
            f.line(f"call void {parallel.text}({pool}, ptr @work_{k}, {words}, {parts})")
            if sums:
                f.line(f"call void @reduce_{k}({words})")

        alone = f.compare("eq", threads, integer(1))
        f.when(alone, single, together)
        f.line(f"call void @once_{k}({table}, {scratch}, i64 0, {batch}, i64 1)")
    f.line("ret void")
    module.add(f)


def _write_work(module: Module, k: int) -> None:
    """``work_k(words, thread)``: the tiles that fall to one thread."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, tile, threads = (word(f, words, position) for position in (0, 1, 3))
    table, scratch = table_of(f, words, thread)
    tiles = f.binary("sdiv", f.binary("sub", f.binary("add", batch, tile), integer(1)), tile)
    begin = f.binary("sdiv", f.binary("mul", tiles, thread), threads)
    end = f.binary("sdiv", f.binary("mul", tiles, f.add(thread, 1)), threads)

    def step(i: Value, carried: list[Value]) -> list[Value]:
        start = f.binary("mul", i, tile)
        left = f.binary("sub", batch, start)
        count = f.select(f.compare("slt", left, tile), left, tile)
        f.line(f"call void @tile_{k}({table}, {scratch}, {start}, {count}, {carried[0]})")
        return [integer(0)]

    f.loop(begin, end, 1, step, [integer(1)])
    f.line("ret void")
    module.add(f)


def _write_product(module: Module, k: int) -> None:
    """``work_k(words, thread)``: the thread's share of a large product."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, threads = word(f, words, 0), word(f, words, 2)
    table, scratch = table_of(f, words, thread)
    f.line(f"call void @product_{k}({table}, {scratch}, i64 0, {batch}, i64 1, {thread}, {threads})")
    f.line("ret void")
    module.add(f)


def _write_reduce(module: Module, k: int, sums: Runs, positions: Positions, lanes: int) -> None:
    """``reduce_k(words)``: add the other threads' sums to the first one's; of maxima, keep the larger."""
    f = Function(module, f"reduce_{k}", [(PTR, "words")])
    (words,) = f.arguments
    threads = word(f, words, 3)
    table, _ = table_of(f, words, 0)

    def add_thread(thread: Value, _: list[Value]) -> list[Value]:
        other, _unused = table_of(f, words, thread)
        for buffer, start, stop, kind in merged(sums, positions):
            scalar = real_type(buffer.dtype)
            target, source = (
                f.address(f.load(PTR, f.address(t, integer(position), PTR)), integer(start), scalar)
                for t, position in zip((table, other), positions[buffer], strict=True)
            )
            length = stop - start
            whole = length // lanes * lanes

            def add(
                i: Value, type: Type, mask: Value | None, target: Value = target, source: Value = source, kind: str = kind
            ) -> None:
                to, of = (f.address(p, i, Type(type.name)) for p in (target, source))
                a, b = f.load(type, to, mask), f.load(type, of, mask)
                f.store(maximum(f, a, b) if kind == "max" else f.binary("fadd", a, b), to, mask)

            type = Type(scalar.name, lanes)

            def step(i: Value, _: list[Value], add: Callable[..., None] = add, type: Type = type) -> None:
                add(i, type, None)

            if whole:
                f.loop(integer(0), integer(whole), lanes, step)
            if length > whole:
                add(integer(whole), type, f.lane_mask(lanes, length - whole))
        return []

    f.loop(integer(1), threads, 1, add_thread)
    f.line("ret void")
    module.add(f)


def merged(sums: Runs, positions: Positions) -> list[Run]:
    """Runs of one kind that touch joined into one."""
    result: list[Run] = []
    runs = {(buffer, start, stop, "max" if kind == "max" else "sum") for buffer, start, stop, kind in sums}
    for buffer, start, stop, kind in sorted(runs, key=lambda run: (run[3], positions[run[0]], run[1])):
        if result and result[-1][0] is buffer and result[-1][3] == kind and result[-1][2] >= start:
            result[-1] = (buffer, result[-1][1], max(stop, result[-1][2]), kind)
        else:
            result.append((buffer, start, stop, kind))
    return result
