"""Fusion: matrix products with maps that are applied to their results in registers, and the conditions for these maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chains.backends.native.llvm.vectormath import ELEMENTARY
from chains.program.alias import overlap
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import Batch, View


@dataclass(frozen=True)
class FusedProduct:
    """A product ``out = a @ b`` with the maps that are applied to its elements before they are stored."""

    out: View
    a: View
    b: View
    accumulate: bool = False
    continued: bool = False  # whether an earlier operation of the tile has begun this sum over the samples
    maps: tuple[Map, ...] = ()  # on a sum over the samples: only if the tile is the whole batch
    transient: bool = False  # whether only the maps read the product itself
    padded: bool = False  # whether b's rows are padded to whole vectors (`pack`)
    shared: bool = False  # whether its blocks are functions that products of all sizes share (`matmul_shared.py`)

    @classmethod
    def of(cls, operation: Operation, maps: Sequence[Map] = ()) -> FusedProduct:
        """The product of an operation, with these maps on its results."""
        assert isinstance(operation, MatMul)
        (out,), (a, b) = operation.outs, operation.ins
        return cls(out, a, b, operation.accumulate, maps=tuple(maps))

    @property
    def sums_over_batch(self) -> bool:
        return isinstance(self.a.shape[1], Batch)

    def turned(self, lanes: int) -> FusedProduct:
        """This sum over the samples, or its transpose if that saves more than storing the result costs.

        The result is stored number by number, or interleaved if it has 2 or 4 columns that follow one another.
        """
        rows, columns = (int(extent) for extent in self.out.shape)  # type: ignore[arg-type]
        by_columns, by_rows = rows * -(-columns // lanes), columns * -(-rows // lanes)
        cost = 1 if columns in (2, 4) and self.out.strides == (columns, 1) else 2
        if self.a.strides[0] == 1 and (cost * by_rows < by_columns or self.b.strides[1] != 1):
            assert not self.maps  # the maps would have to be transposed too
            return replace(self, out=self.out.T, a=self.b.T, b=self.a.T)
        return self


def fusible(operation: MatMul, maps: Sequence[Map], candidate: Map, lanes: int) -> bool:
    """Whether `candidate`, after `maps`, can be applied to the product's elements in registers."""
    out = operation.outs[0]
    if not isinstance(out.shape[0], Batch) or out.strides[1] != 1 or _is_long(candidate):
        return False
    if {view.buffer for view in candidate.outs} & {view.buffer for view in operation.ins}:
        return False  # other blocks of the product still read the operands
    used = [out, *(view for fused in maps for view in fused.views), *candidate.views]
    if any(overlap(view, other) and not _same_rows(view, other) for view in candidate.outs for other in used):
        return False  # the maps on other blocks may still read the elements
    columns = int(out.shape[1])  # type: ignore[arg-type]
    registers = [out, *(view for fused in maps for view in fused.outs)]
    broadcast = False
    for view in candidate.ins:
        if any(_same_rows(view, register) for register in registers):
            continue
        if any(overlap(view, register) for register in registers):
            return False
        if view.batched:
            if view.ndim < 2 or view.shape[-1] != columns or not _same_rows_shape(view, out) or view.strides[-1] != 1:
                return False
        elif not (
            view.sample_size == 1 or (view.shape[-1] == columns and view.sample_size == columns and view.strides[-1] == 1)
        ):
            return False
        else:
            broadcast = broadcast or view.sample_size > 1
    if not all(_same_rows_shape(view, out) and view.strides[-1] == 1 for view in candidate.outs):
        return False
    touches = any(_same_rows(view, register) for view in candidate.views for register in registers)
    share = columns / (-(-columns // lanes) * lanes)
    return touches and (broadcast or share >= 0.5)


def _is_long(operation: Map) -> bool:
    """Whether a formula has elementary functions.

    Such a map gets a separate loop, which has the code of these functions once, not for each row of a block. That runs as fast
    and compiles faster.
    """
    return any(instruction.operation in ELEMENTARY for instruction in operation.formula.instructions)


def as_rows(view: View) -> View:
    return view.rows if view.ndim != 2 else view


def _same_rows_shape(view: View, out: View) -> bool:
    if not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return as_rows(view).shape == out.shape


def _same_rows(view: View, other: View) -> bool:
    """Whether two views, taken as matrices, have the same elements."""
    if view.buffer is not other.buffer or not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return as_rows(view) == as_rows(other)


def needs_packing(product: FusedProduct, lanes: int, small_tiles: bool) -> bool:
    """Whether b must be copied to rows of whole vectors before the product."""
    if not isinstance(product.out.shape[0], Batch) or product.b.batched or product.b.strides[1] == 1:
        return False
    return not (small_tiles and is_dots(product, lanes))


def is_dots(product: FusedProduct, lanes: int) -> bool:
    """Whether the results are sums of products of long contiguous runs."""
    contiguous = product.a.strides[1] == product.b.strides[0] == product.out.strides[1] == 1
    return contiguous and product.b.strides[1] != 1 and int(product.a.shape[1]) >= 16 * lanes  # type: ignore[arg-type]
