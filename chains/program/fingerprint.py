"""Fingerprints of programs: programs with equal fingerprints compile to equal code."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from chains.program.program import Program
from chains.program.view import Batch, Buffer, View

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
        raise TypeError(f"a program holds {thing!r}, of which it cannot be told what it equals")

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
