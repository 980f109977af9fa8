"""Programs on the emulated GPU with its memory watched: whether any kernel reads or writes what it must not, or too early.

Each attempt is a program of the tests' harness, kernel by kernel or as one kernel, shared out among blocks in some way, in a
type, at a batch size, run once and three times, which captures it too; or training with data there or streamed, of one network
or several. Results are those of NumPy, but for factors that are rounded. Needs a C compiler that has the calls of a thread
sanitizer.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import numpy as np

from chains import ODE, SGD, Chain, CrossEntropyLoss, Dense, Dropout, Shift, SquaredLoss, backends, tanh, train
from chains.backends import Cupy
from chains.backends.cupy import backend as choosing
from chains.backends.cupy.fused import tiling_policy
from chains.network import record
from chains.network.network import network_of
from tests.campaign import running
from tests.cupy import watched
from tests.cupy.support import arrays_of, gradient_program
from tests.harness import CASES, CLIPPED, OPTIMIZERS, Case, assert_close, run_program

SHARES = (  # how a batch is shared out, by the constants of `tiling_policy`
    {"MAX_ONE_BLOCK_OPERATIONS": 1 << 40},
    {"MAX_ONE_BLOCK_OPERATIONS": 0, "MIN_BLOCK_SAMPLES": 3},
    {"MAX_ONE_BLOCK_OPERATIONS": 0, "MAX_BLOCKS": 2, "MAX_TILE_SAMPLES": 5},
    {"MAX_ONE_BLOCK_OPERATIONS": 0, "MAX_BLOCKS": 1, "MAX_TILE_SAMPLES": 7},
)
TOLERANCE = {np.float32: 1e-3, np.float64: 1e-10}
BATCHES = (1, 7, 19, 70)


def missing() -> str:
    return "" if watched.available() else "install GCC or Clang with its thread sanitizer, with which memory is watched"


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    share = SHARES[int(rng.integers(len(SHARES)))]
    settings = {
        "fused": bool(rng.random() < 0.5),
        "backwards": bool(rng.random() < 0.5),
        "settings": Cupy(str(rng.choice(["float32", "float32", "tf32"])), ("own", "cudnn")[int(rng.integers(2))]),
    }
    whole = choosing.suits if rng.random() < 0.8 else lambda program: False  # else loops at most are one kernel
    with (
        mock.patch.object(choosing, "suits", whole),
        mock.patch.multiple(tiling_policy, **share),
        mock.patch.dict(backends.registry._BACKENDS, watched=watched.WatchedBackend),
        mock.patch.dict(backends.registry._loaded, watched=watched.WatchedBackend(**settings)),
    ):
        device = backends.registry._loaded["watched"].on_device.device  # type: ignore[attr-defined]
        case, dtype = CASES[int(rng.integers(len(CASES)))], (np.float32, np.float64)[int(rng.integers(2))]
        done = (_trained, _trained_vector, _program, _program, _program, _program)[int(rng.integers(6))]
        try:
            outcome = done(rng, case, dtype, device)
        except AssertionError as error:
            raise AssertionError(f"{case} {np.dtype(dtype)} {settings} {share}: {error}") from error
    return f"{outcome}, {'one kernel' if settings['fused'] else 'kernel by kernel'}"


def _program(rng: np.random.Generator, case: Case, dtype: type[np.floating], device: watched.WatchedDevice) -> str:
    problem = case.problem(int(rng.choice(BATCHES)))
    arrays, batch = arrays_of(problem), len(problem.x)
    if rng.random() < 0.5:
        what, program = "gradient", gradient_program(case, dtype)
    else:
        net = case.net()
        what, program = "pullback", record.vjp(network_of(net), dtype, True)
        arrays |= {"dy": rng.normal(size=(batch, *net.output_shape))}
    arrays = {name: array for name, array in arrays.items() if name in program.buffers}
    found = run_program(program, "watched", batch, arrays)
    run_program(program, "watched", batch, arrays, runs=3)
    if device.settings.precision == "float32" or dtype == np.float64:
        wanted = run_program(program, "numpy", batch, arrays)
        for name in wanted:
            assert_close(found[name], wanted[name], TOLERANCE[dtype], name)
    device.end()
    return what


def _trained(rng: np.random.Generator, case: Case, dtype: type[np.floating], device: watched.WatchedDevice) -> str:
    """A dense network of drawn lengths, whose loss falls by what NumPy's falls by."""
    inputs, inner, members = (int(rng.integers(1, most)) for most in (9, 40, 4))
    layers = [Dense(inputs, inner, tanh), Dropout(0.2), Dense(inner, 3)]
    optimizer = list((OPTIMIZERS | CLIPPED).values())[int(rng.integers(len(OPTIMIZERS | CLIPPED)))]
    x, t = rng.normal(size=(23, inputs)).astype(dtype), rng.integers(0, 3, 23)
    device.free = 0 if rng.random() < 0.5 else 1 << 40
    settings: dict[str, Any] = {"epochs": 2, "batch_size": int(rng.choice([4, 10, 23])), "seed": 1}
    losses = []
    for name in ("watched", "numpy"):
        net = Chain(*layers, backend=name)
        p = net.init(seed=0, dtype=dtype)
        if members > 1:
            p, settings["seed"] = net.init_many(members, seed=0, dtype=dtype), list(range(members))
        losses.append(train(net, p, x, t, CrossEntropyLoss(), optimizer, **settings).loss)
    if device.settings.precision == "float32" or dtype == np.float64:
        assert_close(np.array(losses[0]), np.array(losses[1]), 1e-2)
    device.end()
    return f"training of {'several' if members > 1 else 'one'}, data {'streamed' if device.free == 0 else 'there'}"


def _trained_vector(rng: np.random.Generator, case: Case, dtype: type[np.floating], device: watched.WatchedDevice) -> str:
    """A network of one vector whose gradient is two sums, since a midpoint step uses it twice."""
    inputs, found = int(rng.integers(1, 9)), []
    x, t = rng.normal(size=(16, inputs)), rng.normal(size=(16, 2, inputs))
    for name in ("watched", "numpy"):
        net = Chain(ODE(Shift(), (0.0, 0.5), "midpoint", 2), input_shape=(inputs,), backend=name)
        found.append(net.init(seed=1, dtype=dtype))
        train(net, found[-1], x, t, SquaredLoss(), SGD(0.1), epochs=1, batch_size=8, seed=2)
    assert_close(*found, TOLERANCE[dtype])
    device.end()
    return "training of one vector"


if __name__ == "__main__":
    sys.exit(running.main(attempt, missing=missing))
