"""Plain gradient descent as part of the products that give the gradient: p = p - rate * (a @ b), read and written once.

    g = a @ b                     p = -rate * (a @ b) + 1 * p, by cublasLt
    ...                      ->   ...
    p = p - g * rate              p = p - g * rate, for the rest of the vector

The rate changes from step to step: the library reads both of its factors, -rate and 1, from the GPU's memory. A gradient that
anything else reads, such as a penalty or clipping, is left as it is. Products move to the step's place, behind all that
reads their parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chains.backends.cupy.kernels.epilogues import FusedMatMul, equal, fuse, usable
from chains.expr import trace
from chains.program.alias import meet
from chains.program.operations import Fill, Map, MatMul, Operation
from chains.program.view import Buffer, View, c_strides, concrete

LEAST_UPDATED_ELEMENTS = 1 << 20  # of a matrix: an estimate, not measured on a GPU
STEP = trace(lambda p, g, rate: p - g * rate)
NEGATED = trace(lambda rate: -rate)


@dataclass(frozen=True)
class Step:
    """A step down the gradient, as it was recorded, and where it stands."""

    at: int
    operation: Map

    @property
    def views(self) -> tuple[View, View, View]:
        """The parameters, the gradient and the rate."""
        p, g, rate = self.operation.ins
        return p, g, rate


def with_updates(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with large products for the gradient made one with the step of plain gradient descent."""
    found = [Step(at, each) for at, each in enumerate(operations) if isinstance(each, Map) and _is_step(each)]
    if len(found) != 1:
        return list(operations)
    step = found[0]
    moved = [at for at in range(step.at) if _moves(operations, at, step)]
    if not moved:
        return list(operations)
    p, _, rate = step.views
    factors = View(Buffer(f"factors of {p}", "scratch", p.dtype, (2,)), (2,), (1,))
    first, second = (replace(factors, shape=(), strides=(), offset=k) for k in range(2))
    label = step.operation.label
    products = [_updating(operations[at], step, factors) for at in moved]
    return [
        *(each for at, each in enumerate(operations[: step.at]) if at not in moved),
        Map((first,), (rate,), NEGATED, label=label),
        Fill((second,), (), 1.0, label=label),
        *products,
        *_rest(step, [_product(each) for each in products]),
        *operations[step.at + 1 :],
    ]


def _is_step(operation: Map) -> bool:
    if not equal(operation.formula, STEP) or len(operation.outs) != 1:
        return False
    (out,), (p, g, rate) = operation.outs, operation.ins
    flat = all(view.ndim == 1 and view.strides == (1,) and not view.batched for view in (p, g))
    return flat and out == p and rate.ndim == 0 and p.dtype == g.dtype == rate.dtype and g.buffer.role == "scratch"


def elements(view: View) -> int:
    """How many a view without a batch has."""
    return math.prod(concrete(view.shape, 1))


def _product(operation: Operation) -> MatMul:
    product = operation.product if isinstance(operation, FusedMatMul) else operation
    assert isinstance(product, MatMul)
    return product


def _moves(operations: Sequence[Operation], at: int, step: Step) -> bool:
    """Whether the operation at this place is a large product for the gradient that can as well be done at the step's place."""
    operation = operations[at]
    if isinstance(operation, FusedMatMul):
        if operation.kind not in ("bgrada", "bgradb"):
            return False
    elif not isinstance(operation, MatMul) or not usable(operation):
        return False
    out, (p, gradient, _) = _product(operation).outs[0], step.views
    if out.buffer is not gradient.buffer or out.batched or not out.contiguous or elements(out) < LEAST_UPDATED_ELEMENTS:
        return False
    between = operations[at + 1 : step.at]
    untouched = not any(meet(view, out) for each in between for view in each.views)
    kept = not any(meet(written, read) for each in between for written in each.outs for read in operation.ins)
    unread = not any(meet(written, read) for written in operation.outs for each in between for read in each.ins)
    own = not any(view.buffer is p.buffer for view in operation.views)  # or a product before it would have changed them
    return untouched and kept and unread and own


def _parameters(step: Step, gradient: View) -> View:
    """The parameters that a part of the gradient belongs to."""
    p, g, _ = step.views
    return replace(gradient, buffer=p.buffer, offset=p.offset + gradient.offset - g.offset)


def _updating(operation: Operation, step: Step, factors: View) -> FusedMatMul:
    product = _product(operation)
    (out,), (_, _, rate) = product.outs, step.views
    target = _parameters(step, out)
    after = Map((target,), (target, out, rate), STEP, label=step.operation.label)
    if isinstance(operation, FusedMatMul):
        return fuse(product, (*operation.after, after), operation.kind, operation.vector, update=(target, factors))
    return fuse(product, (after,), "default", update=(target, factors))


def _rest(step: Step, products: Sequence[MatMul]) -> list[Operation]:
    """The step on what no product updates."""
    p, g, rate = step.views
    starts = sorted((product.outs[0].offset - g.offset, elements(product.outs[0])) for product in products)
    ends = [0, *(edge for start, size in starts for edge in (start, start + size)), elements(g)]
    parts: list[Operation] = []
    for start, stop in list(pairwise(ends))[::2]:
        if start < stop:
            mine, other = (
                replace(view, shape=(stop - start,), strides=c_strides((stop - start,)), offset=view.offset + start)
                for view in (p, g)
            )
            parts.append(replace(step.operation, outs=(mine,), ins=(mine, other, rate)))
    return parts
