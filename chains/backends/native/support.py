"""The programs that the native backend supports, and what is decided of a whole program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from chains.backends.base import cannot_run
from chains.backends.native.llvm.vectormath import ELEMENTARY
from chains.backends.native.operations import record_of, refusal
from chains.program.operations import Copy, Fill, Map, MatMul, Operation, Reduce
from chains.program.program import Program

MIN_GATHERED_WEIGHTS = 1 << 20  # of a product that is worth a separate plan
MIN_GATHERED_SAMPLES = 32  # fewer are a few tiles
MAX_GATHERED_BYTES = 256 << 20  # of what has to be kept for the whole batch
MAX_STRAIGHT_MULTIPLY_ADDS = 8 << 10  # of one sample, whose code is written out
MAX_STRAIGHT_PRODUCTS = 16
MAX_STRAIGHT_FUNCTIONS, MAX_STRAIGHT_ELEMENTS = 1 << 10, 4 << 10  # elementary functions of one sample, elements of results
T = TypeVar("T")


def per_program(compute: Callable[[Program], T]) -> Callable[[Program], T]:
    """The function, whose result is kept with the program: networks of one structure share programs."""
    results: WeakKeyDictionary[Program, T] = WeakKeyDictionary()

    @wraps(compute)
    def kept(program: Program) -> T:
        if program not in results:
            results[program] = compute(program)
        return results[program]

    return kept


@per_program
def unsupported(program: Program) -> str | None:
    """The reason why a program is not supported, in a sentence; None if it is supported."""
    reasons = ((operation, refusal(operation)) for operation in program.operations)
    return next((cannot_run("native", operation, why) for operation, why in reasons if why is not None), None)


def gathers(program: Program, batch: int | None) -> bool:
    """Whether products of very many weights, in a network of images, see the whole batch: each tile would read all weights.

    The intermediates of the operations on images are then kept for all samples, so the batch must not be too large.
    """
    return batch is not None and MIN_GATHERED_SAMPLES <= batch <= _max_gathered(program)


@per_program
def is_straight(program: Program) -> bool:
    """Whether one sample has separate code (`llvm/straight.py`): few products with weights, maps and sums, all written out.

    With as few operations, results wait for one another, and for memory, longer than the processor computes.
    """
    operations = program.operations
    if not all(
        isinstance(each, (Copy, Fill, Map, MatMul, Reduce)) and all(out.batched for out in each.outs) for each in operations
    ):
        return False
    products = [each for each in operations if isinstance(each, MatMul)]
    if not 0 < len(products) <= MAX_STRAIGHT_PRODUCTS:
        return False
    if any(each.ins[1].batched or each.ins[1].strides[1] != 1 for each in products):
        return False
    elements = sum(out.sample_size for each in operations for out in each.outs)
    few = elements <= MAX_STRAIGHT_ELEMENTS and sum(map(_functions, operations)) <= MAX_STRAIGHT_FUNCTIONS
    return few and program.flops() <= 2 * MAX_STRAIGHT_MULTIPLY_ADDS


def _functions(operation: Operation) -> int:
    """The elementary functions of a map, of one sample."""
    if not isinstance(operation, Map):
        return 0
    return operation.outs[0].sample_size * sum(each.operation in ELEMENTARY for each in operation.formula.instructions)


@per_program
def _max_gathered(program: Program) -> int:
    """The most samples whose intermediates are kept for such products; 0 for programs without them, or without images."""
    products = [operation for operation in program.operations if isinstance(operation, MatMul)]
    largest = max((v.sample_size for product in products for v in product.views if not v.batched), default=0)
    if largest < MIN_GATHERED_WEIGHTS or not any(record_of(each).of_images for each in program.operations):
        return 0
    buffers = {view.buffer for operation in program.operations for view in operation.views if view.batched}
    return MAX_GATHERED_BYTES // sum(buffer.nbytes for buffer in buffers)
