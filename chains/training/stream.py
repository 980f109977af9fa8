"""Steps of an optimiser on batches that come from elsewhere: augmented, made ahead of time, or read from files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chains.backends import Executable, Intake
from chains.backends.base import KEPT_BINDINGS
from chains.messages import counted
from chains.network.record import Objective
from chains.optimizers import Optimizer
from chains.training.steps import Arrays, State, Steps, check_loss


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
            raise ValueError(f"`x` (a {type(source).__name__}) yields one pass only, too few for {epochs} epochs")
        self._first = next(self._begun, None)
        if self._first is None:
            raise ValueError("`x` yielded no batches")
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
                raise TypeError(f"`x` must yield batches (x, t) or (x, t, weights), got a {type(batch).__name__}")
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
    """Steps through a stream, each on a copy of its next batch.

    On a GPU, the next batch is made while a step is being done: its loss is looked at a few steps later.
    """

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
        self._intakes: dict[tuple[Any, ...], Intake] = {}  # by batch size and types
        self._intake: Intake | None = None  # the one in use
        self._unread: deque[tuple[int, int]] = deque()  # of the steps whose loss it has yet to tell: number, batch size
        self._started = 0
        self._total = 0.0  # losses of the epoch, weighted by samples
        try:
            self.per_epoch = len(stream)
        except TypeError:
            self.per_epoch = None

    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        self.optimizer_state["epoch"] += 1
        self._total, samples = 0.0, 0
        batches = self._stream.begin()
        try:
            for number, batch in enumerate(batches):
                data = self._stream.arrays(batch, number, self._started)
                with self._runner.running():
                    self._step(self._used(data), len(data["x"]))
                samples += len(data["x"])
                if tick is not None:
                    tick(1)
            with self._runner.running():
                self._read(0)
        finally:
            with self._runner.running():
                self._change(None)
            close = getattr(batches, "close", None)  # of generators, and of what has threads or files
            if close is not None:
                close()
        if not samples:
            raise ValueError(
                f"`x` yielded no batches in a later pass, after {counted(self.done, 'step')}: every pass must yield some"
            )
        return [self._total / samples]

    def _step(self, data: State, size: int) -> None:
        intake = self._intake_for(data, size)
        if intake is not self._intake:
            self._read(0)
            self._change(intake)
        self._rates.good(self._first_step + self._started)
        intake.start(data)
        self._started += 1
        self._unread.append((self._started, size))
        self._read(intake.ahead)

    def _read(self, ahead: int) -> None:
        """Add up the losses, but for those of so many last steps."""
        while len(self._unread) > ahead:
            assert self._intake is not None
            number, size = self._unread.popleft()
            loss = self._intake.loss()
            check_loss(loss, number)
            self._total += loss * size

    def _change(self, intake: Intake | None) -> None:
        """End what the intake in use has begun, and go on with another."""
        before, self._intake = self._intake, intake
        self._unread.clear()
        if before is not None:
            before.finish()

    def _intake_for(self, data: State, size: int) -> Intake:
        """What takes in batches of this size and these types."""
        key = (size, *((name, type(array), array.dtype) for name, array in data.items()))
        if key not in self._intakes:
            if len(self._intakes) >= KEPT_BINDINGS:
                self._intakes.pop(next(iter(self._intakes)))
            binding = self._runner.bind(self._program, size, self._shared)
            self._intakes[key] = self._runner.intake(binding, data)
        return self._intakes[key]
