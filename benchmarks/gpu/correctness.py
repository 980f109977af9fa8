"""A case of the tests' harness on a GPU, against NumPy in float64.

    python -m benchmarks.gpu.correctness CASE SETTING

runs one case alone, for tools such as compute-sanitizer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks.gpu.backends import CONVOLUTIONS, backend_name, device_of, relative
from benchmarks.gpu.problems import Result, Setting
from chains.testing import listing, run_program

SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--print-limit", "3")
RUNS = {1: "launch by launch", 3: "as a graph"}
REPORTED = 4000  # letters of the sanitizer's report


def names(setting: str, tiny: bool) -> list[str]:
    """The cases for a setting of the backend: those with convolutions, if it is one for convolutions."""
    from tests.harness import CASES

    suitable = [str(case) for case in CASES if setting not in CONVOLUTIONS or "Conv" in str(case)]
    return suitable[:: 120 if tiny else 1]


def check_case(name: str, case: str, setting: Setting) -> Result:
    """The largest error of a case in float32 and float64, as a share of what is allowed; and what differs, if it is larger.

    The program runs once launch by launch, then as a graph that is replayed, which must give the same bits. Errors of the
    device are raised: they spoil the process.
    """
    from tests.cupy.support import arrays_of, gradient_program
    from tests.harness import CASES, ROUNDING

    device_of(name, setting)
    chosen, worst, wrong, texts = next(each for each in CASES if str(each) == case), 0.0, [], []
    problem = chosen.problem(70)
    for dtype in (np.float32, np.float64):
        program = gradient_program(chosen, dtype)
        backend, arrays = backend_name(name, setting), arrays_of(problem)
        found = {runs: run_program(program, backend, 70, arrays, runs=runs) for runs in RUNS}
        for runs, text in RUNS.items():
            wanted = run_program(gradient_program(chosen, np.float64), "numpy", 70, arrays, runs=runs)
            for key, each in wanted.items():
                error = relative(found[runs][key], each) / (10 * ROUNDING[np.dtype(dtype)])
                worst = max(worst, error)
                if error > 1.0:
                    wrong.append(f"{np.dtype(dtype)} {text}: {_difference(chosen, key, found[runs][key], each)}")
        for key in ("value", "g"):  # the state is another one after each run
            if found[1][key].tobytes() != found[3][key].tobytes():
                wrong.append(
                    f"{np.dtype(dtype)}, other bits as a graph: {_difference(chosen, key, found[3][key], found[1][key])}"
                )
        texts += [listing(program, backend)] if wrong else []
    result: Result = {"value": worst, "holds": not wrong}
    return result | ({"note": "; ".join(wrong), "details": "\n\n".join(texts)} if wrong else {})


def _difference(case: Any, array: str, found: np.ndarray, wanted: np.ndarray) -> str:
    """The entry of an array that differs most, both its values, and how many entries differ by a hundredth of that or more."""
    found, wanted = np.ravel(found), np.ravel(wanted)
    errors = np.abs(found.astype(np.float64) - wanted)
    errors[np.isnan(errors)] = np.inf
    at = int(errors.argmax())
    place = f"{array}[{at}]"
    if array == "g":
        place = next(f"{part.name}[{at - part.start}]" for part in case.net().layout if part.start <= at < part.stop)
    many = int((errors >= errors[at] / 100).sum())
    return f"{place} is {found[at]!r} instead of {wanted[at]!r} ({many} of {errors.size} entries differ)"


def sanitized(name: str, case: str, seconds: float) -> str:
    """What compute-sanitizer reports of a case, in a process that it watches; empty where there is no such tool."""
    command = [*SANITIZER, sys.executable, "-m", "benchmarks.gpu.correctness", case, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(os.environ))
    except FileNotFoundError:
        return ""
    except subprocess.TimeoutExpired as error:
        return f"compute-sanitizer took longer than {seconds:.0f} s: {(error.stdout or b'')[:REPORTED]!r}"
    return (done.stdout + done.stderr)[:REPORTED]


if __name__ == "__main__":
    print(check_case(sys.argv[2], sys.argv[1], Setting()))
