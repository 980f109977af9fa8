"""What many blocks sum, each in memory of its own, and the kernel that adds it up, in an order that depends on sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains.backends.cupy.fused.block import THREADS, Block, phase_lines, phases
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Launch, Pointers, Source
from chains.program.alias import reach
from chains.program.operations import Operation
from chains.program.scratch import Lifetime, plan_scratch
from chains.program.view import Buffer

SUMS_PER_BLOCK = 32  # sums that a block adds up, by as many threads each as it has room for


class Sums:
    """Memory of a block's own for its sums: for each buffer the part from the first to the last element that is summed."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        views = [view for operation in operations for view in operation.outs]
        self.spans: dict[Buffer, tuple[int, int]] = {}
        self._base: dict[Buffer, int] = {}
        self.size = 0
        for view in views:
            first, last = self.spans.get(view.buffer, reach(view))
            self.spans[view.buffer] = min(first, reach(view)[0]), max(last, reach(view)[1])
        for buffer, (first, last) in self.spans.items():
            self._base[buffer] = self.size
            self.size += last - first
        self._summed = [(view.buffer, *run) for view in views for run in view.runs]

    def shift(self, buffer: Buffer) -> int:
        """How far on, in a block's memory, an element of the buffer lies."""
        return self._base[buffer] - self.spans[buffer][0]

    @property
    def runs(self) -> list[tuple[int, int, Buffer, int]]:
        """What is summed: from where to where it lies in a block's memory, and where it belongs."""
        result: list[tuple[int, int, Buffer, int]] = []
        for buffer in self.spans:
            shift = self.shift(buffer)
            for start, stop in sorted((start, stop) for owner, start, stop in self._summed if owner is buffer):
                if result and result[-1][2] is buffer and result[-1][1] == start + shift:
                    result[-1] = (result[-1][0], stop + shift, buffer, result[-1][3])
                else:
                    result.append((start + shift, stop + shift, buffer, start))
        return result


def adding_bytes(dtype: np.dtype[Any]) -> int:
    """The shared memory that `adding_lines` declare."""
    return THREADS * dtype.itemsize


def adding_lines(kind: str, size: int, parts: str) -> list[str]:
    """Statements that add up number `o` of all `blocks`, as ``total`` in the threads with ``deep == 0``."""
    depth = THREADS // SUMS_PER_BLOCK
    lines = [
        f"SHARED {kind} shared[{THREADS}];",
        f"{kind} total = 0;",
        f"if (o < {size}) for (Index r = deep; r < blocks; r += {depth}) total += {parts}[r * {size} + o];",
        "shared[threadIdx.x] = total;",
    ]
    step = depth // 2
    while step:
        add = f"shared[threadIdx.x] += shared[threadIdx.x + {step * SUMS_PER_BLOCK}];"
        lines += ["__syncthreads();", f"if (deep < {step}) {add}"]
        step //= 2
    return [*lines, "total = shared[threadIdx.x];"]


def adding(
    source: Source, sums: Sums, parts: Buffer, ticket: Buffer, blocks: Callable[[int], int], once: Block | None
) -> Launch:
    """The kernel that adds up `parts`, what so many `blocks` found; its last block to be ready does the units of `once`.

    Which block that is changes nothing: no number is added in an order that depends on it.
    """
    pointers = Pointers({} if once is None else once.names)
    into = {buffer: pointers(buffer, write=True) for buffer in sums.spans}
    near = {} if once is None else {buffer: pointers.buffers.pop(buffer) for buffer in once.work}
    mine = pointers.named(parts, "parts")
    lines = [
        f"const Index o = blockIdx.x * (Index){SUMS_PER_BLOCK} + threadIdx.x % {SUMS_PER_BLOCK}, "
        f"deep = threadIdx.x / {SUMS_PER_BLOCK};",
        *adding_lines(ctype(parts.dtype), sums.size, mine),
        "if (deep == 0) {",
    ]
    for start, stop, buffer, place in sums.runs:
        lines.append(f"    if (o >= {start} && o < {stop}) {into[buffer]}[o - {start} + {place}] = total;")
    lines.append("}")
    shared = 0
    if once is not None:
        for unit in once.units:
            pointers.written |= {view.buffer for view in unit.writes}
            pointers.read |= {view.buffer for view in unit.reads}
        chip = plan_scratch(Lifetime(buffer, buffer.nbytes, False, 0, 0) for buffer in near)
        shared = chip.fixed_bytes
        lines += [
            "SHARED int last;",
            "__syncthreads();",
            "if (threadIdx.x == 0) {",
            "    __threadfence();",
            f"    last = atomicAdd({pointers.named(ticket, 'ticket', write=True)}, 1) == gridDim.x - 1;",
            "    __threadfence();",
            "}",
            "__syncthreads();",
            "if (!last) return;",
            *(["ON_CHIP;"] if near else []),
            *(f"{ctype(b.dtype)}* const {name} = ({ctype(b.dtype)}*)(chip + {chip.fixed[b]});" for b, name in near.items()),
            *phase_lines(phases(once.units)),
        ]
    return pointers.launch(
        source, "sums", lines, lambda batch: (-(-sums.size // SUMS_PER_BLOCK), 1), block=(THREADS, 1), extra=["blocks"],
        numbers=lambda batch: (blocks(batch),), label="sums", shared=shared, apart=False,
        ends_alone=once is not None,
    )  # fmt: skip
