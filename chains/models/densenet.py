"""Densely connected networks: DenseNet-121 and its relatives.

Source: Huang, Liu, van der Maaten and Weinberger, "Densely connected convolutional networks", 2017: the networks DenseNet-BC
of its table 1. Parameters and running statistics are in torchvision's order, so that its arrays can be copied one after
another; only the weight of the last layer is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.activations import relu
from chains.chain import Chain
from chains.layers import Activation, AvgPool, BatchNorm, Dense, GlobalAvgPool, Layer, Parallel, Series
from chains.layers.base import SampleShape
from chains.layers.images import check_channels_first
from chains.models.parts import convolution, stem
from chains.support.checks import check_count, check_counts

BOTTLENECK = 4  # the channels between a dense layer's two convolutions, in growths


class DenseBlock(Series):
    """Layers that each append channels, computed from all channels before.

    The new channels come from batch normalisation, relu and a convolution 1x1 to 4 `growth` channels, then from the same with a
    convolution 3x3. Samples are (inputs, height, width), outputs (inputs + count * growth, height, width). Source: Huang et al.
    2017.

    Parameters
    ----------
    inputs : int
        Channels of the input.
    count : int
        How many layers.
    growth : int
        The number of channels that each layer appends.
    """

    def __init__(self, inputs: int, count: int, growth: int = 32) -> None:
        self.inputs, self.count, self.growth = inputs, count, growth
        super().__init__(*(_dense_layer(inputs + k * growth, growth) for k in range(count)))

    def __repr__(self) -> str:
        return f"DenseBlock({self.inputs}, {self.count}{f', growth={self.growth}' if self.growth != 32 else ''})"


class Transition(Series):
    """Batch normalisation, relu, a convolution 1x1 to half the channels, and the means of windows 2x2.

    Samples (inputs, height, width) become (inputs // 2, height // 2, width // 2). Source: Huang et al. 2017.

    Parameters
    ----------
    inputs : int
        Channels of the input.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        super().__init__(*_convolution(inputs, inputs // 2, 1), AvgPool(2))

    def __repr__(self) -> str:
        return f"Transition({self.inputs})"


def densenet121(classes: int = 1000, input_shape: SampleShape = (3, 224, 224), *, backend: str = "auto") -> Chain:
    """DenseNet-121: 7,978,856 parameters for 1,000 classes.

    Parameters
    ----------
    classes, input_shape, backend
        As of `densenet`.
    """
    return densenet((6, 12, 24, 16), classes, input_shape, backend=backend)


def densenet(
    blocks: Sequence[int], classes: int = 1000, input_shape: SampleShape = (3, 224, 224), *, growth: int = 32,
    backend: str = "auto",
) -> Chain:  # fmt: skip
    """A densely connected network. Its outputs, (classes,), are logits.

    The network without its head, ``net[:-1]``, gives features after average pooling: 1,024 of them in DenseNet-121. Source:
    Huang et al. 2017, table 1.

    Parameters
    ----------
    blocks : sequence of int
        The layers of each dense block: (6, 12, 24, 16) for DenseNet-121, (6, 12, 32, 32) for DenseNet-169, (6, 12, 48, 32) for
        DenseNet-201. The transitions between them keep half of the channels.
    classes : int
        The number of outputs.
    input_shape : tuple of int
        (channels, height, width).
    growth : int
        The number of channels that each layer appends.
    backend : str
        As of `Chain`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """
    check_channels_first(input_shape)
    blocks, classes, growth = check_counts("blocks", blocks), check_count("classes", classes), check_count("growth", growth)
    channels = 2 * growth
    layers = stem(input_shape[0], channels, "he_normal")
    for k, count in enumerate(blocks):
        if k:
            layers.append(Transition(channels))
            channels //= 2
        layers.append(DenseBlock(channels, count, growth))
        channels += count * growth
    head = [BatchNorm(channels), Activation(relu), GlobalAvgPool(), Dense(channels, classes)]
    return Chain(*layers, *head, input_shape=input_shape, backend=backend)


def _dense_layer(inputs: int, growth: int) -> Layer:
    """The channels of the input, followed by those computed from it."""
    between = BOTTLENECK * growth
    return Parallel(Series(), Series(*_convolution(inputs, between, 1), *_convolution(between, growth, 3)))


def _convolution(inputs: int, outputs: int, kernel: int) -> list[Layer]:
    """Batch normalisation, relu, and a convolution that keeps the size of the image."""
    return [BatchNorm(inputs), Activation(relu), convolution(inputs, outputs, kernel, "he_normal")]
