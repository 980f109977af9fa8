"""The cases of the tests' harness on an array library, against NumPy in float64.

    python -m benchmarks.gpu.array_api torch:cuda
    python -m benchmarks.gpu.array_api cupy --out results.jsonl
    python -m benchmarks.gpu.array_api torch:cpu --float32 --only "Conv*"
    python -m benchmarks.gpu.array_api torch:cuda --conformance

The first argument is a library, and a device of it after a colon. Each case is a value with its gradient, and both gradients
of a cotangent. A line is printed for each case that fails, and a count at the end. With ``--out``, each result is written as a
line of JSON when it is known. After ``--seconds``, the cases that are left are counted as not run. The exit status is 0 if all
cases passed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from chains.backends import ArrayBackend, register
from chains.testing import check_backend
from tests.harness import CASES, Case

NAME = "array-api"  # under which the backend is registered
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}  # relative to the largest entry, at least 1
SAMPLES = 5


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.array_api", description="Checks an array library.")
    parser.add_argument("library", help="such as torch:cuda, torch:cpu, cupy or array_api_strict")
    parser.add_argument("--out", type=Path, help="a file for the results, a line of JSON each")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of cases (%(default)s)")
    parser.add_argument("--float32", action="store_true", help="in float32 instead of float64")
    parser.add_argument("--conformance", action="store_true", help="chains.testing.check_backend instead of the cases")
    parser.add_argument("--seconds", type=float, default=55.0, help="no case starts later (%(default)s)")
    options = parser.parse_args(arguments)
    name, _, device = options.library.partition(":")
    start = time.perf_counter()
    backend = ArrayBackend(name, device or None)
    register(NAME, backend)
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
