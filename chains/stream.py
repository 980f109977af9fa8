"""Steps of an optimiser on batches that come from elsewhere: augmented, made ahead of time, or read from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from chains.backends import Executable, Feed
from chains.backends.base import KEPT_BINDINGS
from chains.backends.places import place_of
from chains.optimizers import Optimizer
from chains.record import Objective
from chains.steps import Arrays, State, Steps, check_loss
from chains.words import counted


class Stream:
    """A source of batches, (x, t) or (x, t, weights): every pass over it is an epoch.

    `problem` turns a batch into arrays by buffer name and what is minimised, the same for all, or refuses it. The first
    batch is taken at once, since its shapes decide the program. Raises TypeError or ValueError where that cannot be.
    """

    def __init__(self, source: Iterable[Any], problem: Callable[..., tuple[State, Objective]], epochs: int) -> None:
        self.source = source
        self._problem = problem
        self._begun: Iterator[Any] | None = iter(source)
        if self._begun is source and epochs > 1:
            raise ValueError(f"`x` (a {type(source).__name__}) gives one pass only, but {epochs} epochs are wanted")
        self._first = next(self._begun, None)
        if self._first is None:
            raise ValueError("`x` gives no batch, and at least one is wanted")
        self.objective = self._unpacked(self._first, "in the first batch")[1]

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # a TypeError where it has no length

    def arrays(self, batch: Any, number: int, done: int) -> State:
        """The arrays of a batch by buffer name. Raises TypeError or ValueError, saying which it is, where it does not fit."""
        data, objective = self._unpacked(batch, f"in batch {number} of a pass, after {counted(done, 'step')}")
        if objective != self.objective:
            raise ValueError(f"the targets or weights of batch {number} have another shape than those of the first one")
        return data

    def _unpacked(self, batch: Any, where: str) -> tuple[State, Objective]:
        try:
            if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
                raise TypeError(f"`x` gives a {type(batch).__name__}, but batches (x, t) or (x, t, weights) are wanted")
            return self._problem(*batch)
        except (TypeError, ValueError) as error:
            error.add_note(where)
            raise

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
        self._first = [first]  # no itertools.chain: it would keep the first batch in memory
        self._rest = rest
        self.close = getattr(rest, "close", lambda: None)

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._rest)


class StreamSteps(Steps):
    """Steps through a stream, each on a copy of its next batch."""

    def __init__(
        self,
        stream: Stream,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        *,
        seed: int,
        optimizer_state: State | None,
    ) -> None:
        super().__init__(executable, trained, optimizer, seed=seed, optimizer_state=optimizer_state)
        self._stream = stream
        self._bound: dict[int, tuple[Arrays, Feed]] = {}  # by batch size
        self._values = np.empty(1)
        self._place = place_of(trained["p"])
        try:
            self.per_epoch = len(stream)
        except TypeError:
            self.per_epoch = None

    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        self.optimizer_state["epoch"] += 1
        total, samples = 0.0, 0
        batches = self._stream.begin()
        try:
            for number, batch in enumerate(batches):
                data = self._stream.arrays(batch, number, self.done)
                total += self._step(data) * len(data["x"])
                samples += len(data["x"])
                if tick is not None:
                    tick(1)
        finally:
            close = getattr(batches, "close", None)  # of generators, and of what has threads or files
            if close is not None:
                close()
        if not samples:
            raise ValueError(
                f"`x` gives no batch in a later pass, after {counted(self.done, 'step')}: every pass must give batches"
            )
        return [total / samples]

    def _step(self, data: State) -> float:
        arrays, feed = self._binding(len(data["x"]))
        for name, array in self._used(data).items():
            self._place.assign(arrays[name], array)
        with self._runner.running():
            feed(0, self._values)
        loss = self._values.item()
        check_loss(loss, self.done)
        return loss

    def _binding(self, size: int) -> tuple[Arrays, Feed]:
        """The arrays to copy a batch of this size to, and the feed that does the step."""
        if size not in self._bound:
            if len(self._bound) >= KEPT_BINDINGS:
                self._bound.pop(next(iter(self._bound)))
            binding = self._runner.bind(self._program, size, self._shared)
            self._bound[size] = binding.arrays, self._runner.feed(binding, {}, np.arange(size))
        return self._bound[size]
