"""Convolutions by one of two methods: by transformed kernels (Winograd) where that is faster, else directly."""

from __future__ import annotations

from collections.abc import Sequence

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.convolve import fusible_image_map, lower_convolve, lower_convolve_weight, pack_kernels
from chains.backends.native.kernels.elementwise import Frame
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Map
from chains.program.view import Shape, View

Correlation = Convolve | ConvolveInput


def lower_convolution(frame: Frame, operation: Correlation, packed: View, maps: Sequence[Map]) -> None:
    """The convolution, or its gradient with respect to the input, with packed kernels and with maps on the results."""
    if winograd.suits(operation):
        winograd.lower_winograd(frame, operation, packed, frame.workspace, maps)
    else:
        lower_convolve(frame, operation, packed, maps)


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


def pack(frame: Frame, operation: Correlation, target: View) -> None:
    """Copy the kernels to the order in which the method reads them."""
    (winograd.pack_transformed if winograd.suits(operation) else pack_kernels)(frame, operation, target)


def fusible(operation: Correlation, maps: Sequence[Map], candidate: Map, lanes: int) -> bool:
    """Whether `candidate`, after `maps`, can be applied to the convolution's results in registers."""
    return fusible_image_map(operation, maps, candidate)
