"""What a backend is: it binds a program to arrays and runs it. It knows operations, and no layer."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar

import numpy as np

from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import concrete

Arrays = Mapping[str, np.ndarray]

# Arrays up to this size are copied in and out of a program that stays bound to arrays of its own; the program
# is bound anew to larger ones, which takes some 0.1 ms.
COPIED_BYTES = 1 << 20


class UnsupportedOperationError(NotImplementedError):
    """A backend met an operation that it cannot run; the message names both."""


class FallbackWarning(UserWarning):
    """The backend "auto" gives a program to NumPy, since there is no machine code for it; the message says why.

    It is shown where it is asked for: ``warnings.simplefilter("default", chains.FallbackWarning)``.
    """


warnings.simplefilter("ignore", FallbackWarning, append=True)  # behind all that users say


class Binding(ABC):
    """A program bound to arrays and scratch memory at one batch size: calling `run` executes it."""

    program: Program
    batch: int
    arrays: dict[str, np.ndarray]  # the caller's buffers by name, those it did not provide made by the binding

    @abstractmethod
    def run(self) -> None:
        """Execute the program once; within the backend's `running()` context."""

    def __call__(self) -> None:
        """Execute the program once, whatever the context."""
        self.run()

    def release(self, names: Iterable[str]) -> bool:
        """Let go of the arrays of these names: from now on `run_at` is given others. Whether the binding can do that."""
        return False

    def run_at(self, arrays: Arrays) -> bool:
        """Execute the program on these arrays in place of those released, whatever the context; whether it was done."""
        return False


class Feed(ABC):
    """A bound training step and the data it fetches its batches from."""

    @abstractmethod
    def __call__(self, first: int, values: np.ndarray) -> int:
        """Do the steps ``first, first + 1, ...``, one for each entry of `values` (float64), which receive the losses.

        Step k fetches the samples numbered ``order[k * batch : (k + 1) * batch]``; without data sets to fetch from,
        every step uses the arrays the program is bound to. Within the backend's `running()`
        context. Returns how many steps were done: a loss that is not finite is the last.
        """


class MemberFeed(ABC):
    """Bound training steps of the members of an ensemble, and the data they fetch their batches from."""

    @abstractmethod
    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Do the steps ``first, first + 1, ...`` of each of these `members` (int64), as `Feed` does those of one network.

        Row m of `values` (float64) receives the losses of member m. Returns how many steps each of these members has done.
        """


class Intake(ABC):
    """A bound training step for batches that come one by one. All within the backend's `running()` context."""

    most_unread = 0  # steps whose losses may be left unread

    @abstractmethod
    def start(self, batch: Arrays) -> None:
        """Start the step on these arrays by buffer name, which may be overwritten afterwards."""

    @abstractmethod
    def loss(self) -> float:
        """The loss of the first step whose loss has not been read."""

    def finish(self) -> None:  # noqa: B027 - most have nothing under way
        """End all that was begun, so that the caller's arrays are up to date. Losses left unread are forgotten."""


class Single(ABC):
    """A program bound for single samples; the arrays of its batch of one come and go without that axis."""

    function: Callable | None  # as of `Backend.function`
    data: int  # what functions of C get as their last argument

    @abstractmethod
    def address(self, name: str) -> int:
        """The address of a function of C, "derivative" or "integrand" (see `chains.network.bound`)."""


class Backend(ABC):
    """A way to execute programs."""

    name: str
    lowered: ClassVar[Collection[type[Operation]]] = ()  # the classes of operations that it has code for
    has_functions = False  # whether `function` gives any
    copied_bytes = COPIED_BYTES  # the largest array to copy, rather than to bind a program anew

    @abstractmethod
    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        """Bind a program to the caller's arrays, each C-contiguous, of its buffer's type and number of elements.

        Arrays not given are made, uninitialised. `scratch` is memory to use, at least `scratch_bytes` long.
        Raises UnsupportedOperationError, naming it, for an operation the backend lacks.
        """

    def choose(self, program: Program) -> Backend:
        """The backend that is to run this program: itself, but for one that stands for several."""
        return self

    def fallback(self, program: Program) -> str | None:
        """Why `choose` gives a program to a slower backend than it would like, in a sentence; None where it does not."""
        return None

    def unsupported(self, program: Program) -> str | None:
        """Why the backend cannot run a program, in a sentence that names the operation and its layer; None where it can."""
        unknown = (operation for operation in program.operations if type(operation) not in self.lowered)
        return next((cannot_run(self.name, operation) for operation in unknown), None)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """The program as the backend runs it, for people to read; with `passes`, what each pass made of it on the way there.

        It may depend on the size of a batch.
        """
        return str(program)

    def about(self) -> dict[str, str]:
        """What there is to say about it in a bug report, by name."""
        return {self.name: "available"}

    def scratch_bytes(self, program: Program, batch: int) -> int:
        """How much scratch memory a program needs at a batch size."""
        return program.scratch.nbytes(batch)

    def adopted(self, array: np.ndarray) -> np.ndarray:
        """A NumPy array as one that programs can be bound to."""
        return array

    def allocate(self, nbytes: int) -> np.ndarray:
        """Uninitialised scratch memory."""
        return aligned(nbytes)

    def function(self, binding: Binding, ins: Sequence[str], outs: Sequence[str]) -> Callable | None:
        """``function(*ins, *outs)``, the quickest way to call a small program; None where the backend has none.

        It takes arrays that are exactly as the program's buffers of these names, and None for an output to be made; it
        returns the value as a float, if the program has one, and the outputs, or None for arguments that it does not take.
        From now on the binding serves the function alone; what else the program reads lies in the binding's arrays.
        """
        return None

    def single(self, program: Program, arrays: Arrays, ins: Sequence[str], outs: Sequence[str]) -> Single | None:
        """A program bound for single samples and one thread; None where the backend has nothing quicker than calls of a batch.

        `arrays` are those of the buffers that are neither of `ins` nor of `outs`.
        """
        return None

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        """Feed a bound training step from data sets: arrays of samples by buffer name, C-contiguous.

        `order` (int64) is read at each step, so that it may be shuffled between calls.
        """
        return StepwiseFeed(binding, sources, order)

    def member_feed(
        self, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray, own: Collection[str]
    ) -> MemberFeed | None:
        """Feed the training steps of many networks; None where one after another will do (`member_feed.OneByOne`).

        Of the `arrays` of the program and of the `sources` that are named in `own`, each member has a row, as it has of
        `orders`, unless all share one. Rows of what the program updates are updated.
        """
        return None

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        """Data sets as `feed` takes them, where its steps reach them best."""
        return {name: np.ascontiguousarray(array) for name, array in data.items()}

    def intake(self, binding: Binding, like: Arrays) -> Intake:
        """Take in batches for a bound training step, whose arrays are in places and of types as these by buffer name."""
        return StepwiseIntake(binding, self.feed(binding, {}, np.arange(binding.batch)))

    def in_pieces(self, program: Program, batch: int, arrays: Arrays) -> bool:
        """Run a program on one piece of the batch after another, where that is the way; whether it was done."""
        return False

    def running(self) -> AbstractContextManager[object]:
        """A context that every `Binding.run` must be inside; entered once around many runs."""
        return nullcontext()


