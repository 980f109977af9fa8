"""The interface of backends. A backend binds a program to arrays and runs it. It knows operations, but no layers."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from chains.program.loop import all_operations
from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import concrete
from chains.support.memory import memory_of
from chains.support.messages import listed

Arrays = Mapping[str, np.ndarray]

# Arrays up to this size are copied to and from the private arrays of a bound program. For larger arrays, the program is
# bound again, which takes about 0.1 ms.
COPIED_BYTES = 1 << 20
TRIED_BATCH = 2  # of a bind that shows whether a backend can run a program; arrays of one sample hide strides


class UnsupportedOperationError(NotImplementedError):
    """A backend met an operation that it cannot run; the message names both."""


class FallbackWarning(UserWarning):
    """The backend "auto" gives a program to NumPy, because it cannot be compiled; the message says why.

    It is hidden by default. To show it: ``warnings.simplefilter("default", chains.FallbackWarning)``.
    """


class NumpyOnlyWarning(UserWarning):
    """NumPy runs all programs, several times slower, because llvmlite is missing or cannot be loaded; the message says why."""


warnings.simplefilter("ignore", FallbackWarning, append=True)  # appended: filters of users come first


class Binding(ABC):
    """A program bound to arrays and scratch memory at one batch size; `run` executes it."""

    program: Program
    batch: int
    arrays: dict[str, np.ndarray]  # the caller's buffers by name; the binding makes those that the caller did not give

    @abstractmethod
    def run(self) -> None:
        """Execute the program once. The backend's `running()` context must be active."""

    def __call__(self) -> None:
        """Execute the program once; no context is needed."""
        self.run()

    def release(self, names: Iterable[str]) -> bool:
        """Release the arrays of these names; `run_at` then gets others. Returns whether the binding can do that."""
        return False

    def run_at(self, arrays: Arrays) -> bool:
        """Execute the program on these arrays instead of the released ones; no context is needed. Returns whether it ran."""
        return False


class Feed(ABC):
    """A bound training step, and the data of its batches."""

    @abstractmethod
    def __call__(self, first: int, values: np.ndarray) -> int:
        """Do the steps ``first, first + 1, ...``, one for each entry of `values` (float64), and write the losses there.

        Step k takes the samples with the numbers ``order[k * batch : (k + 1) * batch]``. Without data sets, every step uses
        the arrays that the program is bound to. The backend's `running()` context must be active. Returns the number of
        steps done: it stops after a loss that is not finite.
        """

    def forget(self) -> None:
        """Drop prefetched batches: the data or their order have changed."""
        return

    def watch(self, names: Collection[str], largest: float) -> bool:
        """Look at the numbers of these data sets whenever samples of them are taken, or no more if there are no names.

        `spoiled` tells whether one was not finite, or larger than `largest`. Returns whether the feed can do that.
        """
        return not names

    @property
    def spoiled(self) -> bool:
        """Whether a number was found since `watch` that does not fit."""
        return False


class MemberFeed(ABC):
    """Bound training steps of the members of an ensemble, and the data of their batches."""

    @abstractmethod
    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Do the steps ``first, first + 1, ...`` of each of these `members` (int64), as `Feed` does for one network.

        The losses of member m are written to row m of `values` (float64). Returns the number of steps done by each member.
        """


class BatchStream(ABC):
    """A bound training step for batches that come one by one. The backend's `running()` context must be active."""

    max_unread = 0  # the number of steps whose losses may be left unread

    @abstractmethod
    def start(self, batch: Arrays) -> None:
        """Start the step on these arrays by buffer name. The arrays may be overwritten afterwards."""

    @abstractmethod
    def loss(self) -> float:
        """The loss of the first step whose loss has not been read."""

    def finish(self) -> None:  # noqa: B027 - most have nothing under way
        """End all started steps, so that the caller's arrays are up to date. Unread losses are forgotten."""


@dataclass(frozen=True)
class Single:
    """A program bound for single samples: arrays are passed and returned without the batch axis."""

    function: Callable[..., Any] | None  # as of `Backend.function`
    data: int  # the last argument of the C functions
    address: Callable[[str], int]  # of a C function, "derivative" or "integrand" (see `chains.network.bound`)
    keep: object  # objects that the functions use


