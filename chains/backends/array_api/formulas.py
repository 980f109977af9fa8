"""Formulas by an array library: each instruction makes an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends.array_api.library import Array, Library
from chains.expr import Formula

# The standard's names of the scalar operations that have other names here.
_STANDARD = {
    "neg": "negative", "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
    "and": "logical_and", "or": "logical_or", "not": "logical_not",
}  # fmt: skip


def evaluator(library: Library, formula: Formula, dtype: np.dtype[Any]) -> Callable[[Sequence[Array]], list[Array]]:
    """A function of the operands' arrays that computes the results of a formula in a type."""
    steps = [(_function(library, each.operation, each.value, dtype), each.operands) for each in formula.instructions]

    def compute(operands: Sequence[Array]) -> list[Array]:
        results = list(operands)
        for function, places in steps:
            results.append(function(*[results[place] for place in places]))
        return [results[output] for output in formula.outputs]

    return compute


def _function(library: Library, operation: str, value: float, dtype: np.dtype[Any]) -> Callable[..., Array]:
    """The function for a scalar operation. Operands are numbers or truth values, and become what the function takes."""
    xp = library.xp
    truth, number = partial(_truth, xp), partial(library.converted, dtype=dtype)
    if operation == "const":
        constant = library.from_host(np.asarray(value, dtype))
        return lambda: constant
    if operation == "where":
        return lambda condition, a, b: xp.where(truth(condition), number(a), number(b))
    kind = truth if operation in ("and", "or", "not") else number
    found = library.erf if operation == "erf" else getattr(xp, _STANDARD.get(operation, operation))
    return lambda *operands: found(*map(kind, operands))


def _truth(xp: Any, array: Array) -> Array:
    return array if array.dtype == xp.bool else array != 0.0
