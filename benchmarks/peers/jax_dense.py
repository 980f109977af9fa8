"""JAX on the CPU: jitted per step, and `lax.scan` over many steps in one call.

Parameters are a tree of arrays or one flat vector; which is faster depends on the size, so both have their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant
from benchmarks.problems.dense import Problem

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)  # only allows float64; all types here are explicit

_SCAN = 100  # steps in one scan
_ACTIVATIONS = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "linear": lambda z: z}
_FORMS = ("tree", "flat vector")


class _Model:
    """The problem's parameters in one of the forms, its loss, and its training step."""

    def __init__(self, problem: Problem, form: str) -> None:
        self.problem = problem
        tree = [(jnp.asarray(w), jnp.asarray(b)) for w, b in problem.layers(problem.p)]
        flat, unravel = ravel_pytree(tree)
        self.p, self.tree = (tree, lambda p: p) if form == "tree" else (flat, unravel)
        self.x, self.t = jnp.asarray(problem.x), jnp.asarray(problem.t)
        self.state: Any = None

    def loss(self, p: Any, x: jax.Array, t: jax.Array) -> jax.Array:
        for (w, b), name in zip(self.tree(p), self.problem.activations, strict=True):
            x = _ACTIVATIONS[name](x @ w + b)
        squares = (x - t) ** 2
        return jnp.mean(squares) if self.problem.loss == "mse" else 0.5 * jnp.sum(squares) / len(x)

    def start(self) -> None:
        zeros = partial(jax.tree.map, jnp.zeros_like)
        extra = (zeros(self.p), zeros(self.p), jnp.zeros((), self.problem.dtype)) if self.problem.optimizer == "adam" else ()
        self.state = jax.block_until_ready((jax.tree.map(jnp.copy, self.p), *extra))

    def step(self, state: Any, x: jax.Array, t: jax.Array) -> tuple[Any, jax.Array]:
        value, g = jax.value_and_grad(self.loss)(state[0], x, t)
        rate, tree_map = self.problem.rate, jax.tree.map
        if self.problem.optimizer == "sgd":
            return (tree_map(lambda p, g: p - rate * g, state[0], g),), value
        p, m, v, count = state
        count = count + 1
        root = jnp.sqrt(1 - 0.999**count)
        m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        change = rate * root / (1 - 0.9**count)
        p = tree_map(lambda p, m, v: p - change * m / (jnp.sqrt(v) + 1e-8 * root), p, m, v)
        return (p, m, v, count), value

    def result(self) -> np.ndarray:
        return np.asarray(ravel_pytree(self.tree(self.state[0]))[0])


def step_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Steps with all samples."""
    return [make(problem, form) for make in (_jitted_steps, _scanned_steps) for form in _FORMS]


def _jitted_steps(problem: Problem, form: str) -> Contestant:
    model = _Model(problem, form)
    step = jax.jit(model.step, donate_argnums=0)

    def run(n: int) -> None:
        state = model.state
        for _ in range(n):
            state, _ = step(state, model.x, model.t)
        model.state = jax.block_until_ready(state)

    return Contestant(f"JAX jit, {form}, {problem.dtype}", model.start, run, model.result)


def _scanned_steps(problem: Problem, form: str) -> Contestant:
    model = _Model(problem, form)

    @partial(jax.jit, donate_argnums=0)
    def steps(state: Any, x: jax.Array, t: jax.Array) -> Any:
        return jax.lax.scan(lambda state, _: model.step(state, x, t), state, None, length=_SCAN)

    def run(n: int) -> None:
        state = model.state
        for _ in range(n // _SCAN):
            state, _ = steps(state, model.x, model.t)
        model.state = jax.block_until_ready(state)

    return Contestant(f"JAX scan, {form}, {problem.dtype}", model.start, run, model.result, chunk=_SCAN)


def epoch_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Epochs in shuffled batches, gathered inside the compiled function; the shuffle is NumPy's, which is faster."""
    return [_epochs(problem, form, scan) for scan in (False, True) for form in _FORMS]


def _epochs(problem: Problem, form: str, scan: bool) -> Contestant:
    model = _Model(problem, form)
    rng = np.random.default_rng(0)

    def gathered(state: Any, x: jax.Array, t: jax.Array, piece: jax.Array) -> tuple[Any, jax.Array]:
        return model.step(state, x[piece], t[piece])

    @partial(jax.jit, donate_argnums=0)
    def epoch(state: Any, x: jax.Array, t: jax.Array, pieces: jax.Array) -> Any:
        return jax.lax.scan(lambda state, piece: gathered(state, x, t, piece), state, pieces)

    step = jax.jit(gathered, donate_argnums=0)

    def run(n: int) -> None:
        state = model.state
        for _ in range(n):
            pieces = rng.permutation(problem.samples).astype(np.int32).reshape(-1, problem.batch_size)
            if scan:
                state, _ = epoch(state, model.x, model.t, pieces)
            else:
                for piece in pieces:
                    state, _ = step(state, model.x, model.t, piece)
        model.state = jax.block_until_ready(state)

    return Contestant(f"JAX {'scan' if scan else 'jit'}, {form}, {problem.dtype}", model.start, run, model.result)


def gradient_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Values and gradients, one after another without waiting for each."""
    return [_gradients(problem, form, jax.block_until_ready) for form in _FORMS]


def call_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Values and gradients, each waited for, as a solver does."""
    return [_gradients(problem, form, None) for form in _FORMS]


def _gradients(problem: Problem, form: str, wait_at_end: Callable[[Any], Any] | None) -> Contestant:
    model = _Model(problem, form)
    gradient = jax.jit(jax.value_and_grad(model.loss))
    results: list[Any] = [None]

    def run(n: int) -> None:
        p, x, t, result = model.p, model.x, model.t, None
        for _ in range(n):
            result = gradient(p, x, t)
            if wait_at_end is None:
                float(result[0])
        results[0] = jax.block_until_ready(result)

    def result() -> tuple[float, np.ndarray]:
        value, g = results[0]
        return float(value), np.asarray(ravel_pytree(g)[0])

    return Contestant(f"JAX jit, {form}, {problem.dtype}", lambda: None, run, result)
