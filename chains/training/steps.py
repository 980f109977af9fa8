"""Steps of an optimiser: bound to the parameters once, then fed one batch, or one gradient, after another."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from chains.arrays import as_array
from chains.backends import Binding, Executable, Feed, backend
from chains.backends.places import HOST, on_host, place_of, runner_of
from chains.expr.replay import Replay, traced
from chains.messages import counted, shown
from chains.network import arguments
from chains.optimizers import Optimizer
from chains.program.recorder import Recorder

AHEAD = 1000  # steps whose learning rates are looked at together

State = dict[str, np.ndarray]
Arrays = Mapping[str, np.ndarray]


class Steps(ABC):
    """A recorded training step, bound to what every step shares; subclasses know where the batches come from.

    `trained` are the arrays to be updated in place: the parameters and the network's state, if any. `optimizer_state` is
    live; pass a copy of it to go on. Raises ValueError for that of another optimiser or network.
    """

    per_epoch: int | None  # steps an epoch, where that is known

    def __init__(
        self, executable: Executable, trained: Arrays, optimizer: Optimizer, *, seed: int, optimizer_state: State | None
    ) -> None:
        p = trained["p"]
        self.optimizer_state = _start(optimizer, p) if optimizer_state is None else _checked(optimizer_state, optimizer, p)
        place = place_of(p)
        self._first_step = int(self.optimizer_state["step"])
        self._rates = Rates(optimizer)
        self._runner, self._program = executable.backend, executable.program
        random = np.array([seed, int(self.optimizer_state["step"])], np.uint64)
        own = {"value": place.contiguous(np.zeros((), p.dtype)), "random": place.contiguous(random)}
        self._shared = self._used({**trained, **own, **self.optimizer_state, **executable.settings})

    def _used(self, arrays: Arrays) -> State:
        """Those of the arrays that the program has a buffer for."""
        return {name: array for name, array in arrays.items() if name in self._program.buffers}

    @property
    def done(self) -> int:
        """How many steps were done; the program itself counts them."""
        return int(self.optimizer_state["step"]) - self._first_step

    @abstractmethod
    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        """Go through the data once, or up to `most` times where that takes no shuffling; the mean loss of each epoch.

        `tick` is called with the number of steps done since its last call. Raises FloatingPointError where a loss is
        not finite.
        """


class ArraySteps(Steps):
    """Steps through a data set in batches; `data` are the checked arrays by buffer name."""

    def __init__(
        self,
        data: Arrays,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        *,
        batch_size: int,
        drop_last: bool,
        seed: int,
        optimizer_state: State | None,
    ) -> None:
        super().__init__(executable, trained, optimizer, seed=seed, optimizer_state=optimizer_state)
        self._seed = seed
        self._samples = len(data["x"])
        self._sorted = np.arange(self._samples)
        self._order = self._sorted.copy()
        place = place_of(trained["p"])
        data = self._used(data)
        self._whole_batch = batch_size == self._samples
        if self._whole_batch:  # bound as they are: nothing to fetch
            self._shared |= {name: place.contiguous(array, self._program.dtype) for name, array in data.items()}
            data = {}
        data = self._runner.sources(data)
        full, rest = divmod(self._samples, batch_size)
        self._parts = [self._part(data, batch_size, 0, full)]
        if rest and not drop_last:
            self._parts.append(self._part(data, rest, full * batch_size, 1))
        self.per_epoch = sum(part.steps for part in self._parts)
        self._chunks, self._batch_size = executable.chunks, batch_size
        self._chunk = max(1, self._chunks.get(batch_size, 0) // 4)  # steps between two looks at the clock

    def _part(self, data: State, batch: int, start: int, steps: int) -> _Part:
        binding = self._runner.bind(self._program, batch, self._shared)
        return _Part(self._runner.feed(binding, data, self._order[start : start + steps * batch]), batch, steps)

    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        if self._whole_batch:
            count = min(most, max(1, self._chunk))
            self.optimizer_state["epoch"] += count
            return self._run(self._parts[0].feed, count, tick).tolist()
        if shuffle:  # each epoch's order depends on the seed and its number alone
            self._order[:] = self._sorted
            np.random.default_rng([self._seed, int(self.optimizer_state["epoch"])]).shuffle(self._order)
        self.optimizer_state["epoch"] += 1
        total = sum(self._run(part.feed, part.steps, tick).sum() * part.batch for part in self._parts)
        return [float(total) / sum(part.steps * part.batch for part in self._parts)]

    def _run(self, feed: Feed, steps: int, tick: Callable[[int], object] | None) -> np.ndarray:
        """The losses of so many steps, in chunks of about a twentieth of a second, so that Ctrl-C is heard."""
        values = np.empty(steps)
        first, before = 0, self.done
        while first < steps:
            count = self._rates.good(self._first_step + before + first, min(self._chunk, steps - first))
            start = time.perf_counter()
            with self._runner.running():
                done = feed(first, values[first : first + count])
            elapsed = time.perf_counter() - start
            check_loss(values[first + done - 1], before + first + done)
            if tick is not None:
                tick(done)
            first += done
            self._chunk = max(1, min(16 * self._chunk, int(done * 0.05 / (elapsed + 1e-9))))
        self._chunks[self._batch_size] = self._chunk
        return values


@dataclass
class _Part:
    """A part of an epoch: `steps` batches of one size."""

    feed: Feed
    batch: int
    steps: int


class Updater:
    """An optimiser for a loop of one's own: ``update = Updater(Adam(1e-3), p)``, then ``update(g)`` moves `p` in place.

    `p` is a float32 or float64 vector, which the updater keeps and changes; `g` any vector as long, left as it
    is. Raises TypeError or ValueError, before anything is written, for others; on the processor FloatingPointError, before a
    step for which a schedule gives a rate that is negative or not finite. An infinity or NaN in `g` goes on into `p`: look
    at the loss that comes with it, as `train` does.
    """

    def __init__(self, optimizer: Optimizer, p: np.ndarray) -> None:
        p = arguments.check_trained(p)
        arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        ops = Recorder("update", p.dtype)
        parameters = ops.external("p", p.shape, role="state")
        own = ops.scratch("gradient", p.shape, batched=False)
        ops.copy(own, ops.external("g", p.shape, role="input"))
        ops.symbolic(optimizer).record(ops, parameters, own, [(0, p.size)])
        program = ops.finish()
        self.optimizer = optimizer
        self.p = p
        self.state = _start(optimizer, p)
        self._runner = runner_of(p, backend("auto")).choose(program)
        arrays = {name: array for name, array in {"p": p, **self.state}.items() if name in program.buffers}
        self._binding: Binding = self._runner.bind(program, 1, arrays)
        looked_at = callable(optimizer.learning_rate) and place_of(p) is HOST  # a GPU's step number would be waited for
        self._rates = Rates(optimizer) if looked_at else None

    def __call__(self, g: np.ndarray) -> None:
        g = arguments.together(self.p, {"g": as_array("g", g)})["g"]
        if g.shape != self.p.shape:
            raise ValueError(f"`g` has shape {g.shape}, but the parameters have shape {self.p.shape}")
        if self._rates is not None:
            self._rates.good(self.state["step"].item())
        self._binding.arrays["g"][...] = g
        with self._runner.running():
            self._binding.run()

    def __repr__(self) -> str:
        return f"<{self.optimizer!r} of {counted(self.p.size, 'parameter')} after {counted(int(self.state['step']), 'step')}>"


class Rates:
    """Looks at the learning rates that a schedule gives, before the steps are taken."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._schedule = optimizer.learning_rate
        self._rate = Replay(traced("`learning_rate`", optimizer.rate, 1)) if callable(self._schedule) else None
        self._start = self._stop = 0.0  # the steps whose rates are known to be good

    def good(self, first: float, count: int = 1) -> int:
        """How many of these steps may be taken: up to the first whose rate is negative or not finite.

        Raises FloatingPointError, naming the step, where that leaves none.
        """
        if self._rate is None or self._start <= first <= first + count <= self._stop:
            return count
        steps = np.arange(first, first + max(count, AHEAD), dtype=np.float64)
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


