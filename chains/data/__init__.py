"""Data sets as arrays: readers of file formats, loaders that find the files, batches."""

from chains.data.batches import Batches, one_hot
from chains.data.idx import read_idx
from chains.data.mnist import load_mnist

__all__ = ["Batches", "load_mnist", "one_hot", "read_idx"]
