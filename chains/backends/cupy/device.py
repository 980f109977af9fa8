"""What the backend needs of a GPU, so that tests can put something else in its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends.cupy.kernels import Kernel

Array = Any  # an array in the device's memory, with the attributes of NumPy's
Work = Callable[[], object]


@dataclass(frozen=True)
class Gemm:
    """out = a @ b or out += a @ b for row-major matrices at these addresses.

    `leading` are the lengths of rows in memory, in elements, of out, a and b; a transposed operand is stored column by
    column.
    """

    dtype: np.dtype[Any]
    sizes: tuple[int, int, int]  # rows, columns, inner
    addresses: tuple[int, int, int]  # of out, a, b
    leading: tuple[int, int, int]
    transposed: tuple[bool, bool]
    accumulate: bool


class Device(ABC):
    """A GPU, its memory and the order of its work: everything is done in the order it was asked for."""

    name: str

    @abstractmethod
    def owns(self, array: Any) -> bool:
        """Whether an array lies in the device's memory."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A C-ordered array, uninitialised. Raises MemoryError, saying how much was wanted, where there is no room."""

    @abstractmethod
    def assign(self, target: Any, source: Any) -> None:
        """Copy one array to another of its size, each in the device's memory or NumPy's; converted to the target's type."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """Where an array begins."""

    @abstractmethod
    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """The kernels of a text, ready to launch, by name; made once for each text."""

    @abstractmethod
    def launch(self, kernel: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic]) -> Work:
        """What launches the kernel."""

    @abstractmethod
    def product(self, gemm: Gemm) -> Work:
        """What starts the product."""

    @abstractmethod
    def capture(self, work: Sequence[Work]) -> Work:
        """What does all this work in one go."""

    @abstractmethod
    def running(self) -> AbstractContextManager[object]:
        """A context that work is to be started in."""

    def array(self, source: np.ndarray) -> Array:
        """A copy of an array in the device's memory."""
        result = self.empty(source.shape, source.dtype)
        self.assign(result, source)
        return result
