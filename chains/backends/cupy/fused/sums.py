"""Sums over the blocks of a kernel, each of which has a row of parts. The order of additions depends on sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chains.backends.cupy.fused.block import THREADS
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Launch, Pointers, Source
from chains.program.alias import reach
from chains.program.operations import Operation
from chains.program.view import Buffer

SUMS_PER_BLOCK = 32  # sums that a block adds up, by as many threads each as it has room for


class Sums:
    """A row of memory for the sums of a block: for each buffer the part from the first to the last element that is summed."""

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
        """The sums: first and last place in a block's row of parts, the buffer, and the place there."""
        result: list[tuple[int, int, Buffer, int]] = []
        for buffer in self.spans:
            shift = self.shift(buffer)
            for start, stop in sorted((start, stop) for owner, start, stop in self._summed if owner is buffer):
                if result and result[-1][2] is buffer and result[-1][1] == start + shift:
                    result[-1] = (result[-1][0], stop + shift, buffer, result[-1][3])
                else:
                    result.append((start + shift, stop + shift, buffer, start))
        return result


def adding(source: Source, sums: Sums, parts: Buffer, blocks: Callable[[int], int]) -> Launch:
    """The kernel that adds up `parts`, the sums of so many `blocks`: for each sum, several threads and then a tree."""
    pointers, kind, depth = Pointers(), ctype(parts.dtype), THREADS // SUMS_PER_BLOCK
    into = {buffer: pointers(buffer, write=True) for buffer in sums.spans}
    mine = pointers.named(parts, "parts")
    lines = [
        f"const Index o = blockIdx.x * (Index){SUMS_PER_BLOCK} + threadIdx.x % {SUMS_PER_BLOCK};",
        f"const Index deep = threadIdx.x / {SUMS_PER_BLOCK};",
        f"SHARED {kind} shared[{THREADS}];",
        f"{kind} total = 0;",
        f"if (o < {sums.size}) for (Index r = deep; r < blocks; r += {depth}) total += {mine}[r * {sums.size} + o];",
        "shared[threadIdx.x] = total;",
    ]
    step = depth // 2
    while step:
        add = f"shared[threadIdx.x] += shared[threadIdx.x + {step * SUMS_PER_BLOCK}];"
        lines += ["__syncthreads();", f"if (deep < {step}) {add}"]
        step //= 2
    lines += ["if (deep == 0) {", "    total = shared[threadIdx.x];"]
    for start, stop, buffer, place in sums.runs:
        lines.append(f"    if (o >= {start} && o < {stop}) {into[buffer]}[o - {start} + {place}] = total;")
    lines.append("}")
    return pointers.launch(
        source, "sums", lines, lambda batch: (-(-sums.size // SUMS_PER_BLOCK), 1), block=(THREADS, 1), extra=["blocks"],
        numbers=lambda batch: (blocks(batch),), label="sums", apart=False,
    )  # fmt: skip
