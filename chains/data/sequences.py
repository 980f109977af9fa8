"""Sequences of several lengths as arrays, and windows of a long signal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from chains.support.checks import check_count, check_counts


def pad(
    sequences: Sequence[Any], length: int | None = None, *, padding: float = 0, dtype: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of several lengths as one array, filled up at their ends.

    Parameters
    ----------
    sequences : list of arrays
        Each (steps,) or (steps, ...), all of the same shape but for their steps.
    length : int, optional
        The number of last steps that are kept of longer ones; by default the length of the longest.
    padding : number
        The value after the end of shorter ones.
    dtype : type, optional
        Of the array; by default int64 for whole numbers, else that of the sequences.

    Returns
    -------
    tuple of arrays
        The array, (sequences, length, ...), and the number of steps of each before the padding, int64, (sequences,).

    Raises
    ------
    TypeError, ValueError
        Without sequences, for sequences that differ in more than their steps, and for a length that is not positive.
    """
    arrays = [np.asarray(sequence) for sequence in sequences]
    if not arrays:
        raise ValueError("`sequences` must hold one sequence at least")
    for number, array in enumerate(arrays):
        if not array.ndim:
            raise ValueError(f"`sequences` must hold one sequence for each sample, but number {number} is {array.item()!r}")
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"`sequences` must have the same shape but for their steps, got {sorted(map(str, shapes))}")
    longest = max(map(len, arrays))
    length = max(longest, 1) if length is None else check_count("length", length)
    if dtype is None:
        found = np.result_type(np.min_scalar_type(padding), *(array.dtype for array in arrays if array.size))
        dtype = np.int64 if np.issubdtype(found, np.integer) else found
    padded = np.full((len(arrays), length, *arrays[0].shape[1:]), padding, dtype)
    for row, array in zip(padded, arrays, strict=True):
        kept = array[-length:]
        row[: len(kept)] = kept
    return padded, np.array([min(len(array), length) for array in arrays], np.int64)


def buckets(lengths: Any, bounds: Sequence[int]) -> list[np.ndarray]:
    """Sequences sorted by their lengths, so that little is padded.

    Parameters
    ----------
    lengths : array of int, shape (sequences,)
        The lengths.
    bounds : list of int
        The largest length of each bucket, in ascending order. Longer sequences are in the last bucket, where `pad` cuts them.

    Returns
    -------
    list of arrays
        For each bound, the numbers of its sequences, int64, in order.

    Raises
    ------
    TypeError, ValueError
        For bounds that are not positive and ascending, and lengths that are not whole numbers.
    """
    bounds = check_counts("bounds", bounds)
    if any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"`bounds` (={bounds}) must grow")
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise TypeError(f"`lengths` must be a row of whole numbers, got {lengths.dtype} of shape {lengths.shape}")
    which = np.minimum(np.searchsorted(bounds, lengths), len(bounds) - 1)
    return [np.flatnonzero(which == k) for k in range(len(bounds))]


def windows(signal: Any, length: int, *, step: int = 1) -> np.ndarray:
    """Windows of a long signal, as a view: nothing is copied. `Batches` copies only those of a batch.

    Parameters
    ----------
    signal : array, shape (time, ...)
        The signal; it must not change its shape.
    length : int
        Steps of a window.
    step : int
        Steps from the beginning of a window to that of the next.

    Returns
    -------
    array, shape (windows, length, ...)
        Read-only; it shares the memory of `signal`.

    Raises
    ------
    TypeError, ValueError
        For lengths that are not positive, and a signal shorter than a window.
    """
    signal, length, step = np.asarray(signal), check_count("length", length), check_count("step", step)
    if signal.ndim == 0 or len(signal) < length:
        raise ValueError(f"`length` (={length}) must be at most that of `signal`, whose shape is {signal.shape}")
    view = np.lib.stride_tricks.sliding_window_view(signal, length, axis=0)[::step]
    return np.moveaxis(view, -1, 1)
