"""Other libraries in the same rows, each in its fastest mode on one thread; those that are not installed are named.

They are called from Python. What a call from Python costs is part of their times, and matters in rows of one sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness.timing import Contestant as Stepper
from benchmarks.problems.dense import Problem
from chains import Chain
from chains.interop import to_onnx

Names = Collection[str]  # of the libraries that take part
LIBRARIES = {"jax": "JAX", "torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Peer:
    """A library that fills `y` when it is run."""

    name: str
    run: Callable[[], Any]


def installed() -> tuple[str, ...]:
    """The names of the libraries that can take part."""
    return tuple(name for name in LIBRARIES if find_spec(name) is not None)


def _jax(names: Names) -> Any:
    if "jax" not in names:
        return None
    flags = os.environ.get("XLA_FLAGS", "")
    if ONE_THREAD not in flags:  # read when JAX is loaded
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    from benchmarks.peers import jax_dense

    return jax_dense


def _torch(names: Names) -> Any:
    if "torch" not in names:
        return None
    from benchmarks.peers import torch_dense

    torch_dense.torch.set_num_threads(1)
    return torch_dense


def steps(names: Names, problem: Problem) -> Iterator[Stepper]:
    """Training steps on all samples: JAX's scan over steps, and PyTorch's step compiled as a whole."""
    if (jax := _jax(names)) is not None:
        for form in ("tree", "flat vector"):
            yield jax._scanned_steps(problem, form)
    if (torch := _torch(names)) is not None:
        yield torch._steps(problem, "compile whole step", 1, "PyTorch compile whole step")


def batches(names: Names, problem: Problem, order: np.ndarray) -> Iterator[Stepper]:
    """Training steps on batches that are gathered in this order."""
    pieces = order.reshape(-1, problem.batch_size)
    if (jax := _jax(names)) is not None:
        yield _scanned_batches(jax, problem, pieces.astype(np.int32))
    if (torch := _torch(names)) is not None:
        yield _compiled_batches(torch, problem, pieces)


def _scanned_batches(module: Any, problem: Problem, pieces: np.ndarray) -> Stepper:
    jax, model = module.jax, module._Model(problem, "tree")

    def step(state: Any, piece: Any) -> Any:
        return model.step(state, model.x[piece], model.t[piece])

    scan = jax.jit(lambda state, pieces: jax.lax.scan(step, state, pieces)[0])

    def run(n: int) -> None:
        model.state = jax.block_until_ready(scan(model.state, pieces[:n]))

    return Stepper("JAX scan", model.start, run, model.result)


def _compiled_batches(module: Any, problem: Problem, pieces: np.ndarray) -> Stepper:
    torch, model = module.torch, module._Model(problem)
    step, start = module._stepper(model, "compile whole step")
    indices = torch.from_numpy(pieces.astype(np.int64))

    def run(n: int) -> None:
        for piece in indices[:n]:
            step(model.x[piece], model.t[piece])

    return Stepper("PyTorch compile whole step", start, run, model.result)


def outputs(names: Names, net: Chain, x: np.ndarray, p: np.ndarray, y: np.ndarray) -> Iterator[Peer]:
    """The outputs of a network that ONNX has."""
    if "onnxruntime" not in names:
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = to_onnx(net, p).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    yield Peer("ONNX Runtime, from Python", lambda: _copy(y, session.run(["y"], {"x": x})[0]))


def _copy(y: np.ndarray, found: Any) -> None:
    y[...] = np.asarray(found)


def dense_outputs(names: Names, problem: Problem, x: np.ndarray, y: np.ndarray) -> Iterator[Peer]:
    """The outputs of dense layers."""
    if (by_jax := _jax(names)) is not None:
        model = by_jax._Model(problem, "tree")
        call = by_jax.jax.jit(lambda p, x: _layers(problem, p, x, by_jax._ACTIVATIONS))
        yield Peer("JAX jit, from Python", lambda: _copy(y, call(model.p, x)))
    if (by_torch := _torch(names)) is not None:
        tensor = by_torch.torch.from_numpy
        weights = [(tensor(w.copy()), tensor(b.copy())) for w, b in problem.layers(problem.p)]
        yield _of_torch(lambda x: _layers(problem, weights, x, by_torch._ACTIVATIONS), x, y)


def _of_torch(eager: Callable[[Any], Any], x: np.ndarray, y: np.ndarray) -> Peer:
    import torch

    compiled, given = torch.compile(eager, dynamic=False), torch.from_numpy(x)

    def run() -> None:
        with torch.inference_mode():
            _copy(y, compiled(given))

    return Peer("PyTorch compile, from Python", run)


def _layers(problem: Problem, layers: Sequence[Any], x: Any, activations: dict[str, Any]) -> Any:
    for (w, b), name in zip(layers, problem.activations, strict=True):
        x = activations[name](x @ w + b)
    return x


def images(names: Names, x: np.ndarray, p: np.ndarray, y: np.ndarray) -> Iterator[Peer]:
    """LeNet-5's convolutions."""
    w1, b1, w2, b2 = (part.reshape(shape) for part, shape in zip(np.split(p, [150, 156, 2556]), LENET, strict=True))
    if (by_jax := _jax(names)) is not None:
        lax, jnp = by_jax.jax.lax, by_jax.jnp

        def pooled(x: Any, w: Any, b: Any) -> Any:
            x = lax.conv_general_dilated(x, w, (1, 1), "VALID") + b[:, None, None]
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            return jnp.maximum(x, 0.0)

        call = by_jax.jax.jit(lambda x: pooled(pooled(x, w1, b1), w2, b2))
        yield Peer("JAX jit", lambda: _copy(y, call(x)))
    if (by_torch := _torch(names)) is not None:
        torch = by_torch.torch
        first, last = ([torch.from_numpy(a.copy()) for a in pair] for pair in ((w1, b1), (w2, b2)))
        convolve, pool = torch.nn.functional.conv2d, torch.nn.functional.max_pool2d
        yield _of_torch(lambda x: pool(convolve(pool(convolve(x, *first), 2).relu(), *last), 2).relu(), x, y)


