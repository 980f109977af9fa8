"""The loops of training in machine code: over the batches of an epoch, and over the members of an ensemble.

`steps` gathers the samples of each batch, runs the step and stores the loss. In `lane` each thread takes one member after
another. A member's read-only data is not copied: each `PLACE` says where to write the address of such data. Data that a member
updates is copied to the thread's memory and back, so that no two threads write to one cache line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends.native.llvm.emit import I32, I64, PTR, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.struct import PREFETCH, ROW_POINTERS, Struct

SOURCES: dict[np.dtype[Any], str] = {
    np.dtype(name): short
    for name, short in (("float32", "f32"), ("float64", "f64"), ("uint8", "u8"), ("int32", "i32"), ("int64", "i64"))
}
SINGLE, DOUBLE = Type("float"), Type("double")
TYPES = {"f32": SINGLE, "f64": DOUBLE, "u8": Type("i8"), "i32": I32, "i64": I64}
WATCHED_BYTES = 64  # of numbers that are looked at together
COPIED_WIDTH = 16  # elements from which on a row is copied as a whole: the compiler's loop takes a number at a time


def gather(source: str, target: str) -> str:
    """The module of a function that copies rows by number and converts their elements."""
    module, a, b = Module(), TYPES[source], TYPES[target]
    arguments = [(PTR, "source"), (PTR, "target"), (PTR, "order"), (I64, "rows"), (I64, "width")]
    f = Function(module, f"gather_{source}_{target}", arguments, apart="target")
    table, filled, order, rows, width = f.arguments

    def row(i: Value) -> None:
        place = f.mul(f.load(I64, f.address(order, i, I64)), width)
        given, made = f.address(table, place, a), f.address(filled, f.mul(i, width), b)

        def element(j: Value) -> None:
            f.store(_converted(f, f.load(a, f.address(given, j, a)), source, b), f.address(made, j, b))

        def elements() -> None:
            f.each(width, element)

        if a == b:
            copy = lambda: _copy(f, made, given, f.mul(width, b.size))  # noqa: E731
            f.when(f.compare("sge", width, integer(COPIED_WIDTH)), copy, elements)
        else:
            elements()

    f.each(rows, row)
    module.add(f)
    return module.text()


WATCH = Struct({"largest": "i64", "found": "i64"})  # the bits of the largest number that fits; whether a larger one was found


def watch(source: str) -> str:
    """The module of a function for a `GATHER` that gathers nothing: it notes in a `WATCH`, its target, whether all numbers fit.

    It compares absolute values by their bits, as whole numbers: infinities and NaN are above all others.
    """
    module, word = Module(), I32 if source == "f32" else I64
    arguments = [(PTR, "source"), (PTR, "watch"), (PTR, "order"), (I64, "rows"), (I64, "width")]
    f = Function(module, f"watch_{source}", arguments)
    table, noted, order, rows, width = f.arguments
    lanes = WATCHED_BYTES // word.size
    vector, magnitude = Type(word.name, lanes), f.splat(Value(str((1 << 8 * word.size - 1) - 1), word), lanes)
    whole = f.binary("sub", width, f.binary("urem", width, integer(lanes)))
    rest = f.first_lanes(lanes, f.binary("sub", width, whole))

    def larger(most: Value, place: Value, mask: Value | None = None) -> Value:
        return f.intrinsic("umax", most, f.binary("and", f.load(vector, place, mask), magnitude))

    def row(i: Value, carried: list[Value]) -> list[Value]:
        start = f.address(table, f.mul(f.load(I64, f.address(order, i, I64)), width), word)
        inside = f.loop(integer(0), whole, lanes, lambda j, most: [larger(most[0], f.address(start, j, word))], carried)[1][0]
        return [
            f.either(
                f.compare("slt", whole, width), lambda: larger(inside, f.address(start, whole, word), rest), lambda: inside
            )
        ]

    most = f.loop(integer(0), rows, 1, row, [Value("zeroinitializer", vector)])[1][0]
    largest = f.load(word, WATCH.address(f, noted, "largest"))
    found = f.compare("ugt", f.call(f"llvm.vector.reduce.umax.{vector.mangled}", word, most), largest)
    f.when(found, lambda: WATCH.store(f, noted, found=integer(1)))
    module.add(f)
    return module.text()


def _converted(f: Function, x: Value, source: str, target: Type) -> Value:
    if x.type == target:
        return x
    if source[0] == "f":
        return f.cast("fpext" if target == DOUBLE else "fptrunc", x, target)
    if target == I64:
        return f.cast("sext", x, target)
    return f.cast("uitofp" if source == "u8" else "sitofp", x, target)


def _copy(f: Function, target: Value, source: Value, nbytes: Value) -> None:
    f.call("llvm.memcpy.p0.p0.i64", None, target, source, nbytes, "i1 false")


# The argument of `steps`.
JOB = Struct(
    {
        "run": "ptr",  # the step
        "words": "ptr",  # its argument
        "order": "ptr",  # the numbers of the samples, step after step
        "steps": "i64",  # how many steps to run
        "batch": "i64",  # samples per step
        "gathers": "i64",  # how many inputs to gather
        "list": "ptr",  # their `GATHER`s
        "value": "ptr",  # the step's loss
        "value_bytes": "i64",  # 4 or 8
        "values": "ptr",  # where the losses of the steps are stored (double)
        "random": "i64",  # the address of the step number that the random numbers use, or 0
        "prefetch": "ptr",  # the first thread's `PREFETCH`
        "prefetched": "i64",  # samples to fetch for the next step
        "row_pointers": "ptr",  # `ROW_POINTERS`
        "takes_rows": "i64",  # whether samples are read by row pointers
    }
)
GATHER = Struct({"function": "ptr", "source": "ptr", "target": "ptr", "width": "i64"})  # width: elements per sample


def write_steps(module: Module) -> None:
    """``steps(job)`` returns the number of steps done; it stops after a step whose loss is not finite."""
    f = Function(module, "steps", [(PTR, "job")], "i64")
    job = dict(zip(JOB.positions, JOB.loads(f, f.arguments[0]), strict=True))
    steps, batch, prefetch, row_pointers = job["steps"], job["batch"], job["prefetch"], job["row_pointers"]

    def step(i: Value) -> None:
        piece = f.address(job["order"], f.mul(i, batch), I64)
        for_next = f.address(piece, batch, I64)
        f.each(job["gathers"], lambda k: gather_one(k, piece))
        last = f.compare("sge", f.add(i, 1), steps)
        rows = f.select(last, integer(0), job["prefetched"])
        PREFETCH.store(f, prefetch, left=integer(0), rows=rows, numbers=for_next)
        by_number = f.select(f.compare("ne", job["takes_rows"], integer(0)), piece, NULL)
        ROW_POINTERS.store(f, row_pointers, next_rows=rows, next_numbers=for_next, numbers=by_number)
        f.invoke(job["run"], None, job["words"])
        ROW_POINTERS.store(f, row_pointers, numbers=NULL)
        single = f.compare("eq", job["value_bytes"], integer(4))
        wide = lambda: f.cast("fpext", f.load(SINGLE, job["value"]), DOUBLE)  # noqa: E731
        loss = f.either(single, wide, lambda: f.load(DOUBLE, job["value"]))
        f.store(loss, f.address(job["values"], i, DOUBLE))
        f.when(f.compare("ne", job["random"], integer(0)), count)
        f.return_if(f.compare("uge", f.intrinsic("fabs", loss), number(DOUBLE, math.inf)), lambda: f.add(i, 1))

    def gather_one(k: Value, piece: Value) -> None:
        function, source, target, width = GATHER.loads(f, f.address(job["list"], f.mul(k, GATHER.size), I64))
        f.invoke(function, None, source, target, piece, batch, width)

    def count() -> None:
        place = f.cast("inttoptr", job["random"], PTR)
        f.store(f.add(f.load(I64, place), 1), place)

    f.each(steps, step)
    f.returns(steps)
    module.add(f)


NULL = Value("null", PTR)
# The argument of a thread.
LANE = Struct(
    {
        "job": "ptr",  # the steps, a `JOB`
        "next": "ptr",  # the position of the next member, a counter that all threads share
        "count": "i64",  # members
        "members": "ptr",  # the numbers of the members
        "done": "ptr",  # how many steps each member has done
        "places": "ptr",  # `PLACE`s
        "place_count": "i64",
        "copies": "ptr",  # `COPY`s
        "copy_count": "i64",
    }
)
PLACE = Struct({"word": "ptr", "first": "i64", "stride": "i64"})  # first: the address for member 0; stride: bytes to the next
COPY = Struct({"target": "ptr", "rows": "ptr", "nbytes": "i64"})  # nbytes: bytes of a row


def each_member(f: Function, lane: Value, struct: Struct, body: Callable[[Value, Value], object]) -> None:
    """Take one member after another until none is left. The body gets its position and its number, with its places set."""
    counter, count, members, places, place_count = struct.loads(f, lane, "next", "count", "members", "places", "place_count")

    def take(_: Value) -> None:
        position = f.assign(I64, f"atomicrmw add {counter}, i64 1 monotonic")
        f.return_if(f.compare("sge", position, count))
        member = f.load(I64, f.address(members, position, I64))

        def place(k: Value) -> None:
            word, first, stride = PLACE.loads(f, f.address(places, f.mul(k, PLACE.size), I64))
            f.store(f.add(first, f.mul(member, stride)), word)

        f.each(place_count, place)
        body(position, member)

    f.repeat(take)


def write_lane(module: Module) -> None:
    """``lane(lanes, part)``: the thread with this number takes one member after another."""
    f = Function(module, "lane", [(PTR, "lanes"), (I64, "part")])
    own = f.address(f.arguments[0], f.mul(f.arguments[1], LANE.size), I64)
    job, done, copies, copy_count = LANE.loads(f, own, "job", "done", "copies", "copy_count")

    def copy_rows(member: Value, back: bool) -> None:
        def copy(k: Value) -> None:
            target, rows, nbytes = COPY.loads(f, f.address(copies, f.mul(k, COPY.size), I64))
            row = f.address(rows, f.mul(member, nbytes), Type("i8"))
            _copy(f, row if back else target, target if back else row, nbytes)

        f.each(copy_count, copy)

    def run(position: Value, member: Value) -> None:
        copy_rows(member, back=False)
        count = f.invoke("steps", I64, job)
        copy_rows(member, back=True)
        f.store(count, f.address(done, position, I64))

    each_member(f, own, LANE, run)
    module.add(f)
