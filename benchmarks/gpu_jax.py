"""The problems of `benchmarks.gpu` in JAX on the GPU: a step jitted, and an epoch of steps in one `lax.scan`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import chains
from benchmarks.gpu_problems import NoGpuError, Problem, Setting, activation_of, problem, timing

Tree = list[Any]


def measure(key: str, mode: str, precision: str, setting: Setting) -> dict[str, Any]:
    """The seconds of all epochs, "jit" a step or "scan" an epoch; batches that are not full are left out.

    Where all is tiny, it runs anywhere; else it raises NoGpuError where JAX has no GPU.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    platform = jax.default_backend()
    if platform not in ("gpu", "cuda") and not setting.tiny:
        raise NoGpuError(f"JAX is installed for {platform!r} alone")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "float32")
    given = problem(key, setting)
    model = _Model(jax, given)
    run = model.scanned if mode == "scan" else model.jitted
    state, value = run(model.start())  # which compiles
    first = float(value)
    best = np.inf
    for _ in range(2):
        state = jax.block_until_ready(model.start())
        begin = time.perf_counter()
        state, value = run(state)
        jax.block_until_ready(state)
        best = min(best, time.perf_counter() - begin)
    return {"loss": first, "version": jax.__version__} | timing(best, given.full_steps)


class _Model:
    """The parameters as a list of arrays, the loss, a step and epochs of steps."""

    def __init__(self, jax: Any, given: Problem) -> None:
        self._jax, self._problem, jnp = jax, given, jax.numpy
        net = given.net("numpy")
        self._p = list(net.views(net.init(seed=0)).values())
        self._x = jnp.asarray(given.x)
        self._t = jnp.asarray(given.t.astype(np.int32) if given.t.dtype.kind in "iu" else given.t)
        self._functions = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "identity": lambda z: z}
        self._step = jax.jit(self._update, donate_argnums=0)
        self._epoch = jax.jit(self._scan, donate_argnums=0)
        self._whole = given.batch == len(given.x)
        self._all = jnp.arange(len(given.x) - len(given.x) % given.batch)

    def start(self) -> Any:
        zeros = [np.zeros_like(a) for a in self._p]
        return self._jax.device_put((self._p, zeros, [a.copy() for a in zeros], np.zeros((), np.int32)))

    def _orders(self) -> Any:
        """The samples of each step of an epoch, (steps, batch), after another."""
        random, batch = self._jax.random, self._problem.batch
        for epoch in range(self._problem.epochs):
            yield random.permutation(random.key(epoch), self._all).reshape(-1, batch)

    def jitted(self, state: Any) -> tuple[Any, Any]:
        value = None
        if self._whole:
            for _ in range(self._problem.epochs):
                state, value = self._step(state, self._x, self._t, self._all)
            return state, value
        for order in self._orders():
            for piece in order:
                state, value = self._step(state, self._x, self._t, piece)
        return state, value

    def scanned(self, state: Any) -> tuple[Any, Any]:
        if self._whole:  # an epoch is one step, and all epochs are scanned
            state, values = self._epoch(state, self._x, self._t, self._jax.numpy.zeros((self._problem.epochs, 0), np.int32))
            return state, values[-1]
        values = [0.0]
        for order in self._orders():
            state, values = self._epoch(state, self._x, self._t, order)
        return state, values[-1]

    def _scan(self, state: Any, x: Any, t: Any, order: Any) -> tuple[Any, Any]:
        return self._jax.lax.scan(lambda state, piece: self._update(state, x, t, piece), state, order)

    def _update(self, state: Any, x: Any, t: Any, piece: Any) -> tuple[Any, Any]:
        jax, optimizer = self._jax, self._problem.optimizer
        p, m, v, count = state
        key = jax.random.fold_in(jax.random.key(0, impl="rbg"), count)
        batch = (x, t) if self._whole else (x[piece], t[piece])
        value, g = jax.value_and_grad(self._loss)(p, *batch, key)
        count, rate = count + 1, optimizer.learning_rate
        if isinstance(optimizer, chains.Adam):
            m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
            v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
            root = jax.numpy.sqrt(1 - 0.999 ** count.astype(np.float32))
            change = rate * root / (1 - 0.9 ** count.astype(np.float32))
            p = [a - change * b / (jax.numpy.sqrt(c) + 1e-8 * root) for a, b, c in zip(p, m, v, strict=True)]
        else:
            m = [optimizer.momentum * a + b for a, b in zip(m, g, strict=True)]
            p = [a - rate * b for a, b in zip(p, m, strict=True)]
        return (p, m, v, count), value

    def _loss(self, p: Tree, x: Any, t: Any, key: Any) -> Any:
        jnp, tensors = self._jax.numpy, iter(p)
        for number, layer in enumerate(self._problem.layers):
            x = self._layer(layer, x, tensors, partial(self._jax.random.fold_in, key, number))
            x = self._functions[activation_of(layer)](x)
        if isinstance(self._problem.loss, chains.CrossEntropyLoss):
            return jnp.mean(self._jax.nn.logsumexp(x, 1) - jnp.take_along_axis(x, t[:, None], 1)[:, 0])
        squares = (x - t) ** 2
        return jnp.mean(squares) if self._problem.loss == chains.MSELoss() else 0.5 * jnp.sum(squares) / len(x)

    def _layer(self, layer: Any, x: Any, tensors: Any, key: Callable[[], Any]) -> Any:
        lax, jnp = self._jax.lax, self._jax.numpy
        if isinstance(layer, chains.Conv):
            names = ("NCHW", "OIHW", "NCHW")
            y = lax.conv_general_dilated(x, next(tensors), (1, 1), layer.window.padding, dimension_numbers=names)
            return y + next(tensors)[:, None, None]
        if isinstance(layer, chains.Dense):
            return x @ next(tensors) + next(tensors)
        if isinstance(layer, chains.MaxPool):
            n, c, h, w = x.shape
            return x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
        if isinstance(layer, chains.Flatten):
            return x.reshape(len(x), -1)
        if isinstance(layer, chains.Dropout):
            keep = self._jax.random.bernoulli(key(), 1.0 - layer.rate, x.shape)
            return jnp.where(keep, x / (1.0 - layer.rate), 0.0)
        return x
