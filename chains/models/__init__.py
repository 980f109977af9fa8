"""Networks from the literature; each is a function that returns a `Chain`."""

from chains.models.densenet import DenseBlock, Transition, densenet, densenet121
from chains.models.resnet import Bottleneck, resnet, resnet50

__all__ = ["Bottleneck", "DenseBlock", "Transition", "densenet", "densenet121", "resnet", "resnet50"]
