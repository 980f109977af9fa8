"""The operations of formulas on Python's numbers, by NumPy's name for them, and as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# Each operation on Python numbers; constants are folded with these.
PYTHON: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("floor", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos")},
    "erf": math.erf,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "not": lambda a: not a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}

UFUNCS: dict[np.ufunc, str] = {
    **{getattr(np, name): name for name in ("exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "sign", "floor")},
    np.absolute: "abs",
    np.negative: "neg",
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.power: "pow",
    np.minimum: "min",
    np.maximum: "max",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.equal: "eq",
    np.not_equal: "ne",
}

SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
