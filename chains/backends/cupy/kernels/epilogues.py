"""Products and what follows them as one step, where cublasLt has an epilogue for it.

    y = x @ w;  y = y + b                            bias
    y = x @ w;  y = max(y + b, 0)                    relu_bias, or relu without b
    dx = dy @ w.T;  dx = where(y <= 0, 0, dx)        drelu
                    db = sum(dx)                     drelu_bgrad
    dw = x.T @ dy;  db = sum(dy)                     bgrada where dy is the right factor, bgradb where it is the left

relu's pullback reads the signs of y from a mask of bits, which the product that makes y writes beside it; the kind of that
one is relu_aux or relu_aux_bias. Nobody but cublasLt knows how the mask is laid out. What follows a product is kept beside the
kind, for shapes and addresses that cublasLt refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chains.backends.cupy.device.cublas import MASK_BITS
from chains.backends.cupy.kernels.products import matrix
from chains.backends.cupy.source.c_source import half_name
from chains.expr import Formula, maximum, trace, where
from chains.program.alias import meet, same
from chains.program.operations import Map, MatMul, Operation, Reduce
from chains.program.view import Buffer, View, c_strides

FORWARD = {
    "bias": trace(lambda z, b: z + b),
    "relu_bias": trace(lambda z, b: maximum(z + b, 0.0)),
    "relu": trace(lambda z: maximum(z, 0.0)),
}
WITH_MASK = {"relu_bias": "relu_aux_bias", "relu": "relu_aux"}
DRELU = trace(lambda dy, y: dy * where(y <= 0.0, 0.0, 1.0))


@dataclass(frozen=True)
class FusedMatMul(Operation):
    """A product and the operations `after` it, which an epilogue of this `kind` does along with it.

    `vector` is the bias or its gradient. With an `update`, the product's result is not stored: it is added to the
    parameters, the first of these views, and the second holds the factors of both (see `updates`). `outs` and `ins` are
    all that is touched, with the epilogue or without.
    """

    product: MatMul
    after: tuple[Operation, ...]
    kind: str
    vector: View | None = None
    mask: View | None = None
    update: tuple[View, View] | None = None

    @property
    def name(self) -> str:
        return f"matmul_{self.kind}"

    def with_factors(self, a: View, b: View) -> FusedMatMul:
        """The same with factors stored elsewhere; where the sum of one goes along, it is summed there too."""
        summed = {"bgrada": b, "bgradb": a.T}.get(self.kind)
        after = self.after if summed is None else (replace(self.after[0], ins=(summed,)), *self.after[1:])
        return fuse(replace(self.product, ins=(a, b)), after, self.kind, self.vector, self.mask, self.update)


def fuse(
    product: MatMul,
    after: tuple[Operation, ...],
    kind: str,
    vector: View | None = None,
    mask: View | None = None,
    update: tuple[View, View] | None = None,
) -> FusedMatMul:
    """The product with the operations after it, which an epilogue of this kind does along with it."""
    outs = dict.fromkeys(view for operation in (product, *after) for view in operation.outs)
    ins = dict.fromkeys(view for operation in (product, *after) for view in operation.ins)
    if mask is not None:
        (outs if "aux" in kind else ins)[mask] = None
    if update is not None:
        ins[update[1]] = None
    return FusedMatMul(tuple(outs), tuple(ins), product, after, kind, vector, mask, update, label=product.label)


def with_epilogues(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with products and what follows them made one, and sums beside the elementwise operation they sum."""
    left, done = list(operations), _Done()
    while left:
        operation = left.pop(0)
        if isinstance(operation, MatMul) and usable(operation):
            done.product(operation, left)
        else:
            done.append(operation)
    return done.operations


