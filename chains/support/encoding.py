"""Numbers and arrays for JSON: infinities and NaN as text, arrays as base64 of their bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encoded(numbers: Iterable[float]) -> list[float | str]:
    """A list of numbers; JSON itself has no infinity and no NaN."""
    return [number if math.isfinite(number) else f"{number:g}" for number in map(float, numbers)]


def decoded(numbers: Any) -> list[float]:
    """The numbers that were encoded. Raises TypeError or ValueError for anything else."""
    if not isinstance(numbers, list):
        raise TypeError(f"expected a list of numbers, not a {type(numbers).__name__}")
    return [NOT_FINITE[number] if isinstance(number, str) else as_number(number) for number in numbers]


def as_number(value: Any) -> float:
    """`value` as a float. Raises TypeError unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, not {value!r}")
    return float(value)


def as_count(value: Any) -> int:
    """`value`, a whole number from 0. Raises TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"expected a whole number, zero or positive, not {value}")
    return value


def encoded_array(array: np.ndarray) -> dict[str, Any]:
    """An array of numbers as its type, its shape and its bytes."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "bytes": base64.b64encode(little.tobytes()).decode("ascii")}


def decoded_array(value: Any) -> np.ndarray:
    """The array that was encoded. Raises TypeError, KeyError or ValueError for anything else."""
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "fiub":
        raise TypeError(f"expected an array of numbers, not of {dtype}")
    data = base64.b64decode(value["bytes"], validate=True)
    array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
    return array.reshape([as_count(length) for length in value["shape"]])
