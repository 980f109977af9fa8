"""Steps of an optimiser on batches that come from elsewhere: augmented, made ahead of time, or read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from chains.backends import Backend, Feed
from chains.optimizers import Optimizer
from chains.program import Program
from chains.steps import Arrays, State, check_loss, checked_state, start_state


class Stream:
    """A source of batches, (x, t) or (x, t, weights): every pass over it is an epoch.

    `check` turns a batch into arrays by buffer name, or refuses it. The first batch is taken at once, since its shapes
    decide the program. Raises TypeError or ValueError where that cannot be.
    """

    def __init__(self, source: Iterable[Any], check: Callable[..., Arrays], epochs: int) -> None:
        self.source = source
        self._check = check
        self._begun: Iterator[Any] | None = iter(source)
        if self._begun is source and epochs > 1:
            raise ValueError(f"`x` (a {type(source).__name__}) gives one pass only, but {epochs} epochs are wanted")
        self._first = next(self._begun, None)
        if self._first is None:
            raise ValueError("`x` gives no batch, and at least one is wanted")
        self.checked(self._first)

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # a TypeError where it has no length

    def checked(self, batch: Any) -> Arrays:
        """The arrays of a batch by buffer name. Raises TypeError or ValueError where it does not fit."""
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            raise TypeError(f"`x` gives a {type(batch).__name__}, but batches (x, t) or (x, t, weights) are wanted")
        return self._check(*batch)

    def begin(self) -> Iterator[Any]:
        """The batches of an epoch; the first epoch goes on from the batch already taken."""
        if self._begun is None:
            return iter(self.source)
        begun = _Resumed(self._first, self._begun)
        self._first = self._begun = None
        return begun


class _Resumed(Iterator[Any]):
    """An iterator with the item it gave already put back."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._items = chain([first], rest)
        self.close = getattr(rest, "close", lambda: None)

    def __next__(self) -> Any:
        return next(self._items)


class StreamSteps:
    """A recorded training step going through a stream: what `Steps` is for a data set."""

    whole_batch = False

    def __init__(
        self,
        runner: Backend,
        program: Program,
        p: np.ndarray,
        stream: Stream,
        optimizer: Optimizer,
        *,
        seed: int,
        state: State | None,
    ) -> None:
        self.state = start_state(optimizer, p) if state is None else checked_state(state, optimizer, p)
        self._first_step = int(self.state["step"])
        self._runner = runner.choose(program)
        self._program = program
        self._stream = stream
        self._shared = {"p": p, "value": np.zeros((), p.dtype), **self.state}
        self._shared["random"] = np.array([seed, self.state["step"]], np.uint64)
        self._shared = {name: array for name, array in self._shared.items() if name in program.buffers}
        self._bound: dict[int, tuple[Arrays, Feed]] = {}  # by batch size
        self._values = np.empty(1)
        try:
            self.per_epoch: int | None = len(stream)
        except TypeError:
            self.per_epoch = None

    @property
    def done(self) -> int:
        """How many steps were done; the program itself counts them."""
        return int(self.state["step"]) - self._first_step

    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        """Go through the stream once; the mean loss. Raises FloatingPointError where a loss is not finite."""
        self.state["epoch"] += 1
        total, samples = 0.0, 0
        batches = self._stream.begin()
        try:
            for number, batch in enumerate(batches):
                try:
                    data = self._stream.checked(batch)
                except (TypeError, ValueError) as error:
                    error.add_note(f"in batch {number} of a pass, after {self.done} steps")
                    raise
                total += self._step(data) * len(data["x"])
                samples += len(data["x"])
                if tick is not None:
                    tick(1)
        finally:
            close = getattr(batches, "close", None)  # of generators, and of what has threads or files
            if close is not None:
                close()
        if not samples:
            raise ValueError(f"`x` gives no batch in a later pass, after {self.done} steps: every pass must give batches")
        return [total / samples]

    def _step(self, data: Arrays) -> float:
        size = len(data["x"])
        if size not in self._bound:
            binding = self._runner.bind(self._program, size, self._shared)
            self._bound[size] = binding.arrays, self._runner.feed(binding, {}, np.arange(size))
        arrays, feed = self._bound[size]
        for name, array in data.items():
            if name in self._program.buffers:
                np.copyto(arrays[name], array, "unsafe")
        with self._runner.running():
            feed(0, self._values)
        loss = self._values.item()
        check_loss(loss, self.done)
        return loss