class _Done:
    """The operations so far, and where those among them are whose relu's signs may still be asked for."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._relus: dict[View, int] = {}

    def append(self, operation: Operation) -> None:
        self._relus = {y: at for y, at in self._relus.items() if not any(meet(y, out) for out in operation.outs)}
        self.operations.append(operation)

    def product(self, product: MatMul, left: list[Operation]) -> None:
        """Append a product with what it takes from the operations that are `left`."""
        following = left[0] if left else None
        if isinstance(following, Map) and len(following.outs) == 1 and same(following.outs[0], product.outs[0]):
            fused = self._forward(product, following) or self._pullback(product, following, left)
            if fused is not None:
                left.remove(following)
                self.append(fused)
                if fused.kind in WITH_MASK:
                    self._relus[fused.after[0].outs[0]] = len(self.operations) - 1
                return
        self._weight(product, left)

    def _forward(self, product: MatMul, following: Map) -> FusedMatMul | None:
        """The product with a bias, relu, or both."""
        (out,), (z, *others) = product.outs, following.ins or (None,)
        kind = next((kind for kind, formula in FORWARD.items() if equal(formula, following.formula)), None)
        if kind is None or z is None or not same(z, out):
            return None
        bias = others[0] if others else None
        if bias is not None and (bias.shape != out.shape[1:] or bias.strides != (1,) or bias.buffer is out.buffer):
            return None
        return fuse(product, (following,), kind, bias) if bias is None or bias.dtype == out.dtype else None

    def _pullback(self, product: MatMul, following: Map, left: list[Operation]) -> FusedMatMul | None:
        """The product with the pullback of relu, and with the bias's gradient where that follows."""
        out, dz = product.outs[0], following.outs[0]
        if not equal(DRELU, following.formula) or not same(following.ins[0], out):
            return None
        at = next((at for y, at in self._relus.items() if same(y, following.ins[1]) and y.shape == dz.shape), None)
        if at is None:
            return None
        maker = self.operations[at]
        assert isinstance(maker, FusedMatMul)
        if maker.product.outs[0].shape != out.shape:
            return None
        mask = maker.mask or _mask(out)
        if maker.mask is None:
            self.operations[at] = fuse(maker.product, maker.after, WITH_MASK[maker.kind], maker.vector, mask)
        total = _sum(dz, product, left[1:])
        if total is None:
            return fuse(product, (following,), "drelu", None, mask)
        left.remove(total)
        return fuse(product, (following, total), "drelu_bgrad", total.outs[0], mask)

    def _weight(self, product: MatMul, left: list[Operation]) -> None:
        """Append a product with the sum of one of its factors, or after that sum where it can go with what it sums."""
        a, b = product.ins
        for kind, factor in (("bgrada", b), ("bgradb", a.T)):
            total = _sum(factor, product, left)
            if total is None:
                continue
            left.remove(total)
            before = self.operations[-1] if self.operations else None
            if before is not None and before.elementwise and total.ins[0] in before.outs:
                self.append(total)
                break
            self.append(fuse(product, (total,), kind, total.outs[0]))
            return
        self.append(product)


def usable(product: MatMul) -> bool:
    """Whether this is the product of matrices as they lie in memory, into rows of another."""
    (out,), (a, b) = product.outs, product.ins
    into = matrix(out)
    alone = out.buffer is not a.buffer and out.buffer is not b.buffer and out.dtype == a.dtype == b.dtype
    alone = alone and not half_name(out.dtype)
    dense = into is not None and not into.transposed and isinstance(out.shape[1], int)
    return alone and dense and not product.accumulate and matrix(a) is not None and matrix(b) is not None


def _sum(a: View, product: MatMul, operations: Sequence[Operation]) -> Reduce | None:
    """The operation that sums the rows of a matrix into a dense vector, if it could as well be done beside the product."""
    for position, operation in enumerate(operations):
        if isinstance(operation, Reduce) and operation.kind == "sum" and same(operation.ins[0], a):
            out = operation.outs[0]
            vector = out.shape == (a.shape[-1],) and out.strides == (1,) and out.dtype == a.dtype
            between = [view for other in (product, *operations[:position]) for view in other.views]
            return operation if vector and not any(meet(out, view) for view in (*between, a)) else None
        if any(meet(out, a) for out in operation.outs):
            return None
    return None


def _mask(out: View) -> View:
    """A bit for each element of a matrix, rows aligned as cublasLt requires."""
    rows, columns = out.shape
    assert isinstance(columns, int)
    shape = (rows, -(-columns // MASK_BITS) * (MASK_BITS // 8))
    return View(Buffer(f"signs of {out}", "scratch", np.dtype(np.uint8), shape), shape, c_strides(shape))


def equal(a: Formula, b: Formula) -> bool:
    """Whether two formulas differ at most in the names of their inputs."""
    return (len(a.inputs), a.instructions, a.outputs) == (len(b.inputs), b.instructions, b.outputs)
