"""The programs that the native backend supports, and what is decided of a whole program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from chains.backends.base import cannot_run
from chains.backends.native.operations import record_of, refusal
from chains.program.operations import MatMul
from chains.program.program import Program

MIN_GATHERED_WEIGHTS = 1 << 20  # of a product that is worth a separate plan
MIN_GATHERED_SAMPLES = 32  # fewer are a few tiles
MAX_GATHERED_BYTES = 256 << 20  # of what has to be kept for the whole batch
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
def _max_gathered(program: Program) -> int:
    """The most samples whose intermediates are kept for such products; 0 for programs without them, or without images."""
    products = [operation for operation in program.operations if isinstance(operation, MatMul)]
    largest = max((v.sample_size for product in products for v in product.views if not v.batched), default=0)
    if largest < MIN_GATHERED_WEIGHTS or not any(record_of(each).of_images for each in program.operations):
        return 0
    buffers = {view.buffer for operation in program.operations for view in operation.views if view.batched}
    return MAX_GATHERED_BYTES // sum(buffer.nbytes for buffer in buffers)
