"""Data sets as arrays: readers of file formats, loaders that find the files, batches, made ahead of time or augmented."""

from chains.data.augment import Augment
from chains.data.batches import Batches, one_hot
from chains.data.cifar import load_cifar10, read_cifar10
from chains.data.idx import read_idx
from chains.data.mnist import load_mnist
from chains.data.prefetch import prefetch

__all__ = ["Augment", "Batches", "load_cifar10", "load_mnist", "one_hot", "prefetch", "read_cifar10", "read_idx"]
