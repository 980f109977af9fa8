"""The functions that run a compiled program: `run`, which calls other threads for what they share, and `member`, which does
what falls to one thread of a team (`team.py`).

They take the address of a list of words, `ARGUMENTS`, behind which each thread has a `THREAD`. The first thread's sums are
the results; the others' are added to them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, Value, integer, real_type
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.vectormath import maximum
from chains.backends.native.plan.barriers import Run
from chains.backends.native.plan.segments import SHARED, TOGETHER
from chains.program.view import Buffer

ARGUMENTS = Struct(
    {
        "batch": "i64",  # samples
        "tile": "i64",  # samples
        "threads": "i64",
        "sharing": "i64",  # threads that have tiles
        "pool": "ptr",
        "parallel": "ptr",  # functions of the pool
        "meet": "ptr",
        "run": "ptr",  # functions of the program
        "member": "ptr",
        "team": "i64",  # 1 where there is a team; below zero where it is awaited for so many more steps
        "gathers": "i64",  # whether samples are gathered that the threads of a team may still read
    }
)
THREAD = Struct({"table": "ptr", "scratch": "ptr"})  # addresses of a thread's table of buffers and of its scratch memory
Runs = tuple[Run, ...]
word = ARGUMENTS.load
Positions = dict[Buffer, tuple[int, int]]  # in a table: of a buffer, and of a thread's own block of sums for it


def table_of(f: Function, words: Value, thread: Value | int) -> tuple[Value, Value]:
    """The addresses of a thread's table and scratch memory."""
    thread = thread if isinstance(thread, Value) else integer(thread)
    start = THREAD.element(f, thread, ARGUMENTS)
    return THREAD.load(f, words, "table", start), THREAD.load(f, words, "scratch", start)


