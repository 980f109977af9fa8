"""What a kernel for a whole program consists of, and where its buffers lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chains.backends.cupy.fused.block import Unit
from chains.program.view import Buffer


@dataclass(frozen=True)
class DataSet:
    """A data set that steps take samples from, by the numbers in `order`: the kernel's names for both."""

    name: str
    order: str


@dataclass(frozen=True)
class Layout:
    """The units of a kernel in groups between barriers, and where in shared memory buffers lie."""

    tiled: list[list[Unit]]
    once: list[list[Unit]]
    names: Mapping[Buffer, str]
    offsets: Mapping[Buffer, int]
    nbytes: int
    fetched: Mapping[Buffer, DataSet]  # inputs that come from data sets

    @property
    def units(self) -> list[Unit]:
        return [unit for group in (*self.tiled, *self.once) for unit in group]

    def writes(self, buffer: Buffer) -> bool:
        return any(view.buffer is buffer for unit in self.units for view in unit.writes)
