"""The problems of `benchmarks.gpu` in JAX on the GPU: all steps in one jitted `lax.scan`."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np

import chains
from benchmarks.gpu.problems import NoGpuError, Problem, Result, Setting, activation_of, problem, timing

Tree = list[Any]


def measure(key: str, precision: str, members: int, setting: Setting) -> Result:
    """The seconds of all epochs and the loss of the last step; full batches only. `members`: of an ensemble, if not 0.

    A rehearsal runs on the processor; else it raises NoGpuError where JAX has no GPU.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    platform = jax.default_backend()
    if platform not in ("gpu", "cuda") and not setting.tiny:
        raise NoGpuError(f"JAX is installed for {platform!r} alone")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "float32")
    given = problem(key, setting)
    model = _Model(jax, given, members)
    _, value = model.run(model.start())  # which compiles
    first = float(value.mean())
    best = np.inf
    for _ in range(2):
        state = jax.block_until_ready(model.start())
        begin = time.perf_counter()
        jax.block_until_ready(model.run(state))
        best = min(best, time.perf_counter() - begin)
    return {"loss": first, "version": jax.__version__} | timing(best, given.steps)


class _Model:
    """The parameters as a list of arrays, the loss, a step and epochs of steps."""

    def __init__(self, jax: Any, given: Problem, members: int = 0) -> None:
        self._jax, self._problem, jnp = jax, given, jax.numpy
        net = given.net("numpy")
        p = net.init_many(members) if members else net.init(seed=0)[None]
        arrays = [p[:, each.start : each.stop].reshape(-1, *each.shape) for each in net.layout]
        self._p = arrays if members else [each[0] for each in arrays]
        self._x = jnp.asarray(given.x)
        self._t = jnp.asarray(given.t.astype(np.int32) if given.t.dtype.kind in "iu" else given.t)
        self._functions = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "identity": lambda z: z}
        scan, self._started = self._scan, self._fresh
        if members:
            scan, self._started = jax.vmap(scan, (0, None, None, None)), jax.vmap(self._fresh)
        self._scanned = jax.jit(scan, donate_argnums=0)
        self._begun, self._updated, self._values = _optimizer(given.optimizer)
        self._whole = given.batch == len(given.x)

    def start(self) -> Any:
        return self._jax.device_put(self._started(self._p))

    def _fresh(self, p: Tree) -> Any:
        return self._jax.numpy.zeros((), np.int32), self._begun(p)

    def run(self, state: Any) -> tuple[Any, Any]:
        """The state after all steps of all epochs, in one call, and the loss of the last one."""
        random, batch, epochs = self._jax.random, self._problem.batch, self._problem.epochs
        if self._whole:  # each step takes all samples
            order = self._jax.numpy.zeros((epochs, 0), np.int32)
        else:
            samples = self._jax.numpy.arange(len(self._x) - len(self._x) % batch)
            drawn = [random.permutation(random.key(epoch), samples).reshape(-1, batch) for epoch in range(epochs)]
            order = self._jax.numpy.concatenate(drawn)
        state, values = self._scanned(state, self._x, self._t, order)
        return state, values[..., -1]

    def _scan(self, state: Any, x: Any, t: Any, order: Any) -> tuple[Any, Any]:
        return self._jax.lax.scan(lambda state, part: self._update(state, x, t, part), state, order)

    def _update(self, state: Any, x: Any, t: Any, part: Any) -> tuple[Any, Any]:
        jax, (count, inner) = self._jax, state
        key = jax.random.fold_in(jax.random.key(0, impl="rbg"), count)
        batch = (x, t) if self._whole else (x[part], t[part])
        value, g = jax.value_and_grad(self._loss)(self._values(inner), *batch, key)
        return (count + 1, self._updated(count, g, inner)), value

    def _loss(self, p: Tree, x: Any, t: Any, key: Any) -> Any:
        jnp, tensors = self._jax.numpy, iter(p)
        for number, layer in enumerate(self._problem.layers):
            x = self._layer(layer, x, tensors, partial(self._jax.random.fold_in, key, number))
            x = self._functions[activation_of(layer)](x)
        if isinstance(self._problem.loss, chains.CrossEntropyLoss):
            return jnp.mean(self._jax.nn.logsumexp(x, 1) - jnp.take_along_axis(x, t[:, None], 1)[:, 0])
        squares = (x - t) ** 2
        return jnp.mean(squares) if self._problem.loss == chains.MSELoss() else 0.5 * jnp.sum(squares) / len(x)

    def _layer(self, layer: Any, x: Any, tensors: Any, key: Any) -> Any:
        match layer:
            case chains.Conv():
                names = ("NCHW", "OIHW", "NCHW")
                convolved = partial(self._jax.lax.conv_general_dilated, dimension_numbers=names)
                return convolved(x, next(tensors), (1, 1), layer.window.padding) + next(tensors)[:, None, None]
            case chains.Dense():
                return x @ next(tensors) + next(tensors)
            case chains.MaxPool():
                n, c, h, w = x.shape
                return x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
            case chains.Flatten():
                return x.reshape(len(x), -1)
            case chains.Dropout():
                keep = self._jax.random.bernoulli(key(), 1.0 - layer.rate, x.shape)
                return self._jax.numpy.where(keep, x / (1.0 - layer.rate), 0.0)
        return x


def _optimizer(given: Any) -> Any:
    """What makes the optimiser's state, what updates it, and what takes the parameters from it."""
    from jax.example_libraries import optimizers

    if isinstance(given, chains.Adam):
        return optimizers.adam(given.learning_rate)
    return optimizers.momentum(given.learning_rate, given.momentum)
