"""Training steps, bound to the parameters once. They keep their position: the epoch, and the step within it."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.optimizers import Optimizer
from chains.support.memory import memory_of, on_host
from chains.training.finite import Rates, check_loss, check_parameters
from chains.training.history import Position
from chains.training.identity import data_of
from chains.training.optimizer_state import State

Arrays = Mapping[str, np.ndarray]
START = Position()
RUN_SECONDS = 0.05  # the time of steps between two checks for Ctrl-C
UNLIMITED_STEPS = 1 << 62  # more than any run has


class Steps(ABC):
    """A recorded training step, bound to the arrays that all steps share; subclasses provide the batches.

    `trained` are the arrays to update in place: the parameters and the network's state, if any. `optimizer_state` is updated
    in place too. Steps go on at `position`, in the epoch given by the state's count of epochs. `data` are the settings that
    decide the batches, as in `chains.training.identity`.
    """

    per_epoch: int | None  # steps an epoch, where that is known
    finished = False  # whether all steps of the epoch are done
    known = 0  # steps of this call whose losses are known
    loss: Any = 0.0  # of the last of these; of an ensemble, shape (members,)
    advice = ""  # of the network's layers, where a loss is not finite

    def __init__(
        self,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        *,
        seed: int | Sequence[int],
        optimizer_state: State,
        position: Position = START,
        data: Mapping[str, Any],
    ) -> None:
        p = trained["p"]
        self.data = dict(data)
        self.optimizer_state = optimizer_state
        self.epoch = int(optimizer_state["epoch"])  # finished, in all calls
        self.step = position.step  # done in the epoch
        self.done = 0  # in this call
        self.allowed: AbstractContextManager[object] = nullcontext()  # entered where users' functions run
        place = memory_of(p)
        counts = on_host(optimizer_state["step"])
        self._first_step = int(counts.max())
        self._rates = Rates(optimizer)
        self._runner, self._program = executable.backend, executable.program
        random = np.stack(np.broadcast_arrays(np.array(seed, np.uint64), counts.astype(np.uint64)), axis=-1)
        own = {"value": place.contiguous(np.zeros((), p.dtype)), "random": place.contiguous(random)}
        self._shared = self._used({**trained, **own, **optimizer_state, **executable.settings})

    def _used(self, arrays: Arrays) -> State:
        """The arrays for which the program has a buffer."""
        return {name: array for name, array in arrays.items() if name in self._program.buffers}

    @property
    def total(self) -> int:
        """The number of steps done in all calls."""
        return self._first_step + self.done

    @property
    def counted(self) -> int:
        """The steps that the program did in this call: on a GPU a few more than are known, after a loss that is not finite."""
        return int(self.optimizer_state["step"].max()) - self._first_step

    @abstractmethod
    def advance(self, epochs: int, steps: int) -> int:
        """Do the next steps for about `RUN_SECONDS`: at most `steps` of them, and at most to the end of the epoch.

        If an epoch is one step on all samples, up to `epochs` epochs are done. Returns the number of steps done. Stops after a
        loss that is not finite and leaves it to the caller. Raises FloatingPointError before a step whose learning rate is
        negative or not finite.
        """

    @property
    def sound(self) -> bool:
        """Whether the last loss is finite."""
        return math.isfinite(self.loss)

    def check(self) -> None:
        """Raise FloatingPointError where the last loss is not finite."""
        check_loss(self.loss, self.known, self.advice)

    def check_parameters(self, p: np.ndarray) -> None:
        """Raise FloatingPointError where the last step has made a parameter infinite or NaN."""
        check_parameters(p, self.done)

    def take(self) -> list[float]:
        """Return the mean losses of the finished epochs, and begin the next epoch."""
        losses = self._means()
        self.epoch += len(losses)
        self.optimizer_state["epoch"] += len(losses)
        self.step, self.finished = 0, False
        return losses

    @abstractmethod
    def _means(self) -> list[float]:
        """The mean losses of the finished epochs."""

    @abstractmethod
    def position(self, seconds: float = 0.0) -> Position:
        """The position within the epoch, after so many seconds of training."""

    def settle(self) -> None:  # noqa: B027 - most have nothing under way
        """Bring the trained arrays up to date."""

    def close(self) -> None:
        """End what is under way, with the trained arrays up to date."""
        self.settle()


class ArraySteps(Steps):
    """Steps through a data set in batches; `data` are the checked arrays by buffer name.

    The order of an epoch depends only on the seed and the number of the epoch.
    """

    def __init__(
        self,
        data: Arrays,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        *,
        batch_size: int,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | Sequence[int],
        optimizer_state: State,
        position: Position = START,
        samples: int | None = None,
    ) -> None:
        self._samples = len(data["x"]) if samples is None else samples
        settings = data_of(self._samples, batch_size, drop_last, shuffle, seed)
        super().__init__(
            executable, trained, optimizer, seed=seed, optimizer_state=optimizer_state, position=position, data=settings
        )
        self._seed, self._shuffle = seed, shuffle
        self._whole_batch = batch_size == self._samples
        self._sorted = np.arange(self._samples)
        self._order = self._unordered()
        self._ordered = -1  # the epoch whose order it is
        place = memory_of(trained["p"])
        data = self._used(data)
        if self._whole_batch:  # bound as they are: nothing to fetch
            kinds = {name: self._program.buffers[name].dtype for name in data}
            self._shared |= {name: place.contiguous(array, kinds[name]) for name, array in data.items()}
            data = {}
        data = self._runner.sources(data)
        full, rest = divmod(self._samples, batch_size)
        self._parts = [self._part(data, batch_size, 0, full)]
        if rest and not drop_last:
            self._parts.append(self._part(data, rest, full, 1))
        self.per_epoch = self._parts[-1].stop
        if self.step > self.per_epoch:
            raise ValueError(f"`resume.position.step` must be at most {self.per_epoch}, an epoch's steps, got {self.step}")
        self._between = Position(data=self.data)  # two epochs
        self._losses = np.empty((*self._rows, self.per_epoch))  # of the epoch's steps
        self._losses[..., : self.step] = position.losses if self.step else np.nan
        self.finished = self.step == self.per_epoch
        self._chunks, self._batch_size = executable.chunks, batch_size
        self._chunk = max(1, self._chunks.get(batch_size, 0) // 4)  # steps between two looks at the clock

    @property
    def _rows(self) -> tuple[int, ...]:
        """The axes of losses in front of that of the steps."""
        return ()

    def _unordered(self) -> np.ndarray:
        """Memory for the order of an epoch."""
        return self._sorted.copy()

    def _part(self, data: State, batch: int, first: int, steps: int) -> _Part:
        start = self._parts[0].batch * first if first else 0
        return _Part(self._feed_of(data, batch, slice(start, start + steps * batch)), batch, first, first + steps)

    def _feed_of(self, data: State, batch: int, order: slice) -> Any:
        """The feed that does the steps of a part."""
        return self._runner.feed(self._runner.bind(self._program, batch, self._shared), data, self._order[order])

    def advance(self, epochs: int, steps: int) -> int:
        if self.finished:
            return 0
        if self._whole_batch:
            losses = np.empty((*self._rows, min(epochs, steps, self._chunk)))
            self._losses = losses[..., : self._do(self._parts[0].feed, 0, losses)]
            self.step = self._losses.shape[-1]
            self.finished = True
            return self.step
        self._arrange()
        done = 0
        for part in self._parts:
            while self.step < part.stop and done < steps:
                asked = min(self._chunk, part.stop - self.step, steps - done)
                did = self._do(part.feed, self.step - part.first, self._losses[..., self.step : self.step + asked])
                self.step += did
                done += did
                self.finished = self.step == self.per_epoch
                if self.step < part.stop or not self.sound:
                    return done
        return done

    def _do(self, feed: Any, first: int, losses: np.ndarray) -> int:
        """Do one step of a part for each entry of `losses`, or fewer, and fill in the losses. Returns the number of steps."""
        count = self._rates.good(self._first_step + self.done, losses.shape[-1])
        start = time.perf_counter()
        with self._runner.running():
            done = self._run(feed, first, losses[..., :count])
        elapsed = time.perf_counter() - start
        self.done += done
        self.known = self.done
        self.loss = losses[..., done - 1].copy() if self._rows else float(losses[done - 1])
        self._chunk = self._chunks[self._batch_size] = max(1, min(16 * self._chunk, int(done * RUN_SECONDS / (elapsed + 1e-9))))
        return done

    def _run(self, feed: Any, first: int, losses: np.ndarray) -> int:
        """Do steps for these losses."""
        done: int = feed(first, losses)
        return done

    def _arrange(self) -> None:
        """Put the samples in the order of the epoch."""
        if self._shuffle and self._ordered != self.epoch:
            self._order[...] = self._sorted
            self._shuffle_all()
            self._ordered = self.epoch

    def _shuffle_all(self) -> None:
        """Shuffle the samples, which are in their own order, by the seed and the epoch."""
        np.random.default_rng([self._seed, self.epoch]).shuffle(self._order)

    def _means(self) -> list[float]:
        if self._whole_batch:
            return self._losses.tolist()  # one or more epochs
        total: Any = sum(self._losses[..., part.first : part.stop].sum(-1) * part.batch for part in self._parts)
        mean = total / sum((part.stop - part.first) * part.batch for part in self._parts)
        return [mean if self._rows else float(mean)]

    def position(self, seconds: float = 0.0) -> Position:
        if not self.step and not seconds:
            return self._between
        losses = self._losses[..., : self.step].copy() if self.step else START.losses
        return Position(self.step, losses, None, self.data, seconds)


@dataclass
class _Part:
    """A part of an epoch: its steps from `first` to `stop` have batches of one size."""

    feed: Any  # a `Feed`, or a `MemberFeed`
    batch: int
    first: int
    stop: int
