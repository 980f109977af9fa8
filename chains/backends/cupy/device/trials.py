"""Products with epilogues, each tried before it is used.

cublasLt may refuse at execution what its heuristic found. So the first binding of a product, by its shapes, alignments and
epilogue, runs it once on memory of its own: an algorithm that is refused makes way for the next. Where algorithms are to be
`timed`, the fastest is taken, otherwise the first in cublasLt's order, which is the same in every process.

cublasLt's documentation does not say whether its relu lets NaN through, and whether its mask has a zero for an output of 0.
A product of 32 x 32 matrices asks the library itself; where either does not hold, relu is no epilogue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.cublas import (
    ALIGNMENT,
    MASK_BITS,
    REFUSALS,
    Algorithm,
    CublasError,
    CublasLt,
    MatmulPlan,
    aligned,
)
from chains.backends.cupy.device.interface import Device, Epilogue, Gemm, Work

SIDE = 32  # of the matrices that relu is tried with


class TriedProducts:
    """The plans of products with epilogues on a device. `started` makes work of a plan."""

    def __init__(self, device: Device, lt: CublasLt, started: Callable[[MatmulPlan], Work], timed: bool = False) -> None:
        self._device, self._lt, self._started, self._timed = device, lt, started, timed
        self._algorithms: dict[tuple[Any, ...], Algorithm | None] = {}
        self._relus: dict[tuple[np.dtype[Any], str], bool] = {}
        self._lock = threading.Lock()

    def plan(self, gemm: Gemm, epilogue: Epilogue) -> MatmulPlan | None:
        """The product with its epilogue, None where cublasLt cannot do it with these shapes and addresses."""
        if any(address is not None and address % ALIGNMENT for address in (epilogue.vector, epilogue.mask)):
            return None
        places = (*gemm.addresses, epilogue.vector or 0, epilogue.mask or 0)
        key = (
            gemm.dtype, gemm.half, gemm.sizes, gemm.leading, gemm.transposed, gemm.accumulate, epilogue.kind,
            epilogue.mask_leading, gemm.factors is None, *map(aligned, places),
        )  # fmt: skip
        with self._lock:
            if key not in self._algorithms:
                relu = not epilogue.kind.startswith("relu") or self._relu_holds(gemm)
                self._algorithms[key] = self._chosen(gemm, epilogue) if relu else None
            algorithm = self._algorithms[key]
        return None if algorithm is None else self._lt.plan(gemm, epilogue, algorithm)

    def _chosen(self, gemm: Gemm, epilogue: Epilogue) -> Algorithm | None:
        """The algorithm to use, None where all are refused."""
        algorithms = self._lt.algorithms(gemm, epilogue)
        if not algorithms:
            return None
        try:
            gemm, epilogue, memory = self._elsewhere(gemm, epilogue)
        except MemoryError:
            return algorithms[0]
        best, least = None, np.inf
        for algorithm in algorithms:
            try:
                seconds = self._device.seconds(self._started(self._lt.plan(gemm, epilogue, algorithm)), 3 if self._timed else 0)
            except CublasError as error:
                if error.status not in REFUSALS:
                    raise
                continue
            if best is None or seconds < least:
                best, least = algorithm, seconds
            if not self._timed:
                break
        del memory  # was in use until the last product ended
        return best

    def _elsewhere(self, gemm: Gemm, epilogue: Epilogue) -> tuple[Gemm, Epilogue, list[Any]]:
        """The same product on new memory, aligned alike, and that memory."""
        rows, columns, inner = gemm.sizes
        size, factor = gemm.dtype.itemsize, 2 if gemm.half else gemm.dtype.itemsize
        heights = rows, inner if gemm.transposed[0] else rows, columns if gemm.transposed[1] else inner
        lengths = [h * leading * each for h, leading, each in zip(heights, gemm.leading, (size, factor, factor), strict=True)]
        lengths += [max(gemm.sizes) * size, rows * epilogue.mask_leading // 8]
        lengths += [2 * size]
        memory = [self._device.empty((length + 512,), np.uint8) for length in lengths]
        given = (*gemm.addresses, epilogue.vector, epilogue.mask, gemm.factors)
        places = [
            None if address is None else -(-self._device.address(array) // 256) * 256 + aligned(address) % 256
            for address, array in zip(given, memory, strict=True)
        ]
        out, a, b, vector, mask, factors = places
        assert out is not None
        assert a is not None
        assert b is not None
        return replace(gemm, addresses=(out, a, b), factors=factors), replace(epilogue, vector=vector, mask=mask), memory

    # relu

    def _relu_holds(self, gemm: Gemm) -> bool:
        """Whether relu and its mask are what they are here: NaN stays NaN, and the slope at 0 is 0."""
        key = gemm.dtype, gemm.half
        if key not in self._relus:
            self._relus[key] = self._relu_tried(*key)
        return self._relus[key]

    def _relu_tried(self, dtype: np.dtype[Any], half: str) -> bool:
        device, ones = self._device, np.ones((SIDE, SIDE), dtype)
        signs = np.zeros((SIDE, SIDE), dtype)  # of four rows: the product's are NaN, 0, SIDE and -SIDE
        signs[0], signs[2], signs[3] = np.nan, 1.0, -1.0
        out, mask = device.array(ones), device.array(np.zeros((SIDE, MASK_BITS // 8), np.uint8))
        left, right = (device.array(_as_factor(array, half)) for array in (signs, ones))

        def result(kind: str, a: Any, b: Any) -> np.ndarray | None:
            addresses = (device.address(out), device.address(a), device.address(b))
            gemm = Gemm(dtype, (SIDE,) * 3, addresses, (SIDE,) * 3, (False, False), False, half)
            epilogue = Epilogue(kind, None, device.address(mask), MASK_BITS)
            for algorithm in self._lt.algorithms(gemm, epilogue):
                try:
                    device.seconds(self._started(self._lt.plan(gemm, epilogue, algorithm)), 0)
                except CublasError as error:
                    if error.status not in REFUSALS:
                        raise
                    continue
                found = np.empty((SIDE, SIDE), dtype)
                device.assign(found, out)
                return found
            return None

        y, dx = result("relu_aux", left, right), result("drelu", right, right)
        if y is None or dx is None:
            return False
        values = bool(np.isnan(y[0]).all() and (y[[1, 3]] == 0.0).all() and (y[2] == SIDE).all())
        return values and bool((dx[[1, 3]] == 0.0).all() and (dx[2] == SIDE).all())


def _as_factor(array: np.ndarray, half: str) -> np.ndarray:
    """The numbers, of few bits, in the type of 16 bits that factors have, if any."""
    if half == "float16":
        return array.astype(np.float16)
    return (array.view(np.uint32) >> 16).astype(np.uint16) if half else array