class StepwiseFeed(Feed):
    """One step after another, each batch taken by NumPy."""

    def __init__(self, binding: Binding, sources: Arrays, order: np.ndarray) -> None:
        self._run = binding.run
        self._value = binding.arrays["value"]
        self._random = binding.arrays.get("random")
        pieces = [order[start : start + binding.batch] for start in range(0, len(order), binding.batch)]
        self._fetches: list[list[Callable[[], object]]] = [[] for _ in pieces] if sources else []
        for name, source in sources.items():
            target = binding.arrays[name]
            taken = target if source.dtype == target.dtype else np.empty(target.shape, source.dtype)
            for fetch, piece in zip(self._fetches, pieces, strict=True):
                if len(piece) == binding.batch:
                    fetch.append(partial(source.take, piece, 0, taken, "clip"))  # "clip": otherwise NumPy buffers
                    if taken is not target:
                        fetch.append(partial(np.copyto, target, taken, "unsafe"))

    def __call__(self, first: int, values: np.ndarray) -> int:
        run, value, random, fetches = self._run, self._value, self._random, self._fetches
        for k in range(len(values)):
            if fetches:
                for fetch in fetches[first + k]:
                    fetch()
            run()
            values[k] = loss = value.item()
            if random is not None:
                random[1] += 1
            if not -math.inf < loss < math.inf:
                return k + 1
        return len(values)


class StepwiseIntake(Intake):
    """Each batch copied to where the step is bound to, and its loss read at once."""

    def __init__(self, binding: Binding, feed: Feed) -> None:
        self._arrays, self._feed = binding.arrays, feed
        self._values = np.empty(1)

    def start(self, batch: Arrays) -> None:
        for name, array in batch.items():
            self._arrays[name][...] = array.reshape(self._arrays[name].shape)
        self._feed(0, self._values)

    def loss(self) -> float:
        return self._values.item()


def caller_arrays(program: Program, batch: int, arrays: Arrays) -> dict[str, np.ndarray]:
    """The caller's arrays by name, with constants, and, for those not given, 1 / batch and uninitialised arrays.

    Raises ValueError for an array that does not fit its buffer: compiled code would read and write beside it.
    """
    result = dict(arrays)
    for name, array in arrays.items():
        buffer = program.buffers[name]
        size = buffer.size * (batch if buffer.batched else 1)
        if array.size != size or array.dtype != buffer.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"`{name}` must be {size} contiguous {buffer.dtype} numbers, not {array.dtype} of shape {array.shape}"
            )
    for name, buffer in program.buffers.items():
        if buffer.role == "constant":
            assert buffer.data is not None
            result[name] = buffer.data
        elif name in arrays:
            continue
        elif buffer.data is not None:
            result[name] = buffer.data.copy()
        elif name == "inverse_batch":
            result[name] = np.array(1.0 / batch, program.dtype)
        else:
            result[name] = np.empty(concrete(buffer.shape, batch), buffer.dtype)
    return result


def aligned(nbytes: int) -> np.ndarray:
    """Uninitialised bytes that start at a multiple of `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def cannot_run(backend: str, operation: Operation, why: str = "") -> str:
    """The sentence for `Backend.unsupported`."""
    where = f" of {operation.label}" if operation.label else ""
    return f"backend {backend!r} cannot run the operation `{operation.name}`{where}" + (why and f", `{operation}`: {why}")
