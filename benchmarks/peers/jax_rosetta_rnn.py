"""The recurrent network of the comparison by JAX: a jitted step, in which a scan goes over the words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.timing import Contestant
from benchmarks.peers.jax_recurrent import _gru

jax.config.update("jax_platforms", "cpu")


def _loss(p: Any, x: Any, t: Any, unroll: int) -> Any:
    inputs = jnp.swapaxes(p["0.weight"][x] @ p["1.weight"] + p["1.bias"], 0, 1)
    cell = {"0.recurrent_weight": p["1.recurrent_weight"], "0.recurrent_bias": p["1.recurrent_bias"]}
    first = jnp.zeros((x.shape[0], p["2.weight"].shape[0]), jnp.float32)
    last, _ = jax.lax.scan(lambda h, a: (_gru(cell, h, a), None), first, inputs, unroll=unroll)
    logits = jax.nn.log_softmax(last @ p["2.weight"] + p["2.bias"])
    return -jnp.take_along_axis(logits, t[:, None], 1).mean()


def _step(state: Any, x: Any, t: Any, rate: float, unroll: int) -> Any:
    p, m, v, count = state
    g = jax.grad(_loss)(p, x, t, unroll)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    a, b = 1 - 0.9**count, 1 - 0.999**count
    p = jax.tree.map(lambda p, m, v: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), p, m, v)
    return p, m, v, count


class _Run:
    """Steps from the starting parameters; the buffers of a step are given to the next one."""

    def __init__(self, problem: Any, unroll: int, rate: float) -> None:
        self._arrays = problem.arrays
        self.batches = [(jnp.asarray(x), jnp.asarray(t)) for x, t in problem.batches]
        self._step: Callable[..., Any] = jax.jit(partial(_step, rate=rate, unroll=unroll), donate_argnums=0)

    def start(self) -> None:
        p = {name: jnp.array(array) for name, array in self._arrays.items()}
        zeros = [jax.tree.map(jnp.zeros_like, p) for _ in range(2)]
        self.state = (p, *zeros, jnp.zeros((), jnp.float32))

    def run(self, steps: int) -> None:
        for k in range(steps):
            self.state = self._step(self.state, *self.batches[k % len(self.batches)])
        jax.block_until_ready(self.state)

    def result(self) -> np.ndarray:
        return np.concatenate([np.asarray(self.state[0][name]).ravel() for name in self._arrays])


def rows(problem: Any) -> list[Contestant]:
    from benchmarks.problems.rosetta_rnn import RATE

    runs = {text: _Run(problem, unroll, RATE) for text, unroll in (("jit, scan", 1), ("jit, scan unrolled by 10", 10))}
    return [Contestant(f"JAX {text}", run.start, run.run, run.result, chunk=len(run.batches)) for text, run in runs.items()]
