"""The interface between the backend and a GPU, so that tests can replace the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chains.backends.cupy.source.commands import Kernel
from chains.program.operations import Window
from chains.support.memory import Memory

Work = Callable[[], object]
Sizes = tuple[int, ...]


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


@dataclass(frozen=True)
class Uncaptured:
    """Work that cannot be captured, and is started between graphs."""

    start: Work

    def __call__(self) -> None:
        self.start()


@dataclass(frozen=True)
class Convolution:
    """One of the three operations at a batch size; `result` is the computed array: 0 for x, 1 for w, 2 for y.

    Shapes and strides, in elements, are those of the images x (batch, channels, height, width), the kernels w (outputs,
    channels / groups, height, width) and the output y, or of their gradients.
    """

    result: int
    dtype: np.dtype[Any]
    shapes: tuple[Sizes, Sizes, Sizes]
    strides: tuple[Sizes, Sizes, Sizes]
    window: Window


class Convolutions(Protocol):
    """A library for convolutions on a device."""

    def workspace(self, convolution: Convolution) -> int | None:
        """The bytes of workspace for the convolution; None if the library does not do it."""

    def work(self, convolution: Convolution, addresses: tuple[int, ...], workspace: int) -> Work:
        """The work that starts the convolution of x, w and y at these addresses."""


class Event(ABC):
    """A position in a queue: that of the last record. Waiting for an event without a record returns immediately."""

    @abstractmethod
    def wait(self) -> None:
        """Stop the host until the queue has reached it."""


class Queue(ABC):
    """Work in order, concurrent with that of other queues: only events order work of different queues."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Copy, without waiting for it, between pinned memory and the GPU's: contiguous arrays of one type and size."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Put the event after all work of the queue so far."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let later work of the queue wait for the work before the event."""


class Device(Memory):
    """A GPU, its memory and the order of its work: everything runs in `main`, in the order of the calls.

    `to_device` is for simultaneous copies. `refused` counts lists of work that could not be captured. `convolutions` is the
    library for convolutions; None if the backend's own kernels and products do them.
    """

    refused: Counter[str]
    convolutions: Convolutions | None = None
    main: Queue
    to_device: Queue

    shared_bytes: int  # the largest shared memory of a block, including that of its kernel's text

    @abstractmethod
    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """The kernels of a text, ready to launch, by name; made once for each text."""

    @abstractmethod
    def launch(
        self, kernel: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic], shared: int = 0
    ) -> Work:
        """The work that launches the kernel, with `shared` bytes of shared memory in addition to those of its text."""

    @abstractmethod
    def product(self, gemm: Gemm) -> Work:
        """The work that starts the product."""

    @abstractmethod
    def join(self, comm: Any) -> None:
        """Make ready to sum over the processes of a duplicate of a communicator, all of which call this.

        Raises ValueError, on all of them, if one cannot.
        """

    @abstractmethod
    def all_reduce(self, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int) -> Work:
        """The work that starts the sum of `count` numbers over all processes, from one address to another or the same.

        The `words` of the communicator (`chains.support.communicator`) are read whenever the work starts; all processes start
        it in one order. If they name no communicator, it is a copy.
        """

    @abstractmethod
    def capture(self, work: Sequence[Work]) -> Work:
        """The work as one graph. Raises the errors of the work, and RuntimeError if no graph can be made."""

    @abstractmethod
    def running(self) -> AbstractContextManager[object]:
        """A context in which work must be started."""

    @abstractmethod
    def current_stream(self) -> int:
        """CUDA's handle of the stream for work that starts now."""

    @abstractmethod
    def seconds(self, work: Work, repeats: int = 5) -> float:
        """The time of the work on the device: the shortest of `repeats` times, after a first run."""

    @abstractmethod
    def event(self) -> Event:
        """A new event."""

    @abstractmethod
    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array of the host that queues can copy from and to. Raises MemoryError if there is no room.

        Its memory may be reused as soon as it is released, even if queues still use it.
        """

    @abstractmethod
    def room(self) -> int:
        """The number of free bytes of the GPU."""
