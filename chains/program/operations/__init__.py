"""The operations of programs, about twenty: they work in place on views. Each fills its `outs` and returns nothing.

A class is the home of an operation: its effects, whether its operands fit together, where it is linear, and its transpose.
Each backend has a record of how it does the operation. `Loop` and `UpdateRows` have modules of their own next to this folder.
"""

from chains.program.operations.base import Operation, Total, users
from chains.program.operations.elements import COMMUNICATOR, COMMUNICATOR_WORDS, AllReduce, Copy, Fill, Map, Random, Reduce
from chains.program.operations.images import Convolve, ConvolveInput, ConvolveWeight, Pair, Pool, PoolInput, Window
from chains.program.operations.products import BatchMatMul, MatMul
from chains.program.operations.tables import Gather, ScatterAdd

__all__ = [
    "COMMUNICATOR", "COMMUNICATOR_WORDS", "AllReduce", "BatchMatMul", "Convolve", "ConvolveInput", "ConvolveWeight", "Copy",
    "Fill", "Gather", "Map", "MatMul", "Operation", "Pair", "Pool", "PoolInput", "Random", "Reduce", "ScatterAdd", "Total",
    "Window", "users",
]  # fmt: skip
