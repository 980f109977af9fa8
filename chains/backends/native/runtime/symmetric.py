"""A symmetric matrix in machine code: it is scaled, changed by two squares, and multiplied by two vectors in one pass.

    H <- scale * H + sign_a * a a' + sign_b * b b';  H y and H g of the new matrix

The pass reads and writes each entry once, so that memory bounds its time. Threads take blocks of rows. A row's products do not
depend on who computes them, so that any number of threads gives the same bits. The matrix stays symmetric to the bit: the
products a_i a_j commute, and both entries of a pair have the same rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, Value, integer
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import Processor, processor
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.support.threads import get_num_threads

DOUBLE = Type("double")
MULTIPLE = 8  # of rows and columns: a cache line
PARTS_OF_THREAD = 4  # so that a thread that the system holds up does less
MIN_SHARED_ENTRIES = 1 << 15  # of a matrix that several threads change: ten microseconds' work

JOB = Struct(
    {
        "matrix": "ptr",  # (size, size)
        "size": "i64",
        "rows": "i64",  # of a part
        "scale": "ptr",
        "signed_a": "ptr",  # sign_a * a
        "signed_b": "ptr",
        "a": "ptr",
        "b": "ptr",
        "y": "ptr",
        "g": "ptr",
        "product_y": "ptr",
        "product_g": "ptr",
    }
)


def assembly(own: Processor) -> str:
    """The function `symmetric_part(job, part)`."""
    module, vector, block = Module(), Type("double", own.lanes(8)), 4 if own.registers >= 32 else 2
    f = Function(module, "symmetric_part", [(PTR, "job"), (I64, "part")])
    job = dict(zip(JOB.positions, JOB.loads(f, f.arguments[0]), strict=True))
    size = job["size"]
    first = f.mul(f.arguments[1], job["rows"])
    add = f"llvm.vector.reduce.fadd.{vector.mangled}"

    def load(array: Value, j: Value) -> Value:
        return f.load(vector, f.address(array, j, DOUBLE), aligned=True)

    def spread(array: Value, i: Value) -> Value:
        return f.splat(f.load(DOUBLE, f.address(array, i, DOUBLE)), vector.lanes)

    def fma(a: Value, b: Value, c: Value) -> Value:
        return f.intrinsic("fma", a, b, c)

    scale = spread(job["scale"], integer(0))

    def rows_of_block(i: Value, _: list[Value]) -> None:
        """Change rows that share what is loaded of a, b, y and g."""
        numbers = [f.add(i, r) for r in range(block)]
        places = [f.address(job["matrix"], f.mul(number, size), DOUBLE) for number in numbers]
        signed = [[spread(job[name], k) for name in ("signed_a", "signed_b")] for k in numbers]

        def column(j: Value, sums: list[Value]) -> list[Value]:
            made: list[Value] = []
            a, b, y, g = (load(job[name], j) for name in "abyg")
            for r, (row, (la, lb)) in enumerate(zip(places, signed, strict=True)):
                scaled = f.assign(vector, f"fmul {load(row, j)}, {scale.text}")  # rounded alone
                new = fma(lb, b, fma(la, a, scaled))
                f.store(new, f.address(row, j, DOUBLE), aligned=True)
                made += [fma(new, y, sums[2 * r]), fma(new, g, sums[2 * r + 1])]
            return made

        zeros = [Value("zeroinitializer", vector)] * (2 * block)
        sums = f.loop(integer(0), size, vector.lanes, column, zeros)[1]
        for r, number in enumerate(numbers):
            for total, name in zip(sums[2 * r : 2 * r + 2], ("product_y", "product_g"), strict=True):
                f.store(f.call(add, DOUBLE, "double -0.0", total), f.address(job[name], number, DOUBLE))

    f.loop(first, f.least(f.add(first, job["rows"]), size), block, rows_of_block)
    module.add(f)
    return module.text()


@cache
def _code() -> Code:
    return machine_code(assembly(processor()), ["symmetric_part"], processor())


@cache
def _functions() -> tuple[Callable[..., None], Callable[..., None], int]:
    part = _code().address("symmetric_part")
    whole = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(part)
    shared = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return whole, shared(runtime().address("parallel")), part


class SymmetricMatrix:
    """A matrix (n, n) in separate memory, with rows and columns of zeros up to whole cache lines."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.n = len(matrix)
        size = -(-self.n // MULTIPLE) * MULTIPLE
        self._memory = _aligned(size * size).reshape(size, size)
        self._vectors = _aligned(8 * size).reshape(8, size)
        self._scale = np.ones(1)
        names = ("signed_a", "signed_b", "a", "b", "y", "g", "product_y", "product_g")
        addresses = {name: row.ctypes.data for name, row in zip(names, self._vectors, strict=True)}
        self._job = JOB.pack(matrix=self._memory.ctypes.data, size=size, rows=size, scale=self._scale.ctypes.data, **addresses)
        self.array[...] = matrix

    @property
    def array(self) -> np.ndarray:
        """The matrix, (n, n)."""
        return self._memory[: self.n, : self.n]

    def change(
        self, scale: float, a: np.ndarray, sign_a: float, b: np.ndarray, sign_b: float, y: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Do a pass; returns H y and H g."""
        n, vectors = self.n, self._vectors
        self._scale[0] = scale
        np.multiply(a, sign_a, out=vectors[0, :n])
        np.multiply(b, sign_b, out=vectors[1, :n])
        for row, vector in zip(vectors[2:6], (a, b, y, g), strict=True):
            row[:n] = vector
        whole, parallel, part = _functions()
        size = vectors.shape[1]
        threads = get_num_threads() if size * size >= MIN_SHARED_ENTRIES else 1
        if threads == 1:
            JOB.write(self._job, rows=size)
            whole(self._job.ctypes.data, 0)
        else:
            rows = -(-size // (threads * PARTS_OF_THREAD * MULTIPLE)) * MULTIPLE
            JOB.write(self._job, rows=rows)
            pool = worker_pool()
            pool.ensure(threads)
            parallel(pool.address, part, self._job.ctypes.data, -(-size // rows))
        return vectors[6, :n].copy(), vectors[7, :n].copy()


def _aligned(count: int) -> np.ndarray:
    """Zeros that begin at a cache line."""
    memory = np.zeros(count + MULTIPLE)
    first = -memory.ctypes.data % (8 * MULTIPLE) // 8
    return memory[first : first + count]
