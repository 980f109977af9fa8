"""Subnormal numbers taken as zeros within a function.

A gradient that goes back through many steps vanishes, and ends in numbers below the smallest normal one. Processors of Intel
and AMD take a hundred cycles for each of these: a step of training would take a fifth longer. The control register of
the floating-point unit belongs to a thread, and is restored at the end.
"""

from __future__ import annotations

from chains.backends.native.llvm.emit import PTR, Function, Type, Value

FLUSH = 0x8040  # of MXCSR: results below the smallest normal number are zero (FTZ), and so are such operands (DAZ)

I32 = Type("i32")


def flush(f: Function) -> Value:
    """Begin to take subnormal numbers as zeros. Returns the address of what `restore` needs."""
    before = f.assign(PTR, "alloca i32, align 4")
    during = f.assign(PTR, "alloca i32, align 4")
    f.call("llvm.x86.sse.stmxcsr", None, before)
    word = f.assign(I32, f"or {f.load(I32, before)}, {FLUSH}")
    f.store(word, during)
    f.call("llvm.x86.sse.ldmxcsr", None, during)
    return before


def restore(f: Function, before: Value) -> None:
    """End what `flush` has begun."""
    f.call("llvm.x86.sse.ldmxcsr", None, before)
