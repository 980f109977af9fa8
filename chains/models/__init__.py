"""Networks of the literature, each a function that gives a `Chain`."""

from chains.models.densenet import DenseBlock, Transition, densenet, densenet121
from chains.models.resnet import Bottleneck, resnet, resnet50

__all__ = ["Bottleneck", "DenseBlock", "Transition", "densenet", "densenet121", "resnet", "resnet50"]
