"""The time of a call of an object file for this computer, made from machine code, so that Python's own time is not in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_ssize_t, c_void_p
from time import perf_counter

import numpy as np

from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.target import processor
from chains.exporting.interface import Call, Interface

ROUNDS, ROUND_SECONDS = 9, 0.01


def forward_seconds(interface: Interface, code: bytes, batches: Sequence[int]) -> list[float]:
    """The time of a forward pass for these numbers of samples."""
    forward, name = next(call for call in interface.calls if call.name == "forward"), f"{interface.name}_forward"
    here = processor()
    exported = Code(f"timed {name}", code, [name, f"{interface.name}_work_bytes"], here, cached=False)
    loop = machine_code(_loop(forward, interface.workspace), ["repeated"], here)
    work_bytes = CFUNCTYPE(c_ssize_t, c_ssize_t)(exported.address(f"{interface.name}_work_bytes"))
    times = []
    for n in batches:
        arrays = [np.zeros((n, *each.shape) if each.batched else each.shape, each.dtype) for each in forward.arguments]
        arrays += [np.zeros(work_bytes(n), np.uint8)] if interface.workspace else []
        pointers = [each.ctypes.data for each in arrays]
        repeated = CFUNCTYPE(None, c_ssize_t, c_void_p, c_ssize_t, *[c_void_p] * len(pointers))(loop.address("repeated"))
        times.append(_seconds(repeated, exported.address(name), n, *pointers))
    return times


def _loop(call: Call, workspace: bool) -> str:
    """A function that makes a call `%count` times, in LLVM's assembly."""
    arrays = "".join(f", ptr %a{k}" for k in range(len(call.arguments) + workspace))
    return f"""\
define void @repeated(i64 %count, ptr %function, i64 %n{arrays}) {{
start:
  br label %again
again:
  %k = phi i64 [ 0, %start ], [ %next, %again ]
  call void %function(i64 %n{arrays})
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %again, label %end
end:
  ret void
}}"""


def _seconds(repeated: Callable[..., None], *given: int) -> float:
    """The time of a call of which ``repeated(count, *given)`` makes `count`: in the fastest round."""

    def elapsed(count: int) -> float:
        start = perf_counter()
        repeated(count, *given)
        return perf_counter() - start

    count = 1
    while (time := elapsed(count)) < ROUND_SECONDS:
        count = int(count * max(2.0, min(100.0, ROUND_SECONDS / max(time, 1e-9))))
    return min(elapsed(count) for _ in range(ROUNDS)) / count
