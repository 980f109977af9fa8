"""Times of elementary functions with AVX2 and with AVX-512: ``python -m benchmarks.studies.elementary``.

Each function is applied over and over to the numbers of a tile, on one thread. A table tells nanoseconds an element for each
width of vectors that this processor has.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.harness.machine import describe
from benchmarks.harness.timing import Criterion
from chains import Activation, Chain, activation, expr, sigmoid, tanh
from chains.backends.native import NativeBackend
from chains.network import record
from chains.network.network import network_of

FUNCTIONS: dict[str, Any] = {  # results are arguments again
    "tanh": tanh,
    "sigmoid": sigmoid,
    "exp": activation("exp", lambda x: expr.exp(-x)),
    "log": activation("log", lambda x: expr.log(x + 2.0)),
}
TIMES, COLUMNS, SAMPLES, ROUNDS = 20, 64, 2048, 15
WIDTHS, DTYPES = ("avx2", "avx512"), ("float32", "float64")
MOST = 2.0  # times as long with AVX2


def nanoseconds(function: Any, width: str, dtype: str) -> float:
    """The time of an element, the best of some rounds."""
    network = network_of(Chain(*[Activation(function)] * TIMES, input_shape=(COLUMNS,)))
    program = record.forward(network, np.dtype(dtype), training=False)
    x = np.random.default_rng(0).random((SAMPLES, COLUMNS)).astype(dtype)
    run = NativeBackend(threads=1, simd=width).bind(program, SAMPLES, {"x": x, "y": np.empty_like(x)})
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / (TIMES * SAMPLES * COLUMNS) * 1e9


def main() -> None:
    print(*(f"{name:>9}  {fact}" for name, fact in describe(sgemm=False).items()), "", sep="\n")
    print(f"| ns an element | {' | '.join(f'{dtype}, {width}' for dtype in DTYPES for width in WIDTHS)} | AVX2 over AVX-512 |")
    print(f"|{' --- |' * (2 + len(DTYPES) * len(WIDTHS))}")
    found = []
    for name, function in FUNCTIONS.items():
        times = {(dtype, width): nanoseconds(function, width, dtype) for dtype in DTYPES for width in WIDTHS}
        ratios = [times[dtype, "avx2"] / times[dtype, "avx512"] for dtype in DTYPES]
        found += [
            Criterion(f"{name}, {dtype}: with AVX2 over AVX-512", ratio, f"<= {MOST}")
            for dtype, ratio in zip(DTYPES, ratios, strict=True)
        ]
        cells = [*(f"{each:.3f}" for each in times.values()), " / ".join(f"{ratio:.2f}" for ratio in ratios)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("", *(f"  {criterion}" for criterion in found), sep="\n")


if __name__ == "__main__":
    main()
