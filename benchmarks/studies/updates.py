"""An update of a quasi-Newton method's matrix beside the machine's copy bandwidth: ``python -m benchmarks.studies.updates``.

A pass reads and writes each entry of the matrix once and makes two products. *share* is the time in which the same threads copy
a matrix of that size, divided by the pass's: both move as many bytes. The copy is memcpy, by each thread of its part of the
rows. Eight passes and eight copies take turns, so
that what fits a cache is there for both. Times are the least and the median of the turns.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from chains import get_num_threads, num_threads
from chains.backends import backend

REPEATED = 8  # in a row: passes, and copies of a part by its thread, so that handing the parts out does not count


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measured(n: int, threads: int, repetitions: int) -> tuple[list[float], list[float]]:
    """Seconds of passes, and of copies by as many threads."""
    rng = np.random.default_rng(0)
    matrix = backend("native").symmetric_matrix(np.eye(n))
    assert matrix is not None
    source, target = np.ones((2, n, n))
    zero, (y, g) = np.zeros(n), rng.normal(size=(2, n))
    parts = [slice(k * n // threads, (k + 1) * n // threads) for k in range(threads)]

    def copy(rows: slice) -> None:
        for _ in range(REPEATED):
            ctypes.memmove(target[rows].ctypes.data, source[rows].ctypes.data, source[rows].nbytes)

    def pass_over() -> None:
        for _ in range(REPEATED):
            matrix.change(1.0, zero, 0.0, zero, 0.0, y, g)

    passes, copies = [], []
    with num_threads(threads), ThreadPoolExecutor(threads) as pool:
        for _ in range(repetitions):
            passes.append(_seconds(pass_over) / REPEATED)
            copies.append(_seconds(lambda: [*pool.map(copy, parts)]) / REPEATED)
    return passes, copies


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[921, 4000])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, get_num_threads()}))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row, about")
    chosen = parser.parse_args(arguments)
    print("| parameters | threads | pass, us: least, median | copy, us: least, median | GB/s | share: least, median |")
    print("| --- | --- | --- | --- | --- | --- |")
    for n in chosen.sizes:
        for threads in chosen.threads:
            once, copied = measured(n, threads, 2)
            passes, copies = measured(n, threads, max(5, int(chosen.seconds / REPEATED / (once[-1] + copied[-1]))))
            least, median = (min(passes), min(copies)), (float(np.median(passes)), float(np.median(copies)))
            print(
                f"| {n} | {threads} | {1e6 * least[0]:.0f}, {1e6 * median[0]:.0f} "
                f"| {1e6 * least[1]:.0f}, {1e6 * median[1]:.0f} "
                f"| {16e-9 * n * n / least[0]:.1f} | {least[1] / least[0]:.0%}, {median[1] / median[0]:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
