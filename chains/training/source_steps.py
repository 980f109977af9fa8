"""Training steps on the batches of a source: augmented, made ahead of time, or read from files."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.backends.base import BatchStream
from chains.backends.executable import KEPT_BINDINGS
from chains.optimizers import Optimizer
from chains.support.messages import counted
from chains.training.batches import SourceBatches
from chains.training.history import START, Position
from chains.training.optimizer_state import State
from chains.training.steps import RUN_SECONDS, Arrays, TrainingSteps

_END = object()


class SourceSteps(TrainingSteps):
    """Steps through a source, each on a copy of its next batch. Users' functions that make batches run in the context
    `allowed`.

    On a GPU, the next batch is made during a step; the loss of a step is read a few steps later.
    """

    def __init__(
        self, batches: SourceBatches, executable: Executable, trained: Arrays, optimizer: Optimizer, optimizer_state: State,
        position: Position, *, advice: str, allowed: AbstractContextManager[object],
    ) -> None:  # fmt: skip
        super().__init__(batches, executable, trained, optimizer, optimizer_state, position, advice)
        self._source, self._allowed = batches, allowed
        self._begun = False  # the pass of this epoch
        self._batches: Iterator[Any] | None = None  # that pass, while it is under way
        self._bound_steps: dict[tuple[Any, ...], BatchStream] = {}  # by batch size and types
        self._bound_step: BatchStream | None = None  # the one in use
        self._unread: deque[tuple[int, int]] = deque()  # steps whose loss has not been read: number, batch size
        self._total, self._samples = map(float, position.losses if self.step else (0, 0))  # losses weighted by samples
        try:
            self.per_epoch = len(batches.source)
        except TypeError:
            self.per_epoch = None

    def advance(self, epochs: int, steps: int, chunk: int | None = None) -> int:
        before, end = self.done, time.perf_counter() + RUN_SECONDS
        while not self.finished and self.done - before < steps:
            with self._allowed:
                if self._batches is None:
                    self._begun = True
                    self._batches = self._source.begin()
                batch = next(self._batches, _END)
                if batch is not _END:
                    data = self._source.arrays_of(batch, self.step, self.done)
            if batch is _END:
                self._end()
                break
            size = len(data["x"])
            with self._backend.running():
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
        """End the pass, after its last batch."""
        self.flush()
        self._leave()
        if not self.step:
            raise ValueError(
                f"`x` yielded no batches in a later pass, after {counted(self.done, 'step')}: every pass must yield some"
            )
        self.finished = True

    def flush(self) -> None:
        with self._backend.running():
            self._read(0)
            self._change(None)

    def close(self) -> None:
        self.flush()
        self._leave()

    def _leave(self) -> None:
        """Leave the current pass."""
        batches, self._batches = self._batches, None
        close = getattr(batches, "close", None)  # of generators, and of what has threads or files
        if close is not None:
            close()

    def _read(self, max_unread: int) -> None:
        """Add up the losses, but stop at one that is not finite; at most `max_unread` of the last steps stay unread."""
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
            binding = self._backend.bind(self._program, size, self._shared)
            self._bound_steps[key] = self._backend.batch_stream(binding, data)
        return self._bound_steps[key]

    def _means(self) -> list[float]:
        mean = self._total / self._samples
        self._total = self._samples = 0.0
        self._begun = False
        return [mean]

    def position(self, seconds: float = 0.0) -> Position:
        epoch = self._source.epoch if self._begun else self._source.next_epoch
        losses = np.array([self._total, self._samples]) if self.step else START.losses
        return Position(self.step, losses, epoch, self.settings, seconds)
