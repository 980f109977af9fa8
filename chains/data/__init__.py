"""Data sets as arrays: readers of formats, loaders of files, batches with augmentation and prefetching, sequences."""

from chains.data.batches import Augment, Batches, one_hot
from chains.data.cifar import load_cifar10, read_cifar10
from chains.data.imdb import load_imdb
from chains.data.mnist import load_mnist, read_idx
from chains.data.prefetch import prefetch
from chains.data.sequences import buckets, pad, windows

__all__ = [
    "Augment", "Batches", "buckets", "load_cifar10", "load_imdb", "load_mnist", "one_hot", "pad", "prefetch", "read_cifar10",
    "read_idx", "windows",
]  # fmt: skip
