"""JAX on networks of convolutions, pools and dense layers: jitted per step, and `lax.scan` over a pass.

Images channels first as they come, or channels last within the network, which XLA may prefer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from jax import lax

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant
from benchmarks.peers.jax_dense import jax, jnp  # on the CPU, float64 allowed
from benchmarks.problems import networks
from benchmarks.problems.networks import Problem

Tree = list[jax.Array]


class _Model:
    """The problem's parameters as a list of arrays, its loss and its training step."""

    def __init__(self, problem: Problem, channels_last: bool) -> None:
        self.problem, self.channels_last = problem, channels_last
        self.p = [jnp.asarray(array) for array in problem.tensors(problem.p)]
        size = problem.batch_size
        self.x = jnp.asarray(problem.x.reshape(-1, size, *problem.x.shape[1:]))  # (steps, batch, ...)
        self.t = jnp.asarray(problem.t.astype(np.int32).reshape(-1, size))
        self.state: Any = None

    def loss(self, p: Tree, x: jax.Array, t: jax.Array, key: jax.Array) -> jax.Array:
        layout = "NHWC" if self.channels_last else "NCHW"
        if self.channels_last and x.ndim == 4:
            x = x.transpose(0, 2, 3, 1)
        tensors = iter(p)
        for number, layer in enumerate(self.problem.layers):
            if isinstance(layer, networks.Conv):
                padding = [(layer.padding, layer.padding)] * 2
                x = lax.conv_general_dilated(x, next(tensors), (1, 1), padding, dimension_numbers=(layout, "OIHW", layout))
                x = x + (next(tensors) if self.channels_last else next(tensors)[:, None, None])
            elif isinstance(layer, networks.Dense):
                x = x @ next(tensors) + next(tensors)
            elif isinstance(layer, networks.Pool):
                x = self._pool(x)
            elif isinstance(layer, networks.Flatten):
                x = (x.transpose(0, 3, 1, 2) if self.channels_last else x).reshape(len(x), -1)
            else:
                keep = jax.random.bernoulli(jax.random.fold_in(key, number), 1.0 - layer.rate, x.shape)
                x = jnp.where(keep, x / (1.0 - layer.rate), 0.0)
            if getattr(layer, "relu", False):
                x = jax.nn.relu(x)
        return jnp.mean(jax.nn.logsumexp(x, 1) - jnp.take_along_axis(x, t[:, None], 1)[:, 0])

    def _pool(self, x: jax.Array) -> jax.Array:
        """The maxima of windows of 2x2 through a reshape: on a CPU faster than `lax.reduce_window` and its gradient."""
        rows = 1 if self.channels_last else 2
        shape = (*x.shape[:rows], x.shape[rows] // 2, 2, x.shape[rows + 1] // 2, 2, *x.shape[rows + 2 :])
        return x.reshape(shape).max((rows + 1, rows + 3))

    def start(self) -> None:
        zeros = jax.tree.map(jnp.zeros_like, self.p)
        extra = (zeros, jax.tree.map(jnp.copy, zeros)) if self.problem.optimizer == "adam" else (zeros,)
        self.state = jax.block_until_ready((jax.tree.map(jnp.copy, self.p), extra, jnp.zeros((), jnp.int32)))

    def step(self, state: Any, x: jax.Array, t: jax.Array) -> Any:
        p, extra, count = state
        key = jax.random.fold_in(jax.random.key(0, impl="rbg"), count)  # the fastest generator
        g = jax.grad(self.loss)(p, x, t, key)
        rate, tree_map = self.problem.rate, jax.tree.map
        count = count + 1
        if self.problem.optimizer == "sgd":
            (v,) = extra
            if self.problem.momentum:
                g = v = tree_map(lambda v, g: self.problem.momentum * v + g, v, g)
            return tree_map(lambda p, g: p - rate * g, p, g), (v,), count
        m, v = extra
        done = count.astype(self.problem.dtype)
        root = jnp.sqrt(1 - 0.999**done)
        change = rate * root / (1 - 0.9**done)
        m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        p = tree_map(lambda p, m, v: p - change * m / (jnp.sqrt(v) + 1e-8 * root), p, m, v)
        return p, (m, v), count

    def result(self) -> np.ndarray:
        return np.concatenate([np.asarray(array).ravel() for array in self.state[0]])


def network_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Passes through the samples."""
    layouts = (False, True) if problem.x.ndim == 4 else (False,)
    rows = [_jitted_passes(problem, last) for last in layouts]
    if problem.samples > problem.batch_size:  # a scan over one step is a jitted step
        rows += [_scanned_passes(problem, last) for last in layouts]
    return rows


def _name(kind: str, problem: Problem, channels_last: bool) -> str:
    return f"JAX {kind}{', channels-last' if channels_last else ''}, {problem.dtype}"


def _jitted_passes(problem: Problem, channels_last: bool) -> Contestant:
    model = _Model(problem, channels_last)
    step = jax.jit(model.step, donate_argnums=0)
    batches = list(zip(model.x, model.t, strict=True))

    def run(passes: int) -> None:
        state = model.state
        for _ in range(passes):
            for x, t in batches:
                state = step(state, x, t)
        model.state = jax.block_until_ready(state)

    return Contestant(_name("jit", problem, channels_last), model.start, run, model.result)


def _scanned_passes(problem: Problem, channels_last: bool) -> Contestant:
    model = _Model(problem, channels_last)

    @partial(jax.jit, donate_argnums=0)
    def steps(state: Any, x: jax.Array, t: jax.Array) -> Any:
        return lax.scan(lambda state, batch: (model.step(state, *batch), None), state, (x, t))[0]

    def run(passes: int) -> None:
        state = model.state
        for _ in range(passes):
            state = steps(state, model.x, model.t)
        model.state = jax.block_until_ready(state)

    return Contestant(_name("scan", problem, channels_last), model.start, run, model.result)
