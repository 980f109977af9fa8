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

from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import Processor, processor
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.support.threads import get_num_threads

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
    lanes = own.lanes(8)
    block = 4 if own.registers >= 32 else 2  # rows that share what is loaded of a, b, y and g
    rows = range(block)
    vector = f"<{lanes} x double>"

    def splat(name: str, pointer: str, number: str = "") -> str:
        address = f"  %{name}_at = getelementptr double, ptr %{pointer}, i64 {number}\n" if number else ""
        source = f"{name}_at" if number else pointer
        return (
            f"{address}  %{name}_one = load double, ptr %{source}, align 8\n"
            f"  %{name}_first = insertelement {vector} poison, double %{name}_one, i64 0\n"
            f"  %{name} = shufflevector {vector} %{name}_first, {vector} poison, <{lanes} x i32> zeroinitializer"
        )

    def load(name: str) -> str:
        return (
            f"  %{name}_at = getelementptr double, ptr %{name}, i64 %j\n"
            f"  %{name}_j = load {vector}, ptr %{name}_at, align {8 * lanes}"
        )

    def fma(target: str, x: str, y: str, z: str) -> str:
        return f"  %{target} = call {vector} @llvm.fma.v{lanes}f64({vector} %{x}, {vector} %{y}, {vector} %{z})"

    begin, sums, body, end = [], [], [], []
    for r in rows:
        begin += [f"  %i{r} = add i64 %i, {r}", f"  %o{r} = mul i64 %i{r}, %size"]
        begin += [f"  %row{r} = getelementptr double, ptr %matrix, i64 %o{r}"]
        begin += [splat(f"la{r}", "signed_a", f"%i{r}"), splat(f"lb{r}", "signed_b", f"%i{r}")]
        sums += [f"  %{v}{r} = phi {vector} [zeroinitializer, %begin], [%{v}{r}_next, %column]" for v in ("sy", "sg")]
        body += [f"  %h{r}_at = getelementptr double, ptr %row{r}, i64 %j"]
        body += [f"  %h{r} = load {vector}, ptr %h{r}_at, align {8 * lanes}"]
        body += [f"  %scaled{r} = fmul {vector} %h{r}, %scales"]
        body += [fma(f"half{r}", f"la{r}", "a_j", f"scaled{r}"), fma(f"new{r}", f"lb{r}", "b_j", f"half{r}")]
        body += [f"  store {vector} %new{r}, ptr %h{r}_at, align {8 * lanes}"]
        body += [fma(f"sy{r}_next", f"new{r}", "y_j", f"sy{r}"), fma(f"sg{r}_next", f"new{r}", "g_j", f"sg{r}")]
        for v, out in (("sy", "product_y"), ("sg", "product_g")):
            end += [f"  %{v}{r}_sum = call double @llvm.vector.reduce.fadd.v{lanes}f64(double -0.0, {vector} %{v}{r}_next)"]
            end += [f"  %{v}{r}_out = getelementptr double, ptr %{out}, i64 %i{r}"]
            end += [f"  store double %{v}{r}_sum, ptr %{v}{r}_out, align 8"]
    lines = "\n".join
    return f"""
declare {vector} @llvm.fma.v{lanes}f64({vector}, {vector}, {vector})
declare double @llvm.vector.reduce.fadd.v{lanes}f64(double, {vector})

define void @symmetric_part(ptr %job, i64 %part) nounwind {{
entry:
{JOB.load_text("job")}
{splat("scales", "scale")}
  %first = mul i64 %part, %rows
  %wanted = add i64 %first, %rows
  %beyond = icmp sgt i64 %wanted, %size
  %last = select i1 %beyond, i64 %size, i64 %wanted
  br label %block
block:
  %i = phi i64 [%first, %entry], [%i_next, %done]
  %more = icmp slt i64 %i, %last
  br i1 %more, label %begin, label %end
begin:
{lines(begin)}
  br label %column
column:
  %j = phi i64 [0, %begin], [%j_next, %column]
{lines(sums)}
{lines(map(load, "abyg"))}
{lines(body)}
  %j_next = add i64 %j, {lanes}
  %inside = icmp slt i64 %j_next, %size
  br i1 %inside, label %column, label %done
done:
{lines(end)}
  %i_next = add i64 %i, {block}
  br label %block
end:
  ret void
}}
"""


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
