"""The loop over the members of a call in machine code: each thread takes some members after another.

A program is bound once for each thread. Before it runs for a member, each `PLACE` says where to write the address of the
member's row of an array.
"""

from __future__ import annotations

from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Value, integer
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.runtime.epoch import PLACE

# The argument of a call for all members.
ENSEMBLE = Struct(
    {
        "share": "ptr",  # `parallel` or `serial`
        "pool": "ptr",
        "takers": "ptr",  # the `TAKER`s
        "taker_count": "i64",
        "next": "i64",  # the first member that no thread has taken
    }
)
# The argument of a thread.
TAKER = Struct(
    {
        "run": "ptr",  # the program
        "words": "ptr",  # its argument
        "next": "ptr",  # that of the `ENSEMBLE`
        "count": "i64",  # members
        "grain": "i64",  # members to take at once
        "places": "ptr",  # `PLACE`s
        "place_count": "i64",
    },
    padded=True,
)


def write_members(module: Module) -> None:
    """``all_members(ensemble)`` runs the program for each member; ``take_members(takers, part)`` is the work of a thread."""
    _write_take(module)
    f = Function(module, "all_members", [(PTR, "ensemble")])
    share, pool, takers, count = ENSEMBLE.loads(f, f.arguments[0], "share", "pool", "takers", "taker_count")
    ENSEMBLE.store(f, f.arguments[0], next=integer(0))
    f.invoke(share, None, pool, Value("@take_members", PTR), takers, count)
    module.add(f)


def _write_take(module: Module) -> None:
    f = Function(module, "take_members", [(PTR, "takers"), (I64, "part")])
    run, words, following, count, grain, places, place_count = TAKER.loads(
        f, f.address(f.arguments[0], f.mul(f.arguments[1], TAKER.size), I64)
    )

    def take(_: Value) -> None:
        begin = f.assign(I64, f"atomicrmw add {following}, {grain} monotonic")
        f.return_if(f.compare("sge", begin, count))
        f.each(f.least(grain, f.binary("sub", count, begin)), lambda k: one(f.add(begin, k)))

    def one(member: Value) -> None:
        def place(k: Value) -> None:
            word, first, stride = PLACE.loads(f, f.address(places, f.mul(k, PLACE.size), I64))
            f.store(f.add(first, f.mul(member, stride)), word)

        f.each(place_count, place)
        f.invoke(run, None, words)

    f.repeat(take)
    module.add(f, "private")
