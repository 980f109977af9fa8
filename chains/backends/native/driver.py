"""The function that runs a compiled program, and the one that each thread runs.

Both take the address of a list of 64-bit words, `ARGUMENTS`: the batch size, the samples in a tile, the number of
threads, how many of them have tiles, the pool and its function `parallel`, then for each thread the addresses of its table of
buffers and of its scratch memory. The first thread's sums are the results; the others' are added to them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chains.backends.native.emit import I64, PTR, Function, Module, Type, Value, integer, real_type
from chains.backends.native.segments import SHARED
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


def share(f: Function, length: int, lanes: int, thread: Value, threads: Value) -> tuple[Value, Value]:
    """The begin and end of a thread's part of a vector: whole registers, but for the last part."""

    def bound(part: Value) -> Value:
        blocks = f.binary("sdiv", f.binary("mul", integer(-(-length // lanes)), part), threads)
        elements = f.mul(blocks, lanes)
        return f.select(f.compare("slt", elements, integer(length)), elements, integer(length))

    return bound(thread), bound(f.add(thread, 1))


@dataclass(frozen=True)
class Outline:
    """What there is of a segment."""

    sums: Runs
    product: bool  # whether it is a large product
    parts: int  # of its tiles, each a function
    early: bool  # whether something is done before the tiles
    shared: tuple[bool, ...]  # for each piece of what is done once, whether all threads take part
    finished: int | None  # the piece that products do where a tile is the whole batch, but for a rest


def write_driver(module: Module, segments: Sequence[Outline], positions: Positions, lanes: int) -> None:
    """Add `run` and what it needs to a module that has, for every segment, `prepare`, `early`, the parts of `tile`, or
    `product`, the pieces of `once` and the `rest` of one of them.
    """
    for k, segment in enumerate(segments):
        if segment.product:
            _write_product(module, k)
        else:
            _write_work(module, k, segment.parts)
        _write_reduce(module, k, segment.sums, positions, lanes)
        for piece, together in enumerate(segment.shared):
            if together:
                _write_piece(module, f"{k}_{piece}")
    f = Function(module, "run", [(PTR, "words")])
    (words,) = f.arguments
    batch, threads, sharing = (word(f, words, position) for position in (0, 2, 3))
    table, scratch = table_of(f, words, 0)
    alone = f.compare("eq", threads, integer(1))

    def run(name: str, parts: Value, then: Callable[[], None] | None = None) -> None:
        """Call a function of words and a part, for all parts."""

        def together() -> None:
            pool, parallel = word(f, words, 4, PTR), word(f, words, 5, PTR)
            f.line(f"call void {parallel.text}({pool}, ptr @{name}, {words}, {parts})")
            if then is not None:
                then()

        f.when(alone, lambda: f.line(f"call void @{name}({words}, i64 0)"), together)

    def do(name: str, more: str = "") -> None:
        f.line(f"call void @{name}({table}, {scratch}, i64 0, {batch}, i64 1{more})")

    for k, segment in enumerate(segments):
        do(f"prepare_{k}")
        if segment.early:
            do(f"early_{k}")
        reduce = partial(_call_reduce, f, k, segment.sums, words, sharing) if segment.sums else None
        run(f"work_{k}", threads if segment.product else sharing, reduce)
        for piece, together in enumerate(segment.shared):
            if piece == segment.finished:
                whole = f.compare("sle", batch, word(f, words, 1))
                f.when(whole, partial(do, f"rest_{k}"), partial(run, f"share_{k}_{piece}", threads))
            elif together:
                run(f"share_{k}_{piece}", threads)
            else:
                do(f"once_{k}_{piece}", ", i64 0, i64 1")
    f.line("ret void")
    module.add(f)


def _call_reduce(f: Function, k: int, sums: Runs, words: Value, sharing: Value) -> None:
    if sum(stop - start for _, start, stop, _ in sums) < SHARED:
        f.line(f"call void @reduce_{k}({words}, i64 0, i64 1)")
        return
    _write_reduce_part(f.module, k)
    pool, parallel = word(f, words, 4, PTR), word(f, words, 5, PTR)
    f.line(f"call void {parallel.text}({pool}, ptr @reduce_part_{k}, {words}, {sharing})")


def _write_reduce_part(module: Module, k: int) -> None:
    """``reduce_part_k(words, part)``: a thread's share of the elements."""
    f = Function(module, f"reduce_part_{k}", [(PTR, "words"), (I64, "part")])
    words, part = f.arguments
    f.line(f"call void @reduce_{k}({words}, {part}, {word(f, words, 3)})")
    f.line("ret void")
    module.add(f)


def _write_piece(module: Module, name: str) -> None:
    """``share_name(words, thread)``: the thread's part of what is done once."""
    f = Function(module, f"share_{name}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, threads = word(f, words, 0), word(f, words, 2)
    table, scratch = table_of(f, words, 0)
    f.line(f"call void @once_{name}({table}, {scratch}, i64 0, {batch}, i64 1, {thread}, {threads})")
    f.line("ret void")
    module.add(f)


def _write_work(module: Module, k: int, parts: int) -> None:
    """``work_k(words, thread)``: the tiles that fall to one thread."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, tile, threads = (word(f, words, position) for position in (0, 1, 3))
    table, scratch = table_of(f, words, thread)
    tiles = f.binary("sdiv", f.binary("sub", f.binary("add", batch, tile), integer(1)), tile)
    whole = f.cast("zext", f.compare("eq", tiles, integer(1)), I64)
    begin = f.binary("sdiv", f.binary("mul", tiles, thread), threads)
    end = f.binary("sdiv", f.binary("mul", tiles, f.add(thread, 1)), threads)

    def step(i: Value, carried: list[Value]) -> list[Value]:
        start = f.binary("mul", i, tile)
        left = f.binary("sub", batch, start)
        count = f.select(f.compare("slt", left, tile), left, tile)
        for part in range(parts):
            f.line(f"call void @tile_{k}_{part}({table}, {scratch}, {start}, {count}, {carried[0]}, {whole})")
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
    """``reduce_k(words, part, parts)``: add the other threads' sums to the first one's, in a part of each vector.

    Of maxima, keep the larger.
    """
    f = Function(module, f"reduce_{k}", [(PTR, "words"), (I64, "part"), (I64, "parts")])
    words, part, parts = f.arguments
    table, _ = table_of(f, words, 0)

    def add_thread(thread: Value, _: list[Value]) -> list[Value]:
        other, _unused = table_of(f, words, thread)
        for buffer, start, stop, kind in merged(sums, positions):
            scalar = real_type(buffer.dtype)
            type = Type(scalar.name, lanes)
            target, source = (
                f.address(f.load(PTR, f.address(t, integer(position), PTR)), integer(start), scalar)
                for t, position in zip((table, other), positions[buffer], strict=True)
            )
            begin, end = share(f, stop - start, lanes, part, parts)
            length = f.binary("sub", end, begin)
            whole = f.add(begin, f.binary("and", length, integer(-lanes)))

            def add(
                mask: Value | None,
                i: Value,
                _: object = None,
                type: Type = type,
                target: Value = target,
                source: Value = source,
                kind: str = kind,
            ) -> None:
                to, of = (f.address(p, i, Type(type.name)) for p in (target, source))
                a, b = f.load(type, to, mask), f.load(type, of, mask)
                f.store(maximum(f, a, b) if kind == "max" else f.binary("fadd", a, b), to, mask)

            f.loop(begin, whole, lanes, partial(add, None))
            if (stop - start) % lanes:
                rest = f.binary("sub", end, whole)
                f.when(f.compare("sgt", rest, integer(0)), partial(add, f.first_lanes(lanes, rest), whole))
        return []

    f.loop(integer(1), word(f, words, 3), 1, add_thread)
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
