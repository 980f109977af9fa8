"""The cases of the tests' harness on a GPU, against NumPy in float64."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import numpy as np

from benchmarks.gpu.backends import CONVOLUTIONS, backend_name, convolver, device_of, relative
from benchmarks.gpu.problems import Result, Setting

PARTS = 12  # of the cases


def check_cases(part: int, parts: int, name: str, setting: Setting, only: Sequence[str] = ()) -> Result:
    """A part of the cases, those with convolutions for settings of these: the largest error as a share of what is allowed.

    `only`, if given, names the cases to check.
    """
    from tests.harness import CASES, ROUNDING

    suitable = [case for case in CASES if name not in CONVOLUTIONS or "Conv" in str(case)]
    cases = [case for case in suitable[part :: parts * (40 if setting.tiny else 1)] if not only or str(case) in only]
    device, worst, largest, wrong = device_of(name, setting), 0.0, "none", {}
    for case in cases:
        data = case.problem(70)
        wanted = data.value_and_grad("numpy", np.float64)
        for dtype in (np.float32, np.float64):
            try:
                found = data.value_and_grad(backend_name(name, setting), dtype)
            except Exception:  # the other cases are still checked
                wrong[str(case)] = f"{np.dtype(dtype)}: {traceback.format_exc()}"
                continue
            error = max(relative(a, b) for a, b in zip(found, wanted, strict=True)) / (10 * ROUNDING[np.dtype(dtype)])
            if not error <= worst:
                worst, largest = error, f"{case}, {np.dtype(dtype)}"
            if not error <= 1.0:
                wrong[str(case)] = f"{np.dtype(dtype)}: {error:.3g} times the error that is allowed"
    note = f"{len(cases)} cases, {convolver(device)}; largest error at {largest}"
    errors = "".join(f"; {each}: {text.rstrip().splitlines()[-1]}" for each, text in wrong.items())
    return {"value": worst, "holds": not wrong, "note": note + errors} | ({"wrong": wrong} if wrong else {})