def share(f: Function, length: int, lanes: int, thread: Value, threads: Value) -> tuple[Value, Value]:
    """The begin and end of a thread's part of a vector: whole registers, but for the last part."""

    def bound(part: Value) -> Value:
        blocks = f.binary("sdiv", f.binary("mul", integer(-(-length // lanes)), part), threads)
        elements = f.mul(blocks, lanes)
        return f.least(elements, integer(length))

    return bound(thread), bound(f.add(thread, 1))


@dataclass(frozen=True)
class Outline:
    """What there is of a segment."""

    sums: Runs
    product: bool  # whether it is a large product
    lists: bool  # whether the samples of a tile are listed
    packers: tuple[int, ...]  # the threads that pack weights before the tiles
    parts: tuple[int, ...]  # of its tiles, each a function: the thread that does it where products are split
    early: bool  # whether something is done before the tiles
    pieces: tuple[int, ...]  # what is done once: the length of the vectors that may be shared, or 0
    meetings: tuple[bool, ...]  # whether a team must meet before each of these pieces; where products are split, before what
    # comes early, each part and each piece
    finished: int | None  # the piece that products do where a tile is the whole batch, but for a rest


def write_driver(module: Module, segments: Sequence[Outline], positions: Positions, lanes: int, *, split: bool) -> None:
    """Add `run`, `member` and what they need to a module that has, for every segment, `prepare`, `early`, the parts of
    `tile`, or `product`, the pieces of `once` and the `rest` of one of them.
    """
    for k, segment in enumerate(segments):
        if segment.product:
            _write_product(module, k)
        else:
            _write_work(module, k, segment)
        if segment.sums:
            _write_reduce(module, k, segment.sums, positions, lanes)
        for piece, length in enumerate(segment.pieces):
            if length:
                _write_share(module, f"{k}_{piece}")
    _write_run(module, segments)
    (_write_owner if split else _write_member)(module, segments)


def _do(f: Function, words: Value, name: str, more: str = "") -> None:
    """Call a function of the whole batch."""
    table, scratch = table_of(f, words, 0)
    f.line(f"call void @{name}({table}, {scratch}, i64 0, {word(f, words, 'batch')}, i64 1{more})")


def _write_run(module: Module, segments: Sequence[Outline]) -> None:
    """``run(words)``: the whole program; threads are called for each part that they share."""
    f = Function(module, "run", [(PTR, "words")])
    (words,) = f.arguments
    threads, sharing = word(f, words, "threads"), word(f, words, "sharing")

    def share(name: str, parts: Value, then: Callable[[], None] | None = None) -> None:
        """Call a function of words and a part, for all parts."""

        def together() -> None:
            pool, parallel = word(f, words, "pool"), word(f, words, "parallel")
            f.line(f"call void {parallel.text}({pool}, ptr @{name}, {words}, {parts})")
            if then is not None:
                then()

        alone = f.compare("eq", parts, integer(1))
        f.when(alone, lambda: f.line(f"call void @{name}({words}, i64 0)"), together)

    def reduce(k: int, sums: Runs) -> None:
        if sum(stop - start for _, start, stop, _ in sums) < SHARED:
            f.line(f"call void @reduce_{k}({words}, i64 0, i64 1)")
        else:
            share(f"reduce_part_{k}", threads)

    for k, segment in enumerate(segments):
        if segment.early:
            _do(f, words, f"early_{k}")
        then = partial(reduce, k, segment.sums) if segment.sums else None
        share(f"work_{k}", threads if segment.product else sharing, then)
        for piece, length in enumerate(segment.pieces):
            name = f"{k}_{piece}"
            if piece == segment.finished:
                whole = f.compare("sle", word(f, words, "batch"), word(f, words, "tile"))
                f.when(whole, partial(_do, f, words, f"rest_{k}"), partial(share, f"share_{name}", threads))
            elif length >= SHARED:
                share(f"share_{name}", threads)
            else:
                _do(f, words, f"once_{name}", ", i64 0, i64 1")
    f.line("ret void")
    module.add(f)


def _meet(f: Function, words: Value, thread: Value) -> None:
    """Wait for the other threads of a team."""
    pool, function = word(f, words, "pool"), word(f, words, "meet")
    f.line(f"call void {function.text}({pool}, {thread}, {word(f, words, 'threads')})")


def _write_member(module: Module, segments: Sequence[Outline]) -> None:
    """``member(words, thread)``: what falls to one thread of a team, which has met before and meets afterwards."""
    f = Function(module, "member", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    first = f.compare("eq", thread, integer(0))

    meet = partial(_meet, f, words, thread)

    def share(name: str) -> None:
        f.line(f"call void @{name}({words}, {thread})")

    for k, segment in enumerate(segments):
        if k > 0:
            meet()
        if segment.early:
            f.when(first, partial(_do, f, words, f"early_{k}"))
        if segment.product:
            share(f"work_{k}")
        else:
            f.when(f.compare("slt", thread, word(f, words, "sharing")), partial(share, f"work_{k}"))
        meet()
        if segment.sums:
            share(f"reduce_part_{k}")
        for piece, length in enumerate(segment.pieces):
            if segment.meetings[piece]:
                meet()
            if piece == segment.finished:
                whole = f.compare("sle", word(f, words, "batch"), word(f, words, "tile"))
                rest = partial(f.when, first, partial(_do, f, words, f"rest_{k}"))
                f.when(whole, rest, partial(share, f"share_{k}_{piece}"))
            elif length:
                share(f"share_{k}_{piece}")
            else:
                f.when(first, partial(_do, f, words, f"once_{k}_{piece}", ", i64 0, i64 1"))
    f.line("ret void")
    module.add(f)


def _write_owner(module: Module, segments: Sequence[Outline]) -> None:
    """`member` where products are split: what is this thread's own, and for the first one what is nobody's."""
    f = Function(module, "member", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    table, scratch = table_of(f, words, thread)
    batch = word(f, words, "batch")

    meet = partial(_meet, f, words, thread)

    def only(owner: int, name: str, more: str = "") -> None:
        call = f"call void @{name}({table}, {scratch}, i64 0, {batch}, i64 1{more})"
        f.when(f.compare("eq", thread, integer(owner)), lambda: f.line(call))

    for k, segment in enumerate(segments):
        if k > 0:
            meet()
        if segment.early:
            only(0, f"early_{k}")
        if segment.lists:
            f.line(f"call void @list_{k}({table}, {scratch}, i64 0, {batch}, i64 1)")
        for packer in segment.packers:
            only(packer, f"prepare_{k}_{packer}")
        for part, owner in enumerate(segment.parts):
            if segment.meetings[1 + part]:
                meet()
            only(owner, f"tile_{k}_{part}", ", i64 1")
        for piece, length in enumerate(segment.pieces):
            if segment.meetings[1 + len(segment.parts) + piece]:
                meet()
            if piece == segment.finished:
                only(0, f"rest_{k}")
            elif length:
                f.line(f"call void @share_{k}_{piece}({words}, {thread})")
            else:
                only(0, f"once_{k}_{piece}", ", i64 0, i64 1")
        if segment.lists and not any(segment.meetings):
            meet()  # the first thread may change what is picked
    f.when(f.compare("ne", word(f, words, "gathers"), integer(0)), meet)
    f.line("ret void")
    module.add(f)


def _write_share(module: Module, name: str) -> None:
    """``share_name(words, thread)``: the thread's part of what is done once."""
    f = Function(module, f"share_{name}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    _do(f, words, f"once_{name}", f", {thread}, {word(f, words, 'threads')}")
    f.line("ret void")
    module.add(f)


def _write_work(module: Module, k: int, segment: Outline) -> None:
    """``work_k(words, thread)``: the tiles that fall to one thread, which packs its own weights."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, tile, threads = (word(f, words, name) for name in ("batch", "tile", "sharing"))
    table, scratch = table_of(f, words, thread)
    for packer in segment.packers:
        f.line(f"call void @prepare_{k}_{packer}({table}, {scratch}, i64 0, {batch}, i64 1)")
    tiles = f.binary("sdiv", f.binary("sub", f.binary("add", batch, tile), integer(1)), tile)
    whole = f.cast("zext", f.compare("eq", tiles, integer(1)), I64)
    begin = f.binary("sdiv", f.binary("mul", tiles, thread), threads)
    end = f.binary("sdiv", f.binary("mul", tiles, f.add(thread, 1)), threads)

    def step(i: Value, carried: list[Value]) -> list[Value]:
        start = f.binary("mul", i, tile)
        left = f.binary("sub", batch, start)
        count = f.least(left, tile)
        if segment.lists:
            f.line(f"call void @list_{k}({table}, {scratch}, {start}, {count}, {carried[0]})")
        for part in range(len(segment.parts)):
            f.line(f"call void @tile_{k}_{part}({table}, {scratch}, {start}, {count}, {carried[0]}, {whole})")
        return [integer(0)]

    f.loop(begin, end, 1, step, [integer(1)])
    f.line("ret void")
    module.add(f)


def _write_product(module: Module, k: int) -> None:
    """``work_k(words, thread)``: the thread's share of a large product."""
    f = Function(module, f"work_{k}", [(PTR, "words"), (I64, "thread")])
    words, thread = f.arguments
    batch, threads = word(f, words, "batch"), word(f, words, "threads")
    table, scratch = table_of(f, words, thread)
    f.line(f"call void @product_{k}({table}, {scratch}, i64 0, {batch}, i64 1, {thread}, {threads})")
    f.line("ret void")
    module.add(f)


def _write_reduce(module: Module, k: int, sums: Runs, positions: Positions, lanes: int) -> None:
    """``reduce_k(words, part, parts)``: add the other threads' sums to the first one's, in a part of each long vector; short
    ones are the first part's. Of maxima, keep the larger. ``reduce_part_k(words, part)`` is a thread's part.
    """
    f = Function(module, f"reduce_{k}", [(PTR, "words"), (I64, "part"), (I64, "parts")])
    words, part, parts = f.arguments
    table, _ = table_of(f, words, 0)
    leads = f.compare("eq", part, integer(0))

    def add_thread(thread: Value, _: list[Value]) -> list[Value]:
        other, _unused = table_of(f, words, thread)
        for buffer, start, stop, kind in sums:
            scalar = real_type(buffer.dtype)
            type = Type(scalar.name, lanes)
            target, source = (
                f.address(f.load(PTR, f.address(t, integer(position), PTR)), integer(start), scalar)
                for t, position in zip((table, other), positions[buffer], strict=True)
            )
            begin, end = integer(0), f.select(leads, integer(stop - start), integer(0))
            if stop - start >= TOGETHER:
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

    f.loop(integer(1), word(f, words, "sharing"), 1, add_thread)
    f.line("ret void")
    module.add(f)
    f = Function(module, f"reduce_part_{k}", [(PTR, "words"), (I64, "part")])
    words, part = f.arguments
    f.line(f"call void @reduce_{k}({words}, {part}, {word(f, words, 'threads')})")
    f.line("ret void")
    module.add(f)


def merged(sums: Sequence[Run], positions: Positions) -> list[Run]:
    """Runs of one kind that touch joined into one."""
    result: list[Run] = []
    runs = {(buffer, start, stop, "max" if kind == "max" else "sum") for buffer, start, stop, kind in sums}
    for buffer, start, stop, kind in sorted(runs, key=lambda run: (run[3], positions[run[0]], run[1])):
        if result and result[-1][0] is buffer and result[-1][3] == kind and result[-1][2] >= start:
            result[-1] = (buffer, result[-1][1], max(stop, result[-1][2]), kind)
        else:
            result.append((buffer, start, stop, kind))
    return result
