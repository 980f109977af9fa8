"""Scratch memory: every intermediate result of a program gets an offset in one block, according to its lifetime.

Two buffers may share bytes when no operation needs both. Placement is greedy by size, the largest first,
each at the lowest offset that is free for its whole lifetime (Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020).

Buffers of a fixed size and buffers that grow with the batch form two regions, one after the other. The
second is planned for one sample and scaled by the batch size, so that one plan serves every batch size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Lifetime(Generic[Key]):
    """A buffer's size in bytes (for one sample if `batched`) and the first and last operation that uses it."""

    key: Key
    size: int
    batched: bool
    first: int
    last: int

    def overlaps(self, other: Lifetime[Key]) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ScratchPlan(Generic[Key]):
    """The offsets of all buffers: fixed ones, and ones that are multiplied by the (rounded) batch size."""

    fixed: dict[Key, int]
    batched: dict[Key, int]
    fixed_bytes: int
    bytes_per_sample: int

    def offset(self, key: Key, batch: int) -> int:
        """The offset of a buffer in bytes, a multiple of `ALIGNMENT`."""
        if key in self.fixed:
            return self.fixed[key]
        return self.fixed_bytes + self.batched[key] * rounded(batch)

    def nbytes(self, batch: int) -> int:
        """The size of the whole block."""
        return self.fixed_bytes + self.bytes_per_sample * rounded(batch)

    def offset_text(self, key: Key) -> str:
        if key in self.fixed:
            return f"{self.fixed[key]:,}"
        return f"{self.fixed_bytes:,} + {self.batched[key]:,} B"


def rounded(batch: int) -> int:
    """The batch size rounded up so that any number of 4-byte elements times it is a multiple of `ALIGNMENT`."""
    return _round_up(batch, ALIGNMENT // 4)


def plan_scratch(lifetimes: Iterable[Lifetime[Key]]) -> ScratchPlan[Key]:
    """Place buffers so that no two that are alive at the same operation share a byte."""
    lifetimes = list(lifetimes)
    fixed, fixed_bytes = _place([life for life in lifetimes if not life.batched], ALIGNMENT)
    batched, bytes_per_sample = _place([life for life in lifetimes if life.batched], 4)
    return ScratchPlan(fixed, batched, fixed_bytes, bytes_per_sample)


def _place(lifetimes: Sequence[Lifetime[Key]], alignment: int) -> tuple[dict[Key, int], int]:
    """Offsets, multiples of `alignment`, and the end of the last buffer."""
    offsets: dict[Key, int] = {}
    placed: list[Lifetime[Key]] = []
    total = 0
    for life in sorted(lifetimes, key=lambda life: (-life.size, life.first)):
        offset = 0
        for other in sorted((p for p in placed if p.overlaps(life)), key=lambda p: offsets[p.key]):
            if offsets[other.key] - offset >= life.size:
                break
            offset = max(offset, _round_up(offsets[other.key] + other.size, alignment))
        offsets[life.key] = offset
        placed.append(life)
        total = max(total, _round_up(offset + life.size, alignment))
    return offsets, total


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