def check_loss(loss: float, step: int) -> None:
    """Raise FloatingPointError where the loss of a step is not finite."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss} at step {step}: the parameters or the data are out of range; "
            "try a lower learning rate or clip_norm, or look for extreme values in the data"
        )


def check_parameters(p: np.ndarray, step: int) -> None:
    """Raise FloatingPointError where the last step has made a parameter infinite or NaN; of those before, the loss tells."""
    if place_of(p) is HOST and not np.isfinite(p).all():
        position = int(np.argmin(np.isfinite(p)))
        raise FloatingPointError(
            f"`p` holds {p[position]} at index {position} after step {step}: the step was too large; "
            "try a lower learning rate or clip_norm, or look for extreme values in the data"
        )


def _start(optimizer: Optimizer, p: np.ndarray) -> State:
    state = {"moments": np.zeros(optimizer.n_states * p.size, p.dtype), "step": np.zeros(()), "epoch": np.zeros(())}
    return {name: place_of(p).contiguous(array) for name, array in state.items()}


def _checked(state: State, optimizer: Optimizer, p: np.ndarray) -> State:
    """A copy of `state` where `p` lies. Raises ValueError unless it is that of such an optimiser and such parameters."""
    fresh = _start(optimizer, p)
    if {name: (a.shape, a.dtype) for name, a in state.items()} != {name: (a.shape, a.dtype) for name, a in fresh.items()}:
        raise ValueError(
            f"`resume` is the history of another optimiser or network than {optimizer!r} on {p.size} {p.dtype} parameters"
        )
    place = place_of(p)
    return {name: place.array(array if place.owns(array) else on_host(array)) for name, array in state.items()}
