"""Steps of an optimiser: bound to the parameters once, then fed one batch, or one gradient, after another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from chains import arguments
from chains.backends import Backend, Binding, Feed, backend
from chains.backends.places import place_of, runner_of
from chains.optimizers import Optimizer
from chains.program import Program, Recorder

State = dict[str, np.ndarray]


class Steps:
    """A recorded training step going through a data set in batches.

    `data` are the checked arrays by buffer name. `state` is the optimiser's, live; pass a copy of it to go on.
    """

    def __init__(
        self,
        runner: Backend,
        program: Program,
        p: np.ndarray,
        data: Mapping[str, np.ndarray],
        optimizer: Optimizer,
        *,
        batch_size: int,
        drop_last: bool,
        seed: int,
        state: State | None,
    ) -> None:
        self.state = _start(optimizer, p) if state is None else _checked(state, optimizer, p)
        self._first_step = int(self.state["step"])
        place = place_of(p)
        self._runner = runner_of(p, runner).choose(program)
        self._random = place.contiguous(np.array([seed, int(self.state["step"])], np.uint64))
        self._value = place.contiguous(np.zeros((), p.dtype))
        self._seed = seed
        self._samples = len(data["x"])
        self._sorted = np.arange(self._samples)
        self._order = self._sorted.copy()
        data = {name: place.contiguous(array) for name, array in data.items() if name in program.buffers}
        shared = {"p": p, "value": self._value, "random": self._random, **self.state}
        shared = {name: array for name, array in shared.items() if name in program.buffers}
        self.whole_batch = batch_size == self._samples
        if self.whole_batch:  # bound as they are: nothing to fetch
            shared |= {name: place.contiguous(array, program.dtype) for name, array in data.items()}
            data = {}
        full, rest = divmod(self._samples, batch_size)
        self._parts = [self._part(program, shared, data, batch_size, 0, full)]
        if rest and not drop_last:
            self._parts.append(self._part(program, shared, data, rest, full * batch_size, 1))
        self.per_epoch = sum(part.steps for part in self._parts)
        self._chunk = 1  # steps between two looks at the clock

    def _part(self, program: Program, shared: State, data: State, batch: int, start: int, steps: int) -> _Part:
        binding = self._runner.bind(program, batch, shared)
        return _Part(self._runner.feed(binding, data, self._order[start : start + steps * batch]), batch, steps)

    @property
    def done(self) -> int:
        """How many steps were done; the program itself counts them."""
        return int(self.state["step"]) - self._first_step

    def epochs(self, most: int, shuffle: bool, tick: Callable[[int], object] | None) -> list[float]:
        """Go through the data once, or up to `most` times where that takes no shuffling; the mean loss of each epoch.

        `tick` is called with the number of steps done since its last call. Raises FloatingPointError where a loss is
        not finite.
        """
        if self.whole_batch:
            count = min(most, max(1, self._chunk))
            self.state["epoch"] += count
            return self._run(self._parts[0].feed, count, tick).tolist()
        if shuffle:  # each epoch's order depends on the seed and its number alone
            self._order[:] = self._sorted
            np.random.default_rng([self._seed, int(self.state["epoch"])]).shuffle(self._order)
        self.state["epoch"] += 1
        total = sum(self._run(part.feed, part.steps, tick).sum() * part.batch for part in self._parts)
        return [float(total) / sum(part.steps * part.batch for part in self._parts)]

    def _run(self, feed: Feed, steps: int, tick: Callable[[int], object] | None) -> np.ndarray:
        """The losses of so many steps, in chunks of about a twentieth of a second, so that Ctrl-C is heard."""
        values = np.empty(steps)
        first = 0
        while first < steps:
            count = min(self._chunk, steps - first)
            start = time.perf_counter()
            with self._runner.running():
                done = feed(first, values[first : first + count])
            elapsed = time.perf_counter() - start
            if not math.isfinite(values[first + done - 1]):
                raise FloatingPointError(
                    f"the loss is {values[first + done - 1]} at step {self.done}: the parameters or the data are out of range; "
                    "try a lower learning rate or clip_norm, or look for extreme values in the data"
                )
            if tick is not None:
                tick(done)
            first += done
            self._chunk = max(1, min(2 * self._chunk, int(done * 0.05 / (elapsed + 1e-9))))
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
    is. Raises TypeError or ValueError, before anything is written, for others.
    """

    def __init__(self, optimizer: Optimizer, p: np.ndarray) -> None:
        p = arguments.check_trained(p)
        arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        ops = Recorder("update", p.dtype)
        parameters = ops.external("p", p.shape, role="state")
        own = ops.scratch("gradient", p.shape, batched=False)
        ops.copy(own, ops.external("g", p.shape, role="input"))
        optimizer.record(ops, parameters, own, [(0, p.size)])
        program = ops.finish()
        self.optimizer = optimizer
        self.p = p
        self.state = _start(optimizer, p)
        self._runner = runner_of(p, backend("auto")).choose(program)
        arrays = {name: array for name, array in {"p": p, **self.state}.items() if name in program.buffers}
        self._binding: Binding = self._runner.bind(program, 1, arrays)

    def __call__(self, g: np.ndarray) -> None:
        g = arguments.together(self.p, {"g": arguments.as_array("g", g)})["g"]
        if g.shape != self.p.shape:
            raise ValueError(f"`g` has shape {g.shape}, but the parameters have shape {self.p.shape}")
        self._binding.arrays["g"][...] = g
        with self._runner.running():
            self._binding.run()

    def __repr__(self) -> str:
        return f"<{self.optimizer!r} of {self.p.size} parameters after {int(self.state['step'])} steps>"


def _start(optimizer: Optimizer, p: np.ndarray) -> State:
    state = {"state": np.zeros(optimizer.n_states * p.size, p.dtype), "step": np.zeros(()), "epoch": np.zeros(())}
    return {name: place_of(p).contiguous(array) for name, array in state.items()}


def _checked(state: State, optimizer: Optimizer, p: np.ndarray) -> State:
    """A copy of `state`. Raises ValueError unless it is that of such an optimiser and such parameters."""
    fresh = _start(optimizer, p)
    if {name: (a.shape, a.dtype) for name, a in state.items()} != {name: (a.shape, a.dtype) for name, a in fresh.items()}:
        raise ValueError(
            f"`resume` is the history of another optimiser or network than {optimizer!r} on {p.size} {p.dtype} parameters"
        )
    return {name: array.copy() for name, array in state.items()}
