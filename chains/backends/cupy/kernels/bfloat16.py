"""The factors of large products stored as bfloat16, where the backend "cupy-bf16" is asked for.

Tensor cores take bfloat16 at twice the rate of TF32, and it is half as much to read. A factor of a large product is rounded
to the nearest bfloat16, which changes it by at most 2**-8 of itself, and kept in scratch: parameters once a step, what a layer
computes by the kernel that computes it, which leaves the float32 numbers out where they are not read. Products add in
float32 and give float32; parameters, gradients and everything else stay what they are. The factors of smaller products
may be rounded inside cuBLAS, to bfloat16 or TF32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.backends.cupy.kernels.epilogues import FusedMatMul
from chains.backends.cupy.kernels.products import matrix
from chains.backends.cupy.source.c_source import BFLOAT16
from chains.program.alias import meet, same
from chains.program.operations import Copy, MatMul, Operation
from chains.program.view import Buffer, View, c_strides

LEAST_BFLOAT16_LENGTH = 1024  # samples, and lengths of matrices, from which on it pays: an estimate, not measured on a GPU
ALIGNED_NUMBERS = 8  # numbers: rows are read 16 bytes at a time


def with_bfloat16(operations: Sequence[Operation]) -> list[Operation]:
    """The operations, for at least `LEAST_BFLOAT16_LENGTH` samples, with the factors of large products copied to bfloat16."""
    return _Rounding(operations).operations


class _Rounding:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self._given = operations
        self._kept: dict[View, View] = {}  # the copies that are up to date
        self._copies: dict[int, list[Operation]] = {}  # by the position they are made in front of
        changed = [self._changed(position, operation) for position, operation in enumerate(operations)]
        self.operations = [each for k, operation in enumerate(changed) for each in (*self._copies.get(k, ()), operation)]

    def _changed(self, position: int, operation: Operation) -> Operation:
        """The operation on copies, where it is a large product."""
        product = operation.product if isinstance(operation, FusedMatMul) else operation
        if isinstance(product, MatMul) and is_large(product):
            a, b = (self._copy(position, view) for view in product.ins)
            operation = operation.with_factors(a, b) if isinstance(operation, FusedMatMul) else replace(product, ins=(a, b))
        for out in operation.outs:
            self._kept = {view: copy for view, copy in self._kept.items() if not meet(view, out)}
        return operation

    def _copy(self, position: int, view: View) -> View:
        """A factor as bfloat16, copied right after it was last written, or else right before this position."""
        if _transposed(view):
            return self._copy(position, view.T).T
        if view not in self._kept:
            buffer = Buffer(f"{view} as bfloat16", "scratch", BFLOAT16, view.shape)
            self._kept[view] = View(buffer, view.shape, c_strides(view.shape))
            writers = [k for k in range(position) if any(meet(out, view) for out in self._given[k].outs)]
            at = writers[-1] + 1 if writers else position
            # Of the shape in which it was written, so that the copy may be part of the same kernel.
            written = next((out for out in self._given[at - 1].outs if same(out, view)), view) if writers else view
            into = View(buffer, written.shape, c_strides(written.shape))
            self._copies.setdefault(at, []).append(Copy((into,), (written,), label=self._given[position].label))
        return self._kept[view]


def is_large(product: MatMul) -> bool:
    """Whether a product of at least `LEAST_BFLOAT16_LENGTH` samples has factors worth copying."""
    (out,), (a, b) = product.outs, product.ins
    lengths = [extent for extent in (*out.shape, a.shape[1]) if isinstance(extent, int)]
    rows = [(view.T if _transposed(view) else view).shape[1] for view in (a, b)]
    together = all(isinstance(length, int) and length % ALIGNED_NUMBERS == 0 for length in rows)
    long = min(lengths, default=0) >= LEAST_BFLOAT16_LENGTH
    return out.dtype.name == a.dtype.name == b.dtype.name == "float32" and long and together


def _transposed(view: View) -> bool:
    found = matrix(view)
    return found is not None and found.transposed
