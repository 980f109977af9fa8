"""Convolutions by one of two methods: by transformed kernels (Winograd) where that is faster, else directly."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.block_shapes import block_shapes
from chains.backends.native.kernels.convolve import lower_convolve, lower_convolve_weight, pack_kernels
from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.epilogue import Ending, fusible_image_map, fusible_pool
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Map, Pool
from chains.program.view import Buffer, Shape, View

Correlation = Convolve | ConvolveInput


def lower_convolution(
    frame: Frame, operation: Correlation, packed: View, fused: Sequence[Map | Pool] = (), transient: Collection[Buffer] = ()
) -> None:
    """The convolution, or its gradient with respect to the input, with packed kernels and with what is `fused` to it."""
    ending = Ending(operation.outs[0], fused, transient)
    if winograd.suits(operation):
        winograd.lower_winograd(frame, operation, packed, frame.workspace, ending)
    else:
        lower_convolve(frame, operation, packed, ending)


def lower_weight(frame: Frame, operation: ConvolveWeight) -> None:
    """The gradient with respect to the kernels."""
    if winograd.suits_weight(operation, frame.lanes):
        winograd.lower_winograd_weight(frame, operation, frame.workspace)
    else:
        lower_convolve_weight(frame, operation)


def packed(operation: Correlation, lanes: int, small_tiles: bool) -> tuple[View, Shape, Shape]:
    """The kernels, the shape of their copy, and the part of it that they fill."""
    weights = operation.ins[1]
    shape: Shape = (winograd.packed_size(operation),) if winograd.suits(operation) else weights.shape
    return weights, shape, shape


def pack(frame: Frame, operation: Correlation, target: View, fused: Sequence[Map | Pool] = ()) -> None:
    """Copy the kernels to the order in which the method reads them."""
    if winograd.suits(operation):
        winograd.pack_transformed(frame, operation, target)
    else:
        pack_kernels(frame, operation, target, Ending(operation.outs[0], fused))


def fusible(operation: Correlation, fused: Sequence[Map | Pool], candidate: Map | Pool, lanes: int, registers: int) -> bool:
    """Whether `candidate`, after what is `fused`, can be applied to the convolution's results in registers."""
    if isinstance(candidate, Map):
        return fusible_image_map(operation, fused, candidate)
    takes_pools = block_shapes(registers).pools_in_convolutions and not winograd.suits(operation)
    return takes_pools and fusible_pool(operation, fused, candidate)
