"""Sums over processes: a call of a C function of MPI, at an address from the caller (`chains.support.communicator`)."""

from __future__ import annotations

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, PTR, Type, Value, integer
from chains.program.all_reduce import AllReduce


def lower_all_reduce(frame: Frame, operation: AllReduce) -> None:
    """``MPI_Allreduce(a, out, count, type, sum, communicator)``; without processes, a copy.

    Handles are 32 bits wide in MPICH and pointers in Open MPI: all are passed as 64 bits, in registers, of which a function
    reads as many as it needs. An error ends the process, as the communicator is set up.
    """
    f = frame.f
    (out,), (a, communicator) = operation.outs, operation.ins
    source, target, words = frame.base(a), frame.base(out), frame.base(communicator)
    address, in_place, *handles = (f.load(I64, f.address(words, integer(k), I64)) for k in range(5))
    alone = f.compare("eq", address, integer(0))
    here = out == a

    def copy() -> None:
        count = out.sample_size * out.dtype.itemsize
        f.call("llvm.memmove.p0.p0.i64", None, target, source, integer(count), Value("false", Type("i1")))

    def reduce() -> None:
        function = f.cast("inttoptr", address, PTR)
        given = f.cast("inttoptr", in_place, PTR) if here else source
        rest = ", ".join(map(str, handles))
        f.line(f"call i32 {function.text}({given}, {target}, i32 {out.sample_size}, {rest})")

    f.when(alone, (lambda: None) if here else copy, reduce)
