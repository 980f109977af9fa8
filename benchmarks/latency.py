"""What a solver's callback pays: the value and gradient of 4-32-16-4 for one sample, called from Python."""

from __future__ import annotations

from benchmarks import matrix_exp
from benchmarks.dense import gradient_error
from benchmarks.peers import Options, rows
from benchmarks.timing import Contest


def contests(options: Options) -> list[Contest]:
    """In both types, whatever --dtype says."""
    return [_calls(dtype, options) for dtype in ("float32", "float64")]


def _calls(dtype: str, options: Options) -> Contest:
    p = matrix_exp.problem(1, dtype)
    return Contest(
        key=f"latency_{dtype}",
        title=f"latency, value and gradient for one sample, {dtype}",
        unit="call",
        contestants=rows("call", p, options),
        judged="relative error",
        judge=lambda result: gradient_error(p, result),
    )
