"""Steps of an optimiser: bound to the parameters once, then fed one batch, or one gradient, after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from chains import arguments, record
from chains.backends import Backend, Binding, backend
from chains.optimizers import Optimizer
from chains.program import Program, Recorder

State = dict[str, np.ndarray]
Call = Callable[[], Any]


class Steps:
    """A recorded training step going through a data set in batches.

    `data` are the checked arrays by buffer name. `state` is the optimiser's, live; pass a copy of it to go on.
    """

    def __init__(
        self,
        runner: Backend,
        network: record.Network,
        p: np.ndarray,
        data: Mapping[str, np.ndarray],
        objective: record.Objective,
        optimizer: Optimizer,
        *,
        batch_size: int,
        drop_last: bool,
        seed: int,
        state: State | None,
    ) -> None:
        program = record.training_step(network, objective, optimizer, p.dtype)
        self.state = _start(optimizer, p) if state is None else _checked(state, optimizer, p)
        self.done = 0
        self._runner = runner
        self._random = np.array([seed, 0], np.uint64)
        self._value = np.zeros((), p.dtype)
        self._rng = np.random.default_rng(seed)
        samples = len(data["x"])
        self._order = np.arange(samples)
        self._batches: list[tuple[int, list[Call], Call]] = []
        shared = {"p": p, "value": self._value, "random": self._random, **self.state}
        sizes = {batch_size: _Batch(runner, program, shared, data, batch_size)}
        for start in range(0, samples, batch_size):
            piece = self._order[start : start + batch_size]  # a view: shuffling the order shuffles the piece
            if len(piece) < batch_size and drop_last:
                break
            if len(piece) not in sizes:
                sizes[len(piece)] = _Batch(runner, program, shared, data, len(piece))
            self._batches.append(sizes[len(piece)].at(piece))
        self._shuffles = samples > batch_size
        self._draws = "random" in program.buffers

    @property
    def per_epoch(self) -> int:
        return len(self._batches)

    def epoch(self, shuffle: bool, tick: Callable[[], None] | None) -> float:
        """Go through the data once; returns the mean loss of the samples, each before its step.

        `tick` is called after each step. Raises FloatingPointError where a loss is not finite.
        """
        if shuffle and self._shuffles:
            self._rng.shuffle(self._order)
        value, random, draws = self._value, self._random, self._draws
        total, samples, inf = 0.0, 0, math.inf
        with self._runner.running():
            for size, fetch, run in self._batches:
                for call in fetch:
                    call()
                run()
                loss = float(value)
                self.done += 1
                if not -inf < loss < inf:
                    raise FloatingPointError(
                        f"the loss is {loss} at step {self.done}: the parameters or the data are out of range; "
                        "try a lower learning rate or clip_norm, or look for extreme values in the data"
                    )
                total += loss * size
                samples += size
                if draws:
                    random[1] += 1
                if tick is not None:
                    tick()
        return total / samples


class _Batch:
    """The training step bound at one batch size, and the calls that fetch its samples."""

    def __init__(
        self, runner: Backend, program: Program, shared: Mapping[str, np.ndarray], data: Mapping[str, np.ndarray], size: int
    ) -> None:
        shared = {name: array for name, array in shared.items() if name in program.buffers}
        data = {name: np.ascontiguousarray(array) for name, array in data.items() if name in program.buffers}
        self.size = size
        self._data = data if size < len(data["x"]) else {}  # the whole data set is bound as it is
        if not self._data:
            shared |= {name: array.astype(program.dtype, copy=False) for name, array in data.items()}
        self._binding = runner.bind(program, size, shared)
        self._taken = {name: np.empty((size, *array.shape[1:]), array.dtype) for name, array in self._data.items()}

    def at(self, piece: np.ndarray) -> tuple[int, list[Call], Call]:
        """The number of samples, the calls that fetch those numbered in `piece`, and the call that does the step."""
        calls: list[Call] = []
        for name, array in self._data.items():
            target = self._binding.arrays[name]
            taken = target if array.dtype == target.dtype else self._taken[name]
            calls.append(partial(array.take, piece, 0, taken, "clip"))  # "clip": otherwise NumPy buffers
            if taken is not target:
                calls.append(partial(np.copyto, target, taken, "unsafe"))
        return self.size, calls, self._binding.run


class Updater:
    """An optimiser for a loop of one's own: ``update = Updater(Adam(1e-3), p)``, then ``update(g)`` moves `p` in place.

    `p` is a float32 or float64 vector, which the updater keeps and changes; `g` any vector as long, left as it
    is. Raises TypeError or ValueError, before anything is written, for others.
    """

    def __init__(self, optimizer: Optimizer, p: np.ndarray) -> None:
        arguments.check_params(p, np.size(p))
        ops = Recorder("update", p.dtype)
        parameters = ops.external("p", p.shape, role="state")
        own = ops.scratch("gradient", p.shape, batched=False)
        ops.copy(own, ops.external("g", p.shape, role="input"))
        optimizer.record(ops, parameters, own, [(0, p.size)])
        program = ops.finish()
        self.optimizer = optimizer
        self.p = p
        self.state = _start(optimizer, p)
        self._runner = backend("auto")
        arrays = {name: array for name, array in {"p": p, **self.state}.items() if name in program.buffers}
        self._binding: Binding = self._runner.bind(program, 1, arrays)

    def __call__(self, g: np.ndarray) -> None:
        g = arguments.as_numpy("g", g)
        if g.shape != self.p.shape:
            raise ValueError(f"`g` has shape {g.shape}, but the parameters have shape {self.p.shape}")
        self._binding.arrays["g"][...] = g
        with self._runner.running():
            self._binding.run()

    def __repr__(self) -> str:
        return f"<{self.optimizer!r} of {self.p.size} parameters after {int(self.state['step'])} steps>"


def _start(optimizer: Optimizer, p: np.ndarray) -> State:
    return {"state": np.zeros(optimizer.n_states * p.size, p.dtype), "step": np.zeros(())}


def _checked(state: State, optimizer: Optimizer, p: np.ndarray) -> State:
    """A copy of `state`. Raises ValueError unless it is that of such an optimiser and such parameters."""
    fresh = _start(optimizer, p)
    if {name: (a.shape, a.dtype) for name, a in state.items()} != {name: (a.shape, a.dtype) for name, a in fresh.items()}:
        raise ValueError(
            f"`resume` is the history of another optimiser or network than {optimizer!r} on {p.size} {p.dtype} parameters"
        )
    return {name: array.copy() for name, array in state.items()}
