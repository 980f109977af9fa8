"""How the samples of a step come into a block's shared memory: as a step begins, or ahead, while the one before computes.

Ahead, an input has two tiles, of which steps use one in turn. The next step's is filled by asynchronous copies, which no thread
waits for before the step ends; numbers that have to be converted are read and stored by the threads at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends.cupy.fused.block import THREADS
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import indented
from chains.program.view import Buffer

COPIED_BYTES = (4, 8)  # numbers that one asynchronous copy can take
TILE_ELEMENTS = 16  # the second of two tiles begins at a multiple of so many, as the first does


@dataclass(frozen=True)
class DataSet:
    """What steps take samples from, by the numbers in `order`: the kernel's names for both, and the type of its elements."""

    name: str
    dtype: np.dtype[Any]
    order: str

    def found(self, buffer: Buffer, width: int, column: str, step: str = "step") -> tuple[str, str]:
        """The statement that finds the ``row`` of element `i` of a step's samples, and the element's place in the data set."""
        row = f"const int64 row = {self.order}[(from + {step}) * (int64)all + first + i / {buffer.size}];"
        return row, f"{self.name}[row * {width} + {column}]"


def tile_elements(buffer: Buffer, tile: int) -> int:
    """The elements from one of two tiles to the other."""
    return -(-buffer.size * tile // TILE_ELEMENTS) * TILE_ELEMENTS


def copies(buffer: Buffer, name: str, tile: int, data: DataSet, width: int, column: str, step: str) -> list[str]:
    """Statements that begin to copy the samples of a step, by all threads."""
    kind = ctype(buffer.dtype)
    row, place = data.found(buffer, width, column, "at")
    copied = data.dtype == buffer.dtype and data.dtype.itemsize in COPIED_BYTES
    store = f"COPY_AHEAD(next + i, &{place}, {data.dtype.itemsize});" if copied else f"next[i] = ({kind}){place};"
    return [
        "{",
        f"    const Index at = {step}, first = 0, count = all * {buffer.size};",
        f"    {kind}* const next = tiles_{name} + (at & 1) * {tile_elements(buffer, tile)};",
        "    #pragma unroll 4",
        f"    for (Index i = threadIdx.x; i < count; i += {THREADS}) {{",
        *indented([row, store], 2),
        "    }",
        "}",
    ]


def tile_of_step(buffer: Buffer, name: str, tile: int) -> str:
    """The statement that finds the tile of the current step."""
    return f"{ctype(buffer.dtype)}* const {name} = tiles_{name} + (step & 1) * {tile_elements(buffer, tile)};"


def waited(ahead: Collection[Buffer]) -> list[str]:
    """Before the threads meet: their copies are done."""
    return ["COPIES_ARRIVE;"] if ahead else []
