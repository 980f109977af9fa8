"""Training steps, bound to the parameters once. They keep their position: the epoch, and the step within it.

One network, the members of an ensemble and several processes share this code. They differ in the number of rows of parameters,
and in the samples of a batch that belong to this process: `MemberSteps` and `DividedSteps`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.expr.formulas import Replay, traced
from chains.network.agreement import part_arrays
from chains.optimizers import Optimizer
from chains.support import arguments
from chains.support.caching import lazy
from chains.support.memory import HOST, memory_of, on_host
from chains.support.messages import shown
from chains.support.streams import Streams
from chains.training.batches import ArrayBatches, MemberBatches, SourceBatches
from chains.training.ensemble_history import EnsembleHistory
from chains.training.history import START, Position
from chains.training.optimizer_state import State

Arrays = Mapping[str, np.ndarray]
RUN_SECONDS = 0.05  # the time of steps between two checks for Ctrl-C
UNLIMITED_STEPS = 1 << 62  # more than any run has
MAX_SAMPLES_AHEAD = 1 << 15  # in the orders of epochs that are done together, of all members
RATES_AT_ONCE = 1000  # steps whose learning rates are computed together


class TrainingSteps(ABC):
    """A recorded training step, bound to the arrays that all steps share; subclasses take the `batches`.

    `trained` are the arrays to update in place: the parameters and the network's state, if any. `optimizer_state` is updated in
    place too. Steps continue at `position`, in the epoch given by the state's count of epochs. `advice` is the text of the
    network's layers for a loss that is not finite.
    """

    per_epoch: int | None  # steps an epoch, where that is known
    finished = False  # whether all steps of the epoch are done
    known = 0  # steps of this call whose losses are known
    done = 0  # steps of this call
    loss: Any = 0.0  # of the last known step; of an ensemble, shape (members,)
    chunk = 1  # steps between two looks at the clock
    _begun_steps = 0  # steps of the epoch after the finished ones
    unchecked: Collection[str] = ()  # the names of data whose numbers are checked in the first epoch, until its end
    spoiled = False  # whether a number was found among them that is not finite or too large

    def __init__(
        self, batches: ArrayBatches | SourceBatches, executable: Executable, trained: Arrays, optimizer: Optimizer,
        optimizer_state: State, position: Position, advice: str,
    ) -> None:  # fmt: skip
        p = trained["p"]
        self.settings = position.data or batches.settings
        self.optimizer_state = optimizer_state
        self.epoch = int(optimizer_state["epoch"])  # finished, in all calls
        self.step = position.step  # done in the epoch
        self._advice = advice
        memory = memory_of(p)
        counts = on_host(optimizer_state["step"])
        self._first_step = int(counts.max())
        self._rates = Rates(optimizer)
        self._backend, self._program = executable.backend, executable.program
        random = np.empty((*counts.shape, 2), np.uint64)
        random[..., 0], random[..., 1] = batches.seeds, counts
        own = {"value": memory.contiguous(np.zeros((), p.dtype)), "random": memory.contiguous(random)}
        self._shared = self._used({**trained, **own, **optimizer_state, **executable.settings})

    def _used(self, arrays: Arrays) -> State:
        """The arrays for which the program has a buffer."""
        buffers = self._program.buffers
        return {name: array for name, array in arrays.items() if name in buffers}

    @property
    def total(self) -> int:
        """The number of steps done in all calls."""
        return self._first_step + self.done

    @property
    def counted(self) -> int:
        """The steps that the program did in this call: on a GPU a few more than are known, after a loss that is not finite."""
        return int(self.optimizer_state["step"].max()) - self._first_step

    @abstractmethod
    def advance(self, epochs: int, steps: int, chunk: int | None = None) -> int:
        """Do the next steps for about `RUN_SECONDS`: at most `steps` of them, and not beyond the end of the epoch.

        Of short epochs, up to `epochs` are done together. Returns the number of steps done, not more than `chunk` of one batch
        size. Stops after a loss that is not finite and leaves it to the caller. Raises FloatingPointError
        before a step whose learning rate is negative or not finite.
        """

    @property
    def sound(self) -> bool:
        """Whether the last loss is finite; of an ensemble, whether a member still trains."""
        return math.isfinite(self.loss)

    def check(self) -> None:
        """Raise FloatingPointError if the last loss is not finite."""
        if not self.sound:
            raise FloatingPointError(loss_text(self.loss, self.known, self._advice))

    def check_parameters(self, p: np.ndarray) -> None:
        """Raise FloatingPointError if the last step has made a parameter infinite or NaN."""
        if text := parameter_text(p, self.done):
            raise FloatingPointError(text)

    def take(self) -> list[Any]:
        """Return the mean losses of the finished epochs, and begin the next epoch."""
        losses = self._means()
        self.epoch += len(losses)
        self.optimizer_state["epoch"] += len(losses)
        self.step, self.finished, self._begun_steps = self._begun_steps, False, 0
        return losses

    @abstractmethod
    def _means(self) -> list[Any]:
        """The mean losses of the finished epochs."""

    @abstractmethod
    def position(self, seconds: float = 0.0) -> Position:
        """The position within the epoch, after this many `seconds` of training."""

    def flush(self) -> None:  # noqa: B027 - most have nothing under way
        """Bring the trained arrays up to date."""

    def close(self) -> None:
        """End the current part, with the trained arrays up to date."""
        self.flush()


@dataclass
class _Part:
    """A part of an epoch: its steps from `first` to `stop` have batches of one size."""

    feed: Any  # a `Feed`, or a `MemberFeed`
    batch: int
    first: int
    stop: int
    share: np.ndarray  # the samples of this process, in the order of the epoch


_Ahead = tuple[Any, np.ndarray]  # a feed, and the orders that it reads


class ArraySteps(TrainingSteps):
    """Steps through arrays in batches. The order of an epoch depends only on the seed and the number of the epoch.

    These are the steps of one network on this process. Subclasses are for members, and for processes that divide the batches.
    """

    per_epoch: int
    _goes_ahead = True  # whether epochs may be done together

    def __init__(
        self, batches: ArrayBatches, executable: Executable, trained: Arrays, optimizer: Optimizer, optimizer_state: State,
        position: Position = START, *, advice: str = "", unchecked: Collection[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(batches, executable, trained, optimizer, optimizer_state, position, advice)
        self._batches, self._executable, self._trained = batches, executable, trained
        samples, batch_size, data = batches.samples, batches.batch_size, self._used(batches.arrays)
        self._whole_batch = batch_size == samples
        self._shuffled = batches.shuffle and not self._whole_batch
        # A row for each seed, (1 or members, samples). Steps on all samples take them in their own order.
        seeds = np.atleast_1d(batches.seeds)
        seeds = seeds[:1] if (seeds == seeds[0]).all() else seeds
        self._sorted = np.arange(samples)
        self._order = self._sorted[None].repeat(len(seeds) if self._shuffled else 1, 0)
        self._order_of_seed = list(zip(seeds.tolist(), self._order, strict=False))
        self._ordered = -1  # the epoch whose order it is
        if self._whole_batch:  # bound as they are: nothing to fetch
            memory, buffers, own = memory_of(trained["p"]), self._program.buffers, self._columns(samples)
            self._shared |= {name: memory.contiguous(array[own], buffers[name].dtype) for name, array in data.items()}
            data = {}
        self._data = data = self._backend.sources(data)
        full, rest = divmod(samples, batch_size)
        self._parts = [self._part(data, batch_size, 0, full)]
        if rest and not batches.drop_last:
            self._parts.append(self._part(data, rest, full, 1))
        self.per_epoch = self._parts[-1].stop
        if self.step > self.per_epoch:
            raise ValueError(f"`resume.position.step` must be at most {self.per_epoch}, an epoch's steps, got {self.step}")
        self._ahead: _Ahead | None = None  # made when epochs are first done together
        self._several: np.ndarray | None = None  # the losses of epochs that were done together, shape (..., epochs, steps)
        self.unchecked = unchecked
        self.spoiled = bool(unchecked) and not all(part.feed.watch(unchecked, self._largest) for part in self._parts)
        self._between = Position(data=self.settings)  # two epochs
        self._losses = np.empty((*trained["p"].shape[:-1], self.per_epoch))  # of the epoch's steps
        self._losses[..., : self.step] = position.losses if self.step else np.nan
        self.finished = self.step == self.per_epoch
        self._chunks = executable.chunks  # by batch size
        self.chunk = max(1, self._chunks.get(batch_size, 0) // 4)

    def _part(self, data: State, batch: int, first: int, steps: int) -> _Part:
        """The part of these steps, each on `batch` samples, after the `first` steps of an epoch."""
        start = self._batches.batch_size * first
        feed, share = self._feed(data, batch, self._order[:, start : start + steps * batch])
        return _Part(feed, batch, first, first + steps, share)

    @lazy
    def _streams(self) -> Streams:
        return Streams("order")

    @property
    def _largest(self) -> float:
        return float(np.finfo(self._trained["p"].dtype).max)

    def _settle(self) -> None:
        """Check what the first epoch has left out of the data that were not checked before, and look at them no more."""
        taken = sum((part.stop - part.first) * part.batch for part in self._parts)
        left, arrays = self._order[0, taken:], self._batches.arrays
        try:
            arguments.check_finite(
                self._trained["p"].dtype, **{name: arrays[name][left] for name in self.unchecked if left.size}
            )
        except ValueError:
            self.spoiled = True
        self.unchecked = ()
        for part in self._parts:
            part.feed.watch((), self._largest)

    # What differs for members and processes

    def _feed(self, data: State, batch: int, order: np.ndarray) -> tuple[Any, np.ndarray]:
        """The feed of steps on batches in this order, and the samples of this process."""
        share = order[0]
        return self._backend.feed(self._backend.bind(self._program, batch, self._shared), data, share), share

    def _columns(self, batch: int) -> slice:
        """The places in a batch of this process's samples."""
        return slice(None)

    def _share_out(self) -> None:
        """Take this process's samples of a new order."""

    def _run(self, feed: Any, first: int, losses: np.ndarray) -> int:
        """Do one step for each entry of `losses`, or fewer, and fill in the losses. Returns the number of steps."""
        done: int = feed(first, losses)
        self.loss = float(losses[done - 1])
        return done

    def _epoch_means(self, losses: np.ndarray) -> list[Any]:
        """The means of epochs along the last axis of `losses`."""
        return losses.tolist()

    # What is the same

    def advance(self, epochs: int, steps: int, chunk: int | None = None) -> int:
        if self.finished:
            return 0
        self.chunk = self.chunk if chunk is None else chunk
        if self._whole_batch:
            losses = np.empty((*self._losses.shape[:-1], min(epochs, steps, self.chunk)))
            self._losses = losses[..., : self._do(self._parts[0].feed, 0, losses)]
            self.step = self._losses.shape[-1]
            self.finished = True
            return self.step
        together = self._together(min(epochs, steps // self.per_epoch, self.chunk // self.per_epoch))
        if together > 1:
            return self._do_together(together)
        self._arrange()
        done = 0
        for part in self._parts:
            while self.step < part.stop and done < steps:
                asked = min(self.chunk, part.stop - self.step, steps - done)
                did = self._do(part.feed, self.step - part.first, self._losses[..., self.step : self.step + asked])
                self.step += did
                done += did
                self.finished = self.step == self.per_epoch
                if self.unchecked:
                    self.spoiled = part.feed.spoiled
                    if self.finished and not self.spoiled:
                        self._settle()
                    if self.spoiled:
                        return done
                if self.step < part.stop or not self.sound:
                    return done
        return done

    def _together(self, epochs: int) -> int:
        """The number of the next epochs, at most so many, that can be done in one call: all their batches have one size."""
        if self.step or self.unchecked or len(self._parts) > 1 or not (self._goes_ahead and self._backend.takes_long_orders):
            return 1
        return min(epochs, MAX_SAMPLES_AHEAD // self._order.size)

    def _do_together(self, epochs: int) -> int:
        """Do some of the next epochs in one call, or fewer if a loss is not finite. Returns the number of steps."""
        if self._ahead is None:
            self._ahead = self._make_ahead()
        feed, orders = self._ahead
        if self._shuffled:
            for number in range(epochs):
                self._arrange(self.epoch + number)
                orders[:, number] = self._order[:, : orders.shape[2]]
        losses = np.empty((*self._losses.shape[:-1], epochs * self.per_epoch))
        done = self._do(feed, 0, losses)
        finished, begun = divmod(done, self.per_epoch)
        of_finished = losses[..., : done - begun]
        self._several = of_finished.reshape(*losses.shape[:-1], finished, self.per_epoch)
        self._losses[..., :begun] = losses[..., done - begun : done]
        self.finished = finished > 0
        self.step, self._begun_steps = (self.per_epoch, begun) if self.finished else (begun, 0)
        return done

    def _make_ahead(self) -> _Ahead:
        """The feed of several epochs, and their orders, (1 or members, epochs, samples of an epoch)."""
        batch, taken = self._parts[0].batch, self._parts[0].batch * self.per_epoch
        orders = np.empty((len(self._order), MAX_SAMPLES_AHEAD // self._order.size, taken), np.int64)
        if not self._shuffled:
            orders[...] = self._sorted[:taken]
        return self._feed(self._data, batch, orders.reshape(len(orders), -1))[0], orders

    def _arrange(self, epoch: int | None = None) -> None:
        """Put the samples in the order of an epoch, by default of the present one."""
        epoch = self.epoch if epoch is None else epoch
        if not self._shuffled or self._ordered == epoch:
            return
        for seed, row in self._order_of_seed:
            row[...] = self._sorted
            self._streams(seed, epoch).shuffle(row)
        self._share_out()
        self._ordered = epoch

    def _do(self, feed: Any, first: int, losses: np.ndarray) -> int:
        """Do one step of a part for each entry of `losses`, or fewer, and fill in the losses. Returns the number of steps."""
        count = self._rates.good(self._first_step + self.done, losses.shape[-1])
        start = time.perf_counter()
        with self._backend.running():
            done = self._run(feed, first, losses[..., :count])
        elapsed = time.perf_counter() - start
        self.done += done
        self.known = self.done
        self.chunk = max(1, min(16 * self.chunk, int(done * RUN_SECONDS / (elapsed + 1e-9))))
        self._chunks[self._batches.batch_size] = self.chunk
        return done

    def _means(self) -> list[Any]:
        if self._whole_batch:  # one or more epochs
            return self._epoch_means(self._losses)
        if self._several is not None:
            several, batch, self._several = self._several, self._parts[0].batch, None
            return self._epoch_means(several.sum(-1) * batch / (self.per_epoch * batch))
        total: Any = sum(self._losses[..., part.first : part.stop].sum(-1) * part.batch for part in self._parts)
        mean = total / sum((part.stop - part.first) * part.batch for part in self._parts)
        return self._epoch_means(mean[..., None])

    def position(self, seconds: float = 0.0) -> Position:
        if not self.step and not seconds:
            return self._between
        losses = self._losses[..., : self.step].copy() if self.step else START.losses
        return Position(self.step, losses, None, self.settings, seconds)


class DividedSteps(ArraySteps):
    """Steps of several processes: this one takes its part of every batch. Losses, parameters and state are the same on all."""

    _goes_ahead = False  # all processes share out each order

    def __init__(self, comm: Any, *given: Any, **settings: Any) -> None:
        self._comm = comm
        super().__init__(*given, **settings)

    def _columns(self, batch: int) -> slice:
        rank, size = self._comm.rank, self._comm.size
        return slice(batch * rank // size, batch * (rank + 1) // size)

    def _feed(self, data: State, batch: int, order: np.ndarray) -> tuple[Any, np.ndarray]:
        columns = self._columns(batch)
        own = part_arrays(self._comm, self._executable, batch, columns.start, self._shared["p"])
        share = order[0].reshape(-1, batch)[:, columns].ravel()
        binding = self._backend.bind(self._program, columns.stop - columns.start, {**self._shared, **own})
        return self._backend.feed(binding, data, share), share

    def _share_out(self) -> None:
        for part in self._parts:
            start, columns = self._batches.batch_size * part.first, self._columns(part.batch)
            order = self._order[0, start : start + (part.stop - part.first) * part.batch]
            part.share.reshape(part.stop - part.first, -1)[...] = order.reshape(-1, part.batch)[:, columns]


class MemberSteps(ArraySteps):
    """Steps of each member of an ensemble. One that ends is noted in the `history`.

    `rows` are the settings of the members' optimisers, if they differ, a row for each member.
    """

    def __init__(self, history: EnsembleHistory, rows: Arrays, batches: MemberBatches, *given: Any, **settings: Any) -> None:
        self._history, self._rows, self._own = history, rows, batches.members.own
        super().__init__(batches, *given, **settings)

    def _feed(self, data: State, batch: int, order: np.ndarray) -> tuple[Any, np.ndarray]:
        own = {*self._own, *self._trained, *self._rows, "moments", "step", "random"}
        shared = {name: array for name, array in self._shared.items() if name != "value"} | self._used(self._rows)
        return self._backend.member_feed(self._program, batch, shared, data, order, own), order[0]

    def _run(self, feed: Any, first: int, losses: np.ndarray) -> int:
        history, running, before = self._history, self._history.running, self.done
        losses[...] = np.nan
        done = feed(first, losses, running)
        for member, count in zip(running.tolist(), done.tolist(), strict=True):
            losses[member, count:] = np.nan
            if not np.isfinite(loss := losses[member, count - 1]):
                epochs = (self.step + count) // self.per_epoch
                history.end(member, history.epochs + epochs, loss_text(loss, before + count, self._advice))
        most = int(done.max())
        self.loss = losses[:, most - 1].copy()
        return most

    @property
    def sound(self) -> bool:
        return len(self._history.ended) < self._history.members

    def check(self) -> None:
        """Nothing: members end alone."""

    def check_parameters(self, p: np.ndarray) -> None:
        for member in self._history.running.tolist():
            if text := parameter_text(p[member], self.done):
                self._history.end(member, self._history.epochs, text)

    def _epoch_means(self, losses: np.ndarray) -> list[Any]:
        return list(losses.T.copy())


class Rates:
    """Checks the learning rates of a schedule before the steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._schedule = optimizer.learning_rate
        self._rate = Replay(traced("`learning_rate`", optimizer.rate, 1)) if callable(self._schedule) else None
        self._start = self._stop = 0.0  # the steps whose rates are known to be good

    def good(self, first: float, count: int = 1) -> int:
        """The number of these steps that may be done: those before the first rate that is negative or not finite.

        Raises FloatingPointError, with the number of the step, if there are none.
        """
        if self._rate is None or self._start <= first <= first + count <= self._stop:
            return count
        steps = np.arange(first, first + max(count, RATES_AT_ONCE), dtype=np.float64)
        with np.errstate(all="ignore"):
            rates = np.broadcast_to(self._rate(steps), steps.shape)
        wrong = np.flatnonzero(~((rates >= 0) & (rates < math.inf)))
        good = int(wrong[0]) if wrong.size else len(steps)
        if not good:
            raise FloatingPointError(
                f"`learning_rate` (={shown(self._schedule)}) must be finite, zero or positive, got {rates[0]:g} at step "
                f"{first:.0f}, counted from 0"
            )
        self._start, self._stop = first, first + good
        return min(good, count)


def loss_text(loss: float, step: int, advice: str = "") -> str:
    """The message that the loss of a step is not finite, with the advice of the network's layers."""
    return (
        f"the loss is {loss} at step {step}: the parameters or the data are out of range; "
        f"try a lower learning rate or clip_norm, or look for extreme values in the data{advice and f'; {advice}'}"
    )


def parameter_text(p: np.ndarray, step: int) -> str:
    """The message that the last step made a parameter infinite or NaN; empty if not. After earlier steps, the loss shows it."""
    if memory_of(p) is not HOST or np.isfinite(p).all():
        return ""
    position = int(np.argmin(np.isfinite(p)))
    return (
        f"`p` holds {p[position]} at index {position} after step {step}: the step was too large; "
        "try a lower learning rate or clip_norm, or look for extreme values in the data"
    )
