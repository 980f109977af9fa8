"""The parts that networks of images have in common."""

from __future__ import annotations

from chains.activations import relu
from chains.initializers import InitializerLike
from chains.layers import Activation, BatchNorm, Conv, Layer, MaxPool


def convolution(inputs: int, outputs: int, kernel: int, init: InitializerLike, *, stride: int = 1) -> Layer:
    """A convolution without bias that keeps the size of the image, but for its stride."""
    return Conv(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False, weight_init=init)


def stem(inputs: int, channels: int, init: InitializerLike) -> list[Layer]:
    """The first layers: they make images a quarter as high and wide."""
    conv = convolution(inputs, channels, 7, init, stride=2)
    return [conv, BatchNorm(channels), Activation(relu), MaxPool(3, stride=2, padding=1)]
