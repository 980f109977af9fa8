"""Which machine this is, and how fast it multiplies matrices."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

LIBRARIES = ("chains-nn", "numpy", "scipy", "torch", "jax", "scikit-learn", "llvmlite")


def describe(sgemm: bool = True) -> dict[str, Any]:
    """The machine as text by heading."""
    facts = {
        "cpu": f"{_cpu_model()}, {cores()} cores usable of {os.cpu_count()}, {_vector_width()}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "blas": _blas(),
        "libraries": ", ".join(f"{name} {version}" for name in LIBRARIES if (version := _version(name))),
    }
    if sgemm:
        facts["sgemm"] = ", ".join(f"{rate:.0f} GF/s on {threads}" for threads, rate in sgemm_rates().items())
    return facts


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_best_rates: dict[str, float] = {}


def sgemm_rates(size: int = 1024, repeats: int = 7) -> dict[str, float]:
    """The best rate of float32 products of square matrices, in 1e9 operations a second, by number of threads.

    The best of this call and all before: a machine with other work is slow for a while, and no share of its rate
    may look good for that.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        rates = {"all threads": _rate(size, repeats)}
    else:
        rates = {}
        for threads, name in ((1, "1 thread"), (cores(), "all threads")):
            with threadpool_limits(threads, user_api="blas"):
                rates[name] = _rate(size, repeats)
    _best_rates.update({name: max(rate, _best_rates.get(name, 0.0)) for name, rate in rates.items()})
    return dict(_best_rates)


def blas_modes() -> list[tuple[str, Callable[[], None]]]:
    """For what runs on NumPy's BLAS: names of the numbers of threads worth a row each, and functions that set them.

    On a machine that does other things too, two BLAS threads can be slower than one by far.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return [("threads as NumPy chooses", lambda: None)]
    counts = {1: "1 thread", cores(): "all threads"}
    # A limit that is not left again, as a context, holds until the next one.
    return [(text, partial(threadpool_limits, count, "blas")) for count, text in counts.items()]


def _rate(size: int, repeats: int) -> float:
    a = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    out = np.empty_like(a)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best / 1e9


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _vector_width() -> str:
    try:
        from numpy._core._multiarray_umath import __cpu_features__ as features
    except ImportError:
        return "vector width unknown"
    known = {"AVX512F": "AVX-512", "AVX2": "AVX2", "NEON": "NEON", "SSE2": "SSE2"}
    return next((text for name, text in known.items() if features.get(name)), platform.machine())


def _blas() -> str:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        blas: Any = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}"
    infos = [info for info in threadpool_info() if info["user_api"] == "blas"]
    return ", ".join(
        f"{_package(info['filepath'])}: {info['internal_api']} {info['version']} for {info.get('architecture', 'any CPU')}"
        for info in infos
    )


def _package(path: str) -> str:
    """The package a shared library came with: .../numpy.libs/libopenblas.so is NumPy's."""
    return Path(path).parent.name.removesuffix(".libs")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
