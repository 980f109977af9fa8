"""Networks that are nearly all matrix products, on a GPU: a step beside the time that cuBLAS takes for its products alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu_chains import backend_name, device_of, measure, timed
from benchmarks.gpu_problems import Setting, problem
from chains.backends.cupy.device.interface import Device, Gemm, Work
from chains.backends.cupy.kernels.products import product
from chains.program.operations import MatMul
from chains.program.program import Program


def share(key: str, precision: str, setting: Setting) -> dict[str, Any]:
    """A step's share of cuBLAS's rate. Both rates are noted."""
    given, device = problem(key, setting), device_of(precision, setting)
    program = given.net(backend_name(precision, setting)).program(
        given.loss, given.optimizer, target_shape=given.t.shape[1:], dtype=np.float32
    )
    alone = cublas_seconds(device, program, given.batch)
    result = measure(key, precision, setting)
    step = result["seconds"] / given.steps
    rates = [program.flops(given.batch) / seconds / 1e12 for seconds in (step, alone)]
    note = f"{rates[0]:.3g} TFLOP/s of cuBLAS's {rates[1]:.3g}; {result['note']}"
    return result | {"value": alone / step, "note": note}


def cublas_seconds(device: Device, program: Program, batch: int) -> float:
    """What a program's products take by themselves, one after another, in its order, sizes, layouts and types."""
    operations = [operation for operation in program.operations if isinstance(operation, MatMul)]
    steps = [product(operation) for operation in operations]
    sizes = [step.sizes(batch) for step in steps]  # rows, columns, inner
    lengths = [max(rows * inner for rows, _, inner in sizes), max(inner * columns for _, columns, inner in sizes)]
    # Noise, whose bits cost power as real ones do.
    a, b = (device.array(np.random.default_rng(length).standard_normal(length, np.float32)) for length in lengths)
    out = device.empty((max(rows * columns for rows, columns, _ in sizes),), np.float32)
    work: list[Work] = []
    for step, (rows, columns, inner) in zip(steps, sizes, strict=True):
        turned = step.a.transposed, step.b.transposed
        leading = columns, rows if turned[0] else inner, inner if turned[1] else columns
        addresses = device.address(out), device.address(a), device.address(b)
        work.append(device.product(Gemm(out.dtype, (rows, columns, inner), addresses, leading, turned, step.accumulate)))

    def all_of_them() -> None:
        for _ in range(5):
            for each in work:
                each()

    return timed(device, all_of_them) / 5