class SymmetricMatrix(Protocol):
    """A symmetric matrix that is changed and multiplied in one pass, for quasi-Newton methods."""

    @property
    def array(self) -> np.ndarray:
        """The matrix, (n, n)."""
        ...

    def change(
        self, scale: float, a: np.ndarray, sign_a: float, b: np.ndarray, sign_b: float, y: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let H be scale * H + sign_a * a a' + sign_b * b b'; returns H y and H g."""
        ...


class Fitter(ABC):
    """Fits by Levenberg-Marquardt on data, from many starts."""

    @abstractmethod
    def start(self, p: np.ndarray, low: np.ndarray, high: np.ndarray, settings: dict[str, float]) -> Any:
        """Descents from the rows of `p`, which they move, within bounds (see `chains.minimize.rows`)."""


class Backend(ABC):
    """A way to execute programs. A subclass has a `name`, the operations that it has code for, and `bind`.

    Attributes
    ----------
    name : str
        For messages.
    lowered : collection of type
        The classes of operations (`chains.program.operations`) that it can run.
    dtypes : tuple of type
        The types of parameters with which it computes.
    slower : Backend, optional
        The backend for programs that this one cannot run: those that `unsupported` has a reason for, and those for which `bind`
        raises UnsupportedOperationError at batch size 2. A FallbackWarning then says why. Without it, they are refused.
    rounding : dict of float
        The error of a short computation by the name of its type, relative to the largest result. `chains.testing.check_backend`
        holds the backend to it.
    same_bits : bool
        Whether a run on the same arrays gives the same bits again.
    """

    name: str
    lowered: ClassVar[Collection[type[Operation]]] = ()
    dtypes: tuple[type[np.generic], ...] = (np.float32, np.float64)
    slower: Backend | None = None
    rounding: Mapping[str, float] = MappingProxyType({"float32": 3e-5, "float64": 1e-12})
    same_bits = True
    has_functions = False  # whether `function` ever returns one
    takes_long_orders = False  # whether a feed costs the same for any length of its order
    has_member_calls = False  # whether there is a `bind_members`
    copied_bytes = COPIED_BYTES  # larger arrays are not copied; the program is bound again instead

    def __repr__(self) -> str:
        return f"<{self.name} backend>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: give it a name by chains.backends.register, or define `__reduce__`")

    def __deepcopy__(self, memo: object) -> Backend:
        return self  # it is shared by networks

    @abstractmethod
    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        """Bind a program to the caller's arrays. Each is C-contiguous, with the type and size of its buffer.

        Missing arrays are allocated, uninitialised. `scratch` is memory to use, at least `scratch_bytes` long.
        Raises UnsupportedOperationError for an operation that the backend lacks; the message names it.
        """

    def bind_members(self, program: Program, batch: int, members: int, own: Collection[str], arrays: Arrays) -> Binding:
        """Bind a program for all members of an ensemble: a run of the binding runs it for each of them.

        The arrays that `own` names have a row for each member, the others are shared. Rows, and shared arrays, are as for
        `bind`. A backend that has this sets `has_member_calls`; members of others are called one after another.
        """
        raise NotImplementedError

    def symmetric_matrix(self, matrix: np.ndarray) -> SymmetricMatrix | None:
        """A copy of a matrix on the host that machine code changes; None if the backend has no such code."""
        return None

    def choose(self, program: Program) -> Backend:
        """The backend that runs this program: this one, or `slower`."""
        if self.slower is None or (reason := self.fallback(program)) is None:
            return self
        warnings.warn(f"{self.slower.name} runs the program '{program.name}': {reason}", FallbackWarning, stacklevel=2)
        return self.slower.choose(program)

    def fallback(self, program: Program) -> str | None:
        """The reason, a sentence, why `choose` gives a program to a slower backend; None if it does not."""
        if self.slower is None or (reason := self.unsupported(program)) is not None:
            return None if self.slower is None else reason
        try:
            self.bind(program, TRIED_BATCH, {})
        except UnsupportedOperationError as error:
            return str(error)
        return None

    def unsupported(self, program: Program) -> str | None:
        """The reason why the backend cannot run a program, a sentence with operation and layer; None if it can."""
        if program.dtype not in self.dtypes:
            types = listed(each.__name__ for each in self.dtypes)
            return f"backend {self.name!r} cannot compute in {program.dtype}, only in {types}"
        every = (*program.operations, *all_operations(program.operations))
        return next((cannot_run(self.name, each) for each in every if type(each) not in self.lowered), None)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """The program as the backend runs it, as text; with `passes`, also the program after each pass.

        The text may depend on the batch size.
        """
        return str(program)

    def about(self) -> dict[str, str]:
        """Facts about the backend for a bug report, by name."""
        return {self.name: "available"}

    def scratch_bytes(self, program: Program, batch: int) -> int:
        """The bytes of scratch memory that a program needs at a batch size."""
        return program.scratch.nbytes(batch)

    def adopted(self, array: np.ndarray) -> np.ndarray:
        """A NumPy array as an array to which programs can be bound."""
        return array

    def allocate(self, nbytes: int) -> np.ndarray:
        """Uninitialised scratch memory."""
        return aligned(nbytes)

    def function(self, binding: Binding, ins: Mapping[str, np.dtype[Any]], outs: Sequence[str]) -> Callable[..., Any] | None:
        """``function(*ins, *outs)``, the fastest way to call a small program; None if the backend has none.

        The function takes arrays with the type and shape of the program's buffers of these names, inputs also of the type
        in `ins`; None for an output makes a fresh array. It returns the value as a float, if the program has one, and the
        outputs. For arguments that do not fit it returns None. From now on only the function uses the binding; the program's
        other inputs are the arrays of the binding.
        """
        return None

    def single(self, program: Program, arrays: Arrays, ins: Sequence[str], outs: Sequence[str]) -> Single | None:
        """A program bound for single samples and one thread; None if the backend has nothing faster than batch calls.

        `arrays` are the arrays of all buffers that are in neither `ins` nor `outs`.
        """
        return None

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        """Feed a bound training step from data sets: arrays of samples by buffer name, C-contiguous.

        `order` (int64) is read at each step, so it may be shuffled between calls.
        """
        return StepwiseFeed(binding, sources, order)

    def member_feed(
        self, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray, own: Collection[str]
    ) -> MemberFeed:
        """Feed the training steps of many networks.

        The `arrays` of the program and the `sources` that `own` names have a row for each member. `orders` have a row for
        each member too, or one row for all. The rows of arrays that the program updates are updated.
        """
        return OneByOne(self, program, batch, arrays, sources, orders, own)

    def fitter(self, model: Program, value: Program, batch: int, shared: Arrays, own: Arrays) -> Fitter | None:
        """The fitter by Levenberg-Marquardt on these data, or None.

        The programs are those of `sum_of_squares` (`chains.network.record_derivatives`), the first with a matrix of the
        `matrix_shape`. Arrays that are `own` have a row for each member.
        """
        return None

    def matrix_shape(self, n: int) -> tuple[int, int] | None:
        """The rows and the row length of the matrix that the program of a model fills for `fits`; None if there are none."""
        return None

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        """Data sets for `feed`, in the memory that its steps reach fastest."""
        return {name: np.ascontiguousarray(array) for name, array in data.items()}

    def batch_stream(self, binding: Binding, like: Arrays) -> BatchStream:
        """A stream of batches for a bound training step. Their arrays have the places and types of `like`, by buffer name."""
        return StepwiseBatchStream(binding, self.feed(binding, {}, np.arange(binding.batch)))

    def join(self, comm: object) -> None:  # noqa: B027 - most need nothing
        """Make ready for programs that sum over the processes of a duplicate of a communicator, all of which call this.

        Raises ValueError, on all of them, if one cannot.
        """

    def running(self) -> AbstractContextManager[object]:
        """The context that every `Binding.run` needs; it is entered once around many runs."""
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
            gathered = target if source.dtype == target.dtype else np.empty(target.shape, source.dtype)
            for fetch, piece in zip(self._fetches, pieces, strict=True):
                if len(piece) == binding.batch:
                    fetch.append(partial(source.take, piece, 0, gathered, "clip"))  # "clip": otherwise NumPy buffers
                    if gathered is not target:
                        fetch.append(partial(np.copyto, target, gathered, "unsafe"))

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


class OneByOne(MemberFeed):
    """One binding for all members. A member's rows are copied to it before the steps; changed rows are copied back."""

    def __init__(
        self, backend: Backend, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray,
        own: Collection[str],
    ) -> None:  # fmt: skip
        everything = {**arrays, **sources}
        self._rows = {name: everything[name] for name in own if name in everything}
        self._at = {name: memory_of(rows).array(rows[0]) for name, rows in self._rows.items()}
        self._updated = updated(program, self._rows)
        self._orders, self._order = orders, orders[0].copy()
        binding = backend.bind(program, batch, {name: self._at.get(name, array) for name, array in arrays.items()})
        self._feed = backend.feed(binding, {name: self._at.get(name, array) for name, array in sources.items()}, self._order)

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        done = np.zeros(len(members), np.int64)
        for position, member in enumerate(members):
            for name, rows in self._rows.items():
                memory_of(rows).assign(self._at[name], rows[member])
            self._order[:] = self._orders[member if len(self._orders) > 1 else 0]
            self._feed.forget()
            losses = np.empty(values.shape[1])
            done[position] = self._feed(first, losses)
            values[member] = losses
            for name in self._updated:
                memory_of(self._rows[name]).assign(self._rows[name][member, ...], self._at[name])
        return done


def updated(program: Program, own: Collection[str]) -> list[str]:
    """The names in `own` of the arrays that a step changes: the program's state, and the number of the random draw."""
    return [name for name in own if name == "random" or (name in program.buffers and program.buffers[name].role == "state")]


class StepwiseBatchStream(BatchStream):
    """Copies each batch to the arrays of the bound step, and reads its loss immediately."""

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
    """The caller's arrays and the constants by name. Missing arrays are made: 1 / batch, and uninitialised ones.

    Raises ValueError for an array that does not fit its buffer: compiled code would read and write out of bounds.
    """
    check_arrays(program, batch, arrays)
    result = dict(arrays)
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


def check_arrays(program: Program, batch: int, arrays: Arrays) -> None:
    """Raise ValueError for an array that does not fit its buffer."""
    for name, array in arrays.items():
        buffer = program.buffers[name]
        size = buffer.size * (batch if buffer.batched else 1)
        if array.size != size or array.dtype != buffer.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"`{name}` must be {size} contiguous {buffer.dtype} numbers, not {array.dtype} of shape {array.shape}"
            )


def aligned(nbytes: int) -> np.ndarray:
    """Uninitialised bytes that start at a multiple of `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def cannot_run(backend: str, operation: Operation, why: str = "") -> str:
    """The sentence for `Backend.unsupported`."""
    where = f" of {operation.label}" if operation.label else ""
    return f"backend {backend!r} cannot run the operation `{operation.name}`{where}" + (why and f", `{operation}`: {why}")