LENET = ((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,))


def equation(names: Names, x: np.ndarray, p: np.ndarray, y: np.ndarray) -> Iterator[Peer]:
    """100 steps of RK4 of 2-5-5-5-2."""
    if (module := _jax(names)) is None:
        return
    jax, jnp, problem = module.jax, module.jnp, Problem((2, 5, 5, 5, 2), "tanh", "linear", "mse", "sgd", 0.0, x, x, p, 1)
    layers = [(jnp.asarray(w), jnp.asarray(b)) for w, b in problem.layers(p)]

    def slope(y: Any) -> Any:
        return _layers(problem, layers, y, module._ACTIVATIONS)

    def step(_: Any, y: Any) -> Any:
        h = np.float32(0.01)
        a = slope(y)
        b = slope(y + 0.5 * h * a)
        c = slope(y + 0.5 * h * b)
        return y + h / 6 * (a + 2 * b + 2 * c + slope(y + h * c))

    call = jax.jit(lambda x: jnp.stack([x, jax.lax.fori_loop(0, 100, step, x)], 1))
    yield Peer("JAX jit", lambda: _copy(y, call(x)))


def normal(names: Names, x: np.ndarray, t: np.ndarray, p: np.ndarray, matrix: np.ndarray, g: np.ndarray) -> Iterator[Peer]:
    """The normal equations of 2-8-8-1 with tanh."""
    if (module := _jax(names)) is None:
        return
    jax, jnp = module.jax, module.jnp
    problem = Problem((2, 8, 8, 1), "tanh", "linear", "mse", "sgd", 0.0, x, t, p, 1)

    def residual(p: Any, x: Any, t: Any) -> Any:
        return (_layers(problem, problem.layers(p), x, module._ACTIVATIONS) - t)[0]

    @jax.jit
    def equations(p: Any, x: Any, t: Any) -> Any:
        r, j = jax.vmap(jax.value_and_grad(residual), (None, 0, 0))(p, x, t)
        return 0.5 * jnp.sum(r * r), r @ j, j.T @ j

    def run() -> None:
        _, slope, product = equations(p, x, t)
        _copy(matrix, product)
        _copy(g, slope)

    yield Peer("JAX jit", run)


def members(names: Names, x: np.ndarray, t: np.ndarray, begun: dict[str, np.ndarray]) -> Iterator[Stepper]:
    """Steps of many networks on the same data, whose parameters are given by name."""
    if _jax(names) is None:
        return
    from benchmarks.peers.jax_ensemble import _Training

    training = _Training(SimpleNamespace(arrays=begun, p=begun["0.bias"], x=x, t=t, own=False), False)

    def result() -> np.ndarray:
        parts = [np.asarray(training._state[0][name]).reshape(len(begun[name]), -1) for name in begun]
        return np.concatenate(parts, 1)

    yield Stepper("JAX scan of vmap", training.start, training.run, result)
