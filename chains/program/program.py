"""Programs: a flat list of operations over views of a few buffers.

A program is recorded once (`chains.program.recorder`) and runs at any batch size. Its scratch buffers share one block
of memory (`chains.program.scratch`). A backend executes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from chains.expr import Expr
from chains.program.loop import Loop, all_operations
from chains.program.operations import Operation
from chains.program.scratch import Lifetime, ScratchPlan, plan_scratch
from chains.program.settings import evaluate
from chains.program.view import Batch, Buffer, View
from chains.support.caching import lazy
from chains.support.messages import as_html


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order, the buffers that they use, and the places of the scratch buffers.

    ``print(program)`` shows everything: a line per operation, then a line per buffer.
    """

    name: str
    dtype: np.dtype[Any]
    operations: tuple[Operation, ...]
    settings: tuple[tuple[str, Expr], ...] = ()  # inputs that are computed from settings

    def tuned(self, numbers: Sequence[float]) -> dict[str, np.ndarray]:
        """The inputs that hold settings, by name. `numbers` are in the order of `chains.program.settings.numbers_of`."""
        inputs = [(self.buffers[name], node) for name, node in self.settings if name in self.buffers]
        return {buffer.name: np.array(evaluate(node, numbers), buffer.dtype) for buffer, node in inputs}

    @lazy
    def buffers(self) -> dict[str, Buffer]:
        """The caller's buffers and the constants, by name."""
        return {buffer.name: buffer for buffer in self._used if buffer.role != "scratch"}

    @lazy
    def _takes_ids(self) -> bool:
        """Whether an input holds whole numbers."""
        return any(buffer.dtype.kind == "i" for buffer in self.buffers.values())

    @lazy
    def _largest(self) -> tuple[int, int]:
        """The bytes of the largest buffers in `buffers`: of fixed size, and per sample."""
        sizes = {batched: [b.nbytes for b in self.buffers.values() if b.batched == batched] for batched in (False, True)}
        return max(sizes[False], default=0), max(sizes[True], default=0)

    @lazy
    def scratch(self) -> ScratchPlan[Buffer]:
        """Offsets of the scratch buffers in one block of memory."""
        lifetimes = [
            Lifetime(buffer, buffer.nbytes, buffer.batched, first, last)
            for buffer, (first, last) in self._used.items()
            if buffer.role == "scratch"
        ]
        return plan_scratch(lifetimes)

    @lazy
    def _used(self) -> dict[Buffer, tuple[int, int]]:
        """Each buffer with the first and the last operation that touches it."""
        used: dict[Buffer, tuple[int, int]] = {}
        for position, operation in enumerate(self.operations):
            for view in operation.views:
                first, _ = used.get(view.buffer, (position, position))
                used[view.buffer] = (first, position)
        return used

    def flops(self, batch: int = 1) -> int:
        """Floating-point operations of the matrix products and convolutions, a multiply-add counted as two.

        Parameters
        ----------
        batch : int
            The number of samples.
        """
        return sum(operation.flops(batch) for operation in self.operations)

    def __str__(self) -> str:
        counts = Counter(operation.name for operation in self.operations)
        fixed, per_sample = self.scratch.fixed_bytes, self.scratch.bytes_per_sample
        lines = [
            f"program {self.name} ({self.dtype}): {len(self.operations)} operations "
            f"({', '.join(f'{count} {name}' for name, count in counts.items())}), "
            f"{self.flops():,} matrix flops a sample, scratch {fixed:,} bytes + {per_sample:,} a sample"
        ]
        width = max((len(operation.label) for operation in all_operations(self.operations)), default=0)
        for n, operation in enumerate(self.operations):
            numbers = [f"{n:3}"]
            for label, text in _lines(operation):
                lines.append(f"  {numbers.pop() if numbers else '':3}  {label:{width}}  {text}")
        lines.append("buffers (B: batch size)")
        for buffer, (first, last) in self._used.items():
            size = f"{buffer.nbytes:,} bytes{' a sample' if buffer.batched else ''}"
            where = f"at {self.scratch.offset_text(buffer)}, " if buffer.role == "scratch" else ""
            lines.append(f"  {buffer.role:8} {buffer.name}: {size}, {where}operations {first}-{last}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(str(self))

    def __repr__(self) -> str:
        return f"<Program {self.name} ({self.dtype}): {len(self.operations)} operations>"


def _lines(operation: Operation, indent: str = "") -> Iterator[tuple[str, str]]:
    """The label and the text of an operation; for a loop, those of its body follow."""
    yield operation.label, f"{indent}{operation}"
    for inner in operation.body if isinstance(operation, Loop) else ():
        yield from _lines(inner, indent + "  ")


_PLAIN = (int, float, str, bool, type(None))


def fingerprint(program: Program) -> str:
    """A hash of a program's operations, with the places of their views and the kinds of their buffers.

    Names and labels are left out, except the names of the caller's buffers. The numbers that a program gets when it is bound,
    constants and settings, are left out too. Raises TypeError for an operation with a value of an unknown type.
    """
    writer = _Writer()
    texts = [program.dtype.str, *(writer.text(operation) for operation in program.operations)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


class _Writer:
    """Writes operations as texts. Buffers are numbered in order of appearance, and described the first time."""

    def __init__(self) -> None:
        self._numbers: dict[Buffer, int] = {}

    def text(self, thing: Any) -> str:
        kind = type(thing)
        if kind is View:
            return (
                f"{self._buffer(thing.buffer)}{self.text(thing.shape)}{thing.strides}{thing.offset}{thing.loop_strides or ''}"
            )
        if kind is tuple:
            return f"({','.join(map(self.text, thing))})"
        if kind is Batch:
            return f"B{thing.per_sample}"
        if kind in _PLAIN:
            return repr(thing)
        if is_dataclass(kind):
            return f"{kind.__module__}.{kind.__qualname__}{self.text(tuple(getattr(thing, name) for name in _settings(kind)))}"
        raise TypeError(f"a program holds {thing!r}, a {kind.__name__}, which has no fingerprint")

    def _buffer(self, buffer: Buffer) -> str:
        number = self._numbers.get(buffer)
        if number is not None:
            return f"#{number}"
        number = self._numbers[buffer] = len(self._numbers)
        name = "" if buffer.role == "scratch" else repr(buffer.name)
        return f"#{number}{buffer.role}{name}{buffer.dtype.str}{self.text(buffer.shape)}"


@lru_cache
def _settings(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "label" and field.compare)
