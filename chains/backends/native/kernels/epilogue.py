"""The end of a convolution's block of results: maps and a pool that are applied while the results are in registers.

A pool needs whole windows, so blocks have as many rows as a window then. Each result is stored where something reads it later:
an image that only the pool reads is never in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from typing import NamedTuple

from chains.backends.native.kernels.elementwise import evaluate
from chains.backends.native.kernels.taps import Images
from chains.backends.native.llvm import vectormath
from chains.backends.native.llvm.emit import Function, Type, Value, integer, number
from chains.program.alias import across
from chains.program.operations import Convolve, ConvolveInput, Map, Operation, Pool
from chains.program.view import Buffer, View

MAX_WINDOW = 4  # entries of a pool's window in registers


@dataclass(frozen=True)
class Ending:
    """What is done to the results `out` of an operation, in order; buffers that are `transient` are not stored."""

    out: View
    fused: Sequence[Map | Pool] = ()
    transient: Collection[Buffer] = ()

    @cached_property
    def views(self) -> list[View]:
        """The views in memory."""
        views = dict.fromkeys([self.out, *(view for each in self.fused for view in (*each.outs, *each.ins))])
        return [view for view in views if view.buffer not in self.transient]

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns of results that a block has whole multiples of."""
        return next((each.window.size for each in self.fused if isinstance(each, Pool)), (1, 1))


class Corner(NamedTuple):
    """The first result of a block: its channel, row and column, and the step from one column to the next."""

    channel: Value
    row: Value
    column: Value
    step: int = 1


@dataclass(frozen=True)
class Epilogue:
    """Code for the end of blocks, with the addresses of the `Ending`'s views."""

    f: Function
    ending: Ending
    pointers: Mapping[View, Value]

    def store(self, results: list[Value], corner: Corner, size: tuple[int, int, int]) -> None:
        """Finish and store a block: channels times rows times columns."""
        height, rows, columns = size
        deep, wide = self.ending.window
        shared: dict[tuple[View, int], Value] = {}
        for h, i, j in product(range(height), range(rows // deep), range(columns // wide)):
            places = [(i * deep + r, j * wide + c) for r, c in product(range(deep), range(wide))]
            values = [{self.ending.out: results[(h * rows + r) * columns + c]} for r, c in places]
            here = corner
            for each in self.ending.fused:
                if isinstance(each, Pool):
                    self._keep(values, here, h, places)
                    values = [{each.outs[0]: self._pooled(each, [known[each.ins[0]] for known in values])}]
                    here, places = self._of_windows(corner), [(i, j)]
                    continue
                for known, (r, c) in zip(values, places, strict=True):
                    ins = [self._operand(view, known, here, (h, r, c), shared) for view in each.ins]
                    known |= dict(zip(each.outs, evaluate(self.f, each.formula, ins, results[0].type), strict=True))
            self._keep(values, here, h, places)

    def _keep(self, values: list[dict[View, Value]], corner: Corner, h: int, places: list[tuple[int, int]]) -> None:
        for known, (r, c) in zip(values, places, strict=True):
            for view, value in known.items():
                if view in self.pointers:
                    self.f.store(value, self._place(view, corner, h, r, c, Type(value.type.name)))

    def _place(self, view: View, corner: Corner, h: int, r: int, c: int, scalar: Type) -> Value:
        f, images = self.f, Images.of(view)
        offset = f.add(f.mul(f.add(corner.channel, h), images.channel), f.mul(f.add(corner.row, r), images.row))
        offset = f.add(offset, f.mul(corner.column, images.column))
        return f.address(f.address(self.pointers[view], offset, scalar), integer(c * corner.step * images.column), scalar)

    def _operand(
        self, view: View, known: dict[View, Value], corner: Corner, place: tuple[int, int, int],
        shared: dict[tuple[View, int], Value],
    ) -> Value:  # fmt: skip
        f, type, h = self.f, next(iter(known.values())).type, place[0]
        scalar = Type(type.name)
        if view in known:
            return known[view]
        if view.batched:
            return f.load(type, self._place(view, corner, *place, scalar))
        if (view, h) not in shared:  # one number per channel, or one for all channels
            stride = view.strides[0] if view.sample_size > 1 else 0
            number = f.load(scalar, f.address(self.pointers[view], f.mul(f.add(corner.channel, h), stride), scalar))
            shared[view, h] = f.splat(number, type.lanes)
        return shared[view, h]

    def _pooled(self, pool: Pool, entries: list[Value]) -> Value:
        """The largest entry of a window, or the mean, in the order in which `images.lower_pool` goes."""
        f, type = self.f, entries[0].type
        if pool.kind == "max":
            return reduce(lambda a, b: vectormath.maximum(f, a, b), entries)
        total = reduce(lambda a, b: f.binary("fadd", a, b), entries, number(type, 0.0))
        return f.binary("fmul", total, number(type, 1.0 / pool.window.area))

    def _of_windows(self, corner: Corner) -> Corner:
        rows, columns = self.ending.window
        return Corner(corner.channel, self.f.quotient(corner.row, rows), self.f.quotient(corner.column, columns))


def fusible_image_map(operation: Convolve | ConvolveInput, fused: Sequence[Map | Pool], candidate: Map) -> bool:
    """Whether `candidate`, after `fused`, can be applied to the convolution's results in registers."""
    at = next((k for k, each in enumerate(fused) if isinstance(each, Pool)), -1)
    before = {view.buffer for each in (operation, *fused[:at]) for view in each.views} if at >= 0 else set()
    out = fused[at].outs[0] if at >= 0 else operation.outs[0]
    known = [out, *(view for each in fused[at + 1 :] for view in each.outs)]
    if any(across(view, other) for view in candidate.views for other in known):
        return False
    if before & {view.buffer for view in candidate.views}:
        return False
    if {view.buffer for view in candidate.outs} & {source.buffer for source in operation.ins}:
        return False  # other blocks of the convolution still read the operands
    if not any(view in known for view in candidate.ins):
        return False
    if any(view.shape != out.shape for view in candidate.outs):
        return False
    channels = out.sample_shape[0]
    return all(
        view.shape == out.shape if view.batched else view.sample_size == 1 or view.shape == (channels, 1, 1)
        for view in candidate.ins
    )


def fusible_pool(operation: Operation, fused: Sequence[Map | Pool], pool: Pool) -> bool:
    """Whether `pool` can be applied to a convolution's results in registers: its windows are apart and cover the image."""
    window = pool.window
    known = [operation.outs[0], *(view for each in fused for view in each.outs)]
    if not isinstance(operation, Convolve) or type(pool) is not Pool or any(isinstance(each, Pool) for each in fused):
        return False
    if pool.ins[0] not in known or pool.outs[0].buffer in {view.buffer for each in (operation, *fused) for view in each.views}:
        return False
    images, pooled = pool.ins[0].sample_shape[1:], pool.outs[0].sample_shape[1:]
    whole = all(n == size * m for n, size, m in zip(images, window.size, pooled, strict=True))
    apart = window.size == window.stride and window.dilation == (1, 1) and not window.padded and 1 < window.area <= MAX_WINDOW
    rows_alike = window.size[0] == 1 or operation.window.padding[0] == (0, 0)
    return whole and apart and rows_alike
