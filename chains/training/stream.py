"""Training steps on batches from a source: augmented, made ahead of time, or read from files."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from chains.backends import BatchStream, Executable
from chains.backends.executable import KEPT_BINDINGS
from chains.data.batches import pass_from
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.support.checks import whole
from chains.support.messages import counted
from chains.training.history import Position
from chains.training.optimizer_state import State
from chains.training.steps import RUN_SECONDS, START, Arrays, Steps

_END = object()


class Stream:
    """A source of batches, (x, t) or (x, t, weights): every pass over it is an epoch.

    `problem` turns a batch into arrays by buffer name and the criterion, the same for all batches, or refuses it. The first
    batch is taken at once: its shapes decide the program. A stream goes on at `position`, after the batches already seen; if
    the source counts its passes in an attribute `epoch`, in the pass of that number. Raises TypeError or ValueError if that
    is impossible.
    """

    def __init__(
        self,
        source: Iterable[Any],
        problem: Callable[..., tuple[State, Criterion]],
        epochs: int,
        position: Position = START,
    ) -> None:
        self.source = source
        self._problem = problem
        if position.source_epoch is not None and source_epoch(source) is not None:
            source.epoch = position.source_epoch  # type: ignore[attr-defined]
        self.epoch = source_epoch(source)  # the number of the last pass begun, if the source counts passes
        seen = position.step
        self._begun: Iterator[Any] | None = pass_from(source, max(0, seen - 1))
        if self._begun is source and epochs > 1:
            raise ValueError(f"`x` (a {type(source).__name__}) yields one pass only, too few for {epochs} epochs")
        first = next(self._begun, None)
        if first is None:
            raise ValueError("`x` yielded no batches")
        self.objective = self._unpacked(first, "in the first batch")[1]
        self._first = [] if seen else [first]  # the last one seen has told the shapes, and is not trained on again

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # a TypeError where it has no length

    @property
    def next_epoch(self) -> int | None:
        """The number of the pass that `begin` gives."""
        return source_epoch(self.source) if self._begun is None else self.epoch

    def arrays(self, batch: Any, number: int, done: int) -> State:
        """The arrays of a batch by buffer name. Raises TypeError or ValueError, with its number, if it does not fit."""
        data, objective = self._unpacked(batch, f"in batch {number} of a pass, after {counted(done, 'step')}")
        if objective != self.objective:
            raise ValueError(f"the targets or weights of batch {number} have another shape than those of the first one")
        return data

    def _unpacked(self, batch: Any, where: str) -> tuple[State, Criterion]:
        try:
            if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
                raise TypeError(f"`x` must yield batches (x, t) or (x, t, weights), got a {type(batch).__name__}")
            return self._problem(*batch)
        except (TypeError, ValueError) as error:
            error.add_note(where)
            raise

    def begin(self) -> Iterator[Any]:
        """The batches of an epoch; the first epoch goes on from the batch already taken."""
        if self._begun is None:
            self.epoch = source_epoch(self.source)
            return iter(self.source)
        begun = _Resumed(self._first, self._begun)
        self._first, self._begun = [], None
        return begun


def source_epoch(source: Any) -> int | None:
    """The number of the next pass over a source, if it counts its passes in an attribute `epoch`."""
    return whole(getattr(source, "epoch", None), 0)


class _Resumed(Iterator[Any]):
    """An iterator with its first item, if taken, put back."""

    def __init__(self, first: list[Any], rest: Iterator[Any]) -> None:
        self._first = first  # no itertools.chain: it would keep the first batch in memory
        self._rest = rest
        self.close = getattr(rest, "close", lambda: None)

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._rest)


class StreamSteps(Steps):
    """Steps through a stream, each on a copy of its next batch.

    On a GPU, the next batch is made during a step; the loss of a step is read a few steps later.
    """

    def __init__(
        self,
        stream: Stream,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        *,
        seed: int,
        optimizer_state: State,
        position: Position = START,
        data: Mapping[str, Any],
    ) -> None:
        super().__init__(
            executable, trained, optimizer, seed=seed, optimizer_state=optimizer_state, position=position, data=data
        )
        self._stream = stream
        self._begun = False  # the pass of this epoch
        self._batches: Iterator[Any] | None = None  # that pass, while it is under way
        self._bound_steps: dict[tuple[Any, ...], BatchStream] = {}  # by batch size and types
        self._bound_step: BatchStream | None = None  # the one in use
        self._unread: deque[tuple[int, int]] = deque()  # of the steps whose loss it has yet to tell: number, batch size
        self._total, self._samples = map(float, position.losses if self.step else (0, 0))  # losses weighted by samples
        try:
            self.per_epoch = len(stream)
        except TypeError:
            self.per_epoch = None

    def advance(self, epochs: int, steps: int) -> int:
        before, end = self.done, time.perf_counter() + RUN_SECONDS
        while not self.finished and self.done - before < steps:
            with self.allowed:
                if self._batches is None:
                    self._begun = True
                    self._batches = self._stream.begin()
                batch = next(self._batches, _END)
                if batch is not _END:
                    data = self._stream.arrays(batch, self.step, self.done)
            if batch is _END:
                self._end()
                break
            size = len(data["x"])
            with self._runner.running():
                self._do(self._used(data), size)
            del batch, data  # free the memory before the next one is made
            self.step += 1
            self._samples += size
            if not math.isfinite(self.loss) or time.perf_counter() > end:
                break
        return self.done - before

    def _do(self, data: State, size: int) -> None:
        """Do the next step, and read the known losses of earlier steps."""
        bound = self._bound_step_for(data, size)
        if bound is not self._bound_step:
            self._read(0)
            self._change(bound)
        self._rates.good(self._first_step + self.done)
        bound.start(data)
        self.done += 1
        self._unread.append((self.done, size))
        self._read(bound.max_unread)

    def _end(self) -> None:
        """End the pass, behind its last batch."""
        self.settle()
        self._leave()
        if not self.step:
            raise ValueError(
                f"`x` yielded no batches in a later pass, after {counted(self.done, 'step')}: every pass must yield some"
            )
        self.finished = True

    def settle(self) -> None:
        with self._runner.running():
            self._read(0)
            self._change(None)

    def close(self) -> None:
        self.settle()
        self._leave()

    def _leave(self) -> None:
        """Leave the current pass."""
        batches, self._batches = self._batches, None
        close = getattr(batches, "close", None)  # of generators, and of what has threads or files
        if close is not None:
            close()

    def _read(self, max_unread: int) -> None:
        """Add up the losses, up to one that is not finite; at most `max_unread` of the last steps stay unread."""
        while len(self._unread) > max_unread and math.isfinite(self.loss):
            assert self._bound_step is not None
            self.known, size = self._unread.popleft()
            self.loss = self._bound_step.loss()
            self._total += self.loss * size

    def _change(self, bound: BatchStream | None) -> None:
        """End the steps of the current bound step, and continue with another."""
        before, self._bound_step = self._bound_step, bound
        self._unread.clear()
        if before is not None:
            before.finish()

    def _bound_step_for(self, data: State, size: int) -> BatchStream:
        """The bound step for batches of this size and these types."""
        key = (size, *((name, type(array), array.dtype) for name, array in data.items()))
        if key not in self._bound_steps:
            if len(self._bound_steps) >= KEPT_BINDINGS:
                self._bound_steps.pop(next(iter(self._bound_steps)))
            binding = self._runner.bind(self._program, size, self._shared)
            self._bound_steps[key] = self._runner.batch_stream(binding, data)
        return self._bound_steps[key]

    def _means(self) -> list[float]:
        mean = self._total / self._samples
        self._total = self._samples = 0.0
        self._begun = False
        return [mean]

    def position(self, seconds: float = 0.0) -> Position:
        epoch = self._stream.epoch if self._begun else self._stream.next_epoch
        losses = np.array([self._total, self._samples]) if self.step else START.losses
        return Position(self.step, losses, epoch, self.data, seconds)
