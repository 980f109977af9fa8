"""Programs on the emulated GPU with its memory watched: whether any kernel reads or writes what it must not, or too early.

Each attempt is a program of the tests' harness, kernel by kernel or as one kernel, shared out among blocks in some way, in a
type, at a batch size, run once and three times, which captures it too. Results are those of NumPy. Needs a C compiler that has
the calls of a thread sanitizer.
"""

from __future__ import annotations

import sys
from unittest import mock

import numpy as np

from chains import backends
from chains.backends.cupy.fused import fused, tiling_policy
from chains.backends.cupy.fused.tiling_policy import suits
from chains.network import record
from tests.campaign import running
from tests.cupy import watched
from tests.cupy.support import arrays_of, gradient_program
from tests.harness import CASES, assert_close, run_program

SHARES = (  # how a batch is shared out, by the constants of `tiling_policy`
    {"MOST_ONE_BLOCK_OPERATIONS": 1 << 40},
    {"MOST_ONE_BLOCK_OPERATIONS": 0, "LEAST_BLOCK_SAMPLES": 3},
    {"MOST_ONE_BLOCK_OPERATIONS": 0, "MOST_BLOCKS": 2, "MOST_TILE_SAMPLES": 5},
    {"MOST_ONE_BLOCK_OPERATIONS": 0, "MOST_BLOCKS": 1, "MOST_TILE_SAMPLES": 7},
)
TOLERANCE = {np.float32: 1e-3, np.float64: 1e-10}
BATCHES = (1, 7, 19, 70)


def attempt(seed: int, number: int) -> str:
    if not watched.available():
        return "the compiler has no calls of a thread sanitizer"
    rng = running.draws(seed, number)
    case = CASES[int(rng.integers(len(CASES)))]
    dtype = (np.float32, np.float64)[int(rng.integers(2))]
    one, backwards = rng.random() < 0.5, bool(rng.random() < 0.5)
    convolutions = str(rng.choice(["products", "auto"]))
    share = SHARES[int(rng.integers(len(SHARES)))]
    short = int(rng.choice([0, 1 << 13]))
    batch = int(rng.choice(BATCHES))
    with (
        mock.patch.multiple(tiling_policy, **share),
        mock.patch.object(fused, "MOST_ONE_BLOCK_ELEMENTS", short),
        mock.patch.dict(backends._BACKENDS),
        mock.patch.dict(backends._loaded),
    ):
        made = watched.WatchedBackend(
            fused=bool(one), backwards=backwards, convolutions=None if convolutions == "products" else convolutions
        )
        backends._BACKENDS["watched"] = lambda: made
        backends._loaded["watched"] = made
        said = f"{case} {np.dtype(dtype)} batch {batch} {'one kernel' if one else 'kernels'} {share} {backwards} {convolutions}"
        try:
            return _done(rng, case, dtype, batch, made)
        except AssertionError as error:
            raise AssertionError(f"{said}: {error}") from error


def _done(rng: np.random.Generator, case, dtype, batch: int, made: watched.WatchedBackend) -> str:  # type: ignore[no-untyped-def]
    device = made.on_device.device
    assert isinstance(device, watched.WatchedDevice)
    problem = case.problem(batch)
    arrays, batch = arrays_of(problem), len(problem.x)
    if rng.random() < 0.5:
        what, program = "gradient", gradient_program(case, dtype)
    else:
        net = case.net()
        what, program = "pullback", record.vjp(net.network, dtype, True)
        arrays |= {"dy": rng.normal(size=(batch, *net.output_shape))}
    arrays = {name: array for name, array in arrays.items() if name in program.buffers}
    wanted = run_program(program, "numpy", batch, arrays, runs=1)
    found = run_program(program, "watched", batch, arrays, runs=1)
    run_program(program, "watched", batch, arrays, runs=3)
    for name in wanted:
        assert_close(found[name], wanted[name], TOLERANCE[dtype], name)
    device.finish()
    form = "one kernel" if made.on_device.fused and suits(program) else "kernel by kernel"
    return f"{what}, {form}"


if __name__ == "__main__":
    sys.exit(running.main(attempt))
