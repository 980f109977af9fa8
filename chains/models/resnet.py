"""Residual networks of bottleneck blocks: ResNet-50 and its relatives.

Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015. As in torchvision, a block's stride is
that of its 3x3 convolution. Parameters and running statistics are in torchvision's order too, so that its arrays can be
copied one after another; only the weight of the last layer is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.activations import relu
from chains.chain import Chain
from chains.initializers import VarianceScaling
from chains.layers import Activation, BatchNorm, Dense, GlobalAvgPool, Layer, Residual, Series
from chains.layers.base import SampleShape
from chains.layers.images import check_channels_first
from chains.models.parts import convolution, stem
from chains.support.checks import check_count, check_counts

EXPANSION = 4  # the outputs of a bottleneck block, in widths
HE = VarianceScaling(2.0, "out", "normal")


class Bottleneck(Residual):
    """``y = relu(inner(x) + shortcut(x))``: inner is a convolution 1x1 to `width` channels, one 3x3, and one 1x1 to 4 `width`.

    Batch normalisation follows each of them, and relu the first two. The shortcut is x itself if it has the output's shape,
    otherwise a convolution 1x1 with batch normalisation. Samples are (inputs, height, width). Source: He et al. 2015, figure 5.

    Parameters
    ----------
    inputs : int
        Channels of the input.
    width : int
        Channels of the convolution 3x3.
    stride : int
        Of that convolution.
    """

    def __init__(self, inputs: int, width: int, *, stride: int = 1) -> None:
        self.inputs, self.width, self.stride = inputs, width, stride
        outputs = EXPANSION * width
        same = inputs == outputs and stride == 1
        super().__init__(
            *_normalised(inputs, width, 1), Activation(relu),
            *_normalised(width, width, 3, stride=stride), Activation(relu),
            *_normalised(width, outputs, 1),
            shortcut=None if same else Series(*_normalised(inputs, outputs, 1, stride=stride)),
            activation=relu,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Bottleneck({self.inputs}, {self.width}{f', stride={self.stride}' if self.stride != 1 else ''})"


def resnet50(classes: int = 1000, input_shape: SampleShape = (3, 224, 224), *, backend: str = "auto") -> Chain:
    """ResNet-50: 25,557,032 parameters for 1,000 classes.

    Parameters
    ----------
    classes, input_shape, backend
        As of `resnet`.
    """
    return resnet((3, 4, 6, 3), classes, input_shape, backend=backend)


def resnet(
    blocks: Sequence[int], classes: int = 1000, input_shape: SampleShape = (3, 224, 224), *, width: int = 64,
    backend: str = "auto",
) -> Chain:  # fmt: skip
    """A residual network. Its outputs, (classes,), are logits.

    The network without its head, ``net[:-1]``, gives features after average pooling: ``32 * width`` of them for four stages,
    2,048 in ResNet-50. Source: He et al. 2015, table 1, with their initialisation of kernels (by fan out, as in torchvision).

    Parameters
    ----------
    blocks : sequence of int
        The bottleneck blocks of each stage: (3, 4, 6, 3) for ResNet-50, (3, 4, 23, 3) for ResNet-101, (3, 8, 36, 3) for
        ResNet-152.
    classes : int
        The number of outputs.
    input_shape : tuple of int
        (channels, height, width).
    width : int
        The channels of the convolutions 3x3 in the first stage; each further stage has twice the width of the one before.
    backend : str
        As of `Chain`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """
    check_channels_first(input_shape)
    blocks, classes, width = check_counts("blocks", blocks), check_count("classes", classes), check_count("width", width)
    layers = stem(input_shape[0], width, HE)
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, width << stage, stride=2 if stage and not block else 1))
            inputs = EXPANSION * width << stage
    return Chain(*layers, GlobalAvgPool(), Dense(inputs, classes), input_shape=input_shape, backend=backend)


def _normalised(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> list[Layer]:
    """A convolution that keeps the size of the image, but for its stride, and batch normalisation."""
    return [convolution(inputs, outputs, kernel, HE, stride=stride), BatchNorm(outputs)]
