"""A program on single samples without a batch axis, run by the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chains.backends.base import Single
from chains.backends.native.binding import NativeBinding
from chains.backends.native.runtime.c_functions import c_address, c_words
from chains.backends.native.runtime.fastcall import python_function


class NativeSingle(Single):
    """A binding of one sample, as a Python function and as C functions."""

    def __init__(self, binding: NativeBinding, ins: Sequence[str], outs: Sequence[str]) -> None:
        self._binding = binding
        self.function: Callable[..., Any] | None = python_function(binding, ins, outs, single=True)
        self._words = c_words(binding, ins[0], outs[0])
        self.data = self._words.ctypes.data

    def address(self, name: str) -> int:
        return c_address(name)
