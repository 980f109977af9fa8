"""The cases of the tests' harness on an array library, against NumPy in float64.

    python -m benchmarks.gpu.array_api torch:cuda
    python -m benchmarks.gpu.array_api cupy --out results.jsonl
    python -m benchmarks.gpu.array_api torch:cpu --float32 --only "Conv*"
    python -m benchmarks.gpu.array_api torch:cuda --conformance
    python -m benchmarks.gpu.array_api torch:cpu --times

The first argument is a library, and a device of it after a colon. Each case is a value with its gradient, and both gradients
of a cotangent. A line is printed for each case that fails, and a count at the end. With ``--out``, each result is written as a
line of JSON when it is known. After ``--seconds``, the cases that are left are counted as not run. The exit status is 0 if all
cases passed. ``--times`` prints the times of value and gradient of some networks, beside the other backends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import chains
from chains import GRU, Conv, Dense, Flatten, MaxPool, tanh
from chains.backends import ArrayBackend, register
from chains.testing import check_backend, usable_backends
from tests.harness import CASES, Case

NAME = "array-api"  # under which the backend is registered
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}  # relative to the largest entry, at least 1
SAMPLES = 5
ROUNDS = 12  # of `--times`
# The layers, the shape of a sample, the batch size.
NETWORKS: dict[str, tuple[Sequence[Any], tuple[int, ...], int]] = {
    "dense 4-32-16-4, batch 100": ((Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), (4,), 100),
    "dense 784-100-10, batch 100": ((Dense(784, 100, tanh), Dense(100, 10)), (784,), 100),
    "LeNet-5, batch 32": (
        (Conv(1, 6, 5, tanh, padding=2), MaxPool(2), Conv(6, 16, 5, tanh), MaxPool(2), Flatten(), Dense(400, 120, tanh),
         Dense(120, 84, tanh), Dense(84, 10)), (1, 28, 28), 32,
    ),
    "GRU with 32 units, 20 steps, batch 32": ((GRU(8, 32), Dense(32, 1)), (20, 8), 32),
}  # fmt: skip


def error(case: Case, dtype: str) -> float:
    """The largest difference from NumPy in float64, relative to the scale of each result."""
    problem = case.problem(SAMPLES)
    calls: list[Callable[..., Any]] = [problem.value_and_grad, problem.vjp]
    worst = 0.0
    for call in calls:
        for wanted, found in zip(call("numpy", mode="train"), call(NAME, np.dtype(dtype), mode="train"), strict=True):
            worst = max(worst, _difference(np.asarray(found, np.float64), np.asarray(wanted)))
    return worst


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Infinite where one of the two is NaN, or the shapes differ."""
    if found.shape != wanted.shape or not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return float("inf")
    scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0)))
    return float(np.nanmax(np.abs(found - wanted), initial=0.0)) / scale


def checked(case: Case, dtype: str) -> dict[str, Any]:
    """The result of a case: its error, whether it passed, and what was raised."""
    start = time.perf_counter()
    try:
        found, why = error(case, dtype), ""
    except Exception as raised:  # the other cases are still checked
        lines = traceback.format_exception(raised)
        found, why = float("inf"), f"{type(raised).__name__}: {raised}\n{''.join(lines[-3:])}"
    passed = found <= TOLERANCE[dtype]
    return {"case": case.name, "passed": passed, "error": found, "seconds": round(time.perf_counter() - start, 3), "why": why}


def conformance(backend: ArrayBackend, out: Path | None) -> int:
    """Print the table of the conformance test, and write it. Returns 0 if nothing is wrong."""
    try:
        text, status = str(check_backend(backend)), 0
    except AssertionError as wrong:
        text, status = str(wrong), 1
    print(text)
    if out is not None:
        out.write_text(text)
    return status


def times(backend: ArrayBackend) -> None:
    """Print microseconds of `value_and_grad` in float32, on one thread: minima of calls in turns."""
    rows = [backend, *(name for name in ("numpy", "native") if name in usable_backends())]
    print(f"{'network':40}", *(f"{each if isinstance(each, str) else each.name:>14}" for each in rows))
    for name, (layers, shape, batch) in NETWORKS.items():
        calls = [_call(layers, shape, batch, each) for each in rows]
        found = [[_microseconds(call) for call in calls] for _ in range(ROUNDS)]
        print(f"{name:40}", *(f"{min(column):14,.0f}" for column in zip(*found, strict=True)), flush=True)


def _call(layers: Sequence[Any], shape: tuple[int, ...], batch: int, backend: Any) -> Callable[[], object]:
    rng, net = np.random.default_rng(0), chains.Chain(*layers, input_shape=shape, backend=backend)
    x, p = rng.normal(size=(batch, *shape)).astype(np.float32), net.init(seed=0)
    t, g = rng.normal(size=(batch, *net.output_shape)).astype(np.float32), np.empty_like(p)
    call = partial(net.value_and_grad, p, x, t, chains.SquaredLoss(), out=g)
    call()  # compiles
    return call


def _microseconds(call: Callable[[], object]) -> float:
    """The time of the fastest of some calls."""
    begun, times = time.perf_counter(), list[float]()
    while len(times) < 3 or time.perf_counter() - begun < 0.05:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.array_api", description="Checks an array library.")
    parser.add_argument("library", help="such as torch:cuda, torch:cpu, cupy or array_api_strict")
    parser.add_argument("--out", type=Path, help="a file for the results, a line of JSON each")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of cases (%(default)s)")
    parser.add_argument("--float32", action="store_true", help="in float32 instead of float64")
    parser.add_argument("--conformance", action="store_true", help="chains.testing.check_backend instead of the cases")
    parser.add_argument("--seconds", type=float, default=55.0, help="no case starts later (%(default)s)")
    parser.add_argument("--times", action="store_true", help="times beside the other backends instead of the cases")
    options = parser.parse_args(arguments)
    name, _, device = options.library.partition(":")
    start = time.perf_counter()
    backend = ArrayBackend(name, device or None)
    register(NAME, backend)
    if options.times:
        chains.set_num_threads(1)
        times(backend)
        return 0
    if options.conformance:
        return conformance(backend, options.out)
    cases = [case for case in CASES if fnmatchcase(case.name, options.only)]
    results, dtype = [], "float32" if options.float32 else "float64"
    with open(options.out or "/dev/null", "w") as file:
        for case in cases:
            if time.perf_counter() - start > options.seconds:
                break
            results.append(result := checked(case, dtype))
            print(json.dumps(result), file=file, flush=True)
            if not result["passed"]:
                why = result["why"].partition("\n")[0] or f"error {result['error']:.3g}"
                print(f"{case.name}: {why}", flush=True)
    passed, errors = sum(each["passed"] for each in results), [each["error"] for each in results if each["passed"]]
    left = f", {len(cases) - len(results)} not run" if len(results) < len(cases) else ""
    print(
        f"{backend.name}, {dtype}: {passed} of {len(cases)} cases equal NumPy{left}; largest error of these "
        f"{max(errors, default=0.0):.2g}; {time.perf_counter() - start:.0f} s"
    )
    return 0 if passed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
