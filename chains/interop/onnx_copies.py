"""Nodes that copy entries, as layers: they are run on the numbers of the entries, which shows what they do to each sample."""

from __future__ import annotations

import math

import numpy as np

from chains import layers
from chains.interop.onnx_model import BATCHES
from chains.interop.parts import Part
from chains.layers.base import SampleShape

MOST_RUNS = 512  # a selection is as many operations as it has runs of neighbours


def numbers(batch: int, sample: SampleShape) -> np.ndarray:
    """The numbers of the entries of a batch."""
    return np.arange(batch * math.prod(sample)).reshape(batch, *sample)


def places(results: list[np.ndarray | None], size: int, axis: int = 0) -> np.ndarray | None:
    """For each entry of a sample of the result, the place of its origin in the sample of `size` entries that it comes from.

    `results` are the numbers of entries for both batch sizes, with the samples along `axis`. None if a sample of the result
    has entries of other samples, or if samples differ in their places.
    """
    found = []
    for batch, result in zip(BATCHES, results, strict=True):
        if result is None or result.ndim <= axis or result.shape[axis] != batch:
            return None
        rows = np.moveaxis(np.asarray(result), axis, 0) - size * np.arange(batch).reshape(-1, *(1,) * (result.ndim - 1))
        if (rows != rows[0]).any() or rows.size == 0 or rows.min() < 0 or rows.max() >= size:
            return None
        found.append(rows[0].astype(int))
    one, other = found
    return one if np.array_equal(one, other) else None


def parts_of(place: np.ndarray, sample: SampleShape) -> list[Part]:
    """The layers whose result has the entries of a sample at these places. Raises ValueError if there would be too many."""
    base = np.arange(math.prod(sample)).reshape(sample)
    if np.array_equal(place.reshape(-1), base.reshape(-1)):
        if place.shape == sample:
            return []
        return [Part(layers.Flatten() if place.ndim == 1 else layers.Reshape(*place.shape))]
    if (factor := _factor(place, base)) is not None:
        return [Part(layers.Upsample(factor))]
    runs = 1 + int((np.diff(place.reshape(-1)) != 1).sum())
    if place.ndim and base.ndim and place.shape[:-1] == sample[:-1]:
        rows, firsts = place.reshape(-1, place.shape[-1]), base.reshape(-1, sample[-1])
        chosen = rows[0] - firsts[0, 0]
        if (chosen >= 0).all() and (chosen < sample[-1]).all() and np.array_equal(rows, firsts[:, chosen]):
            _check_runs(1 + int((np.diff(chosen) != 1).sum()))
            return [Part(layers.Select(chosen.tolist()))]
    _check_runs(runs)
    flat = [Part(layers.Flatten())] if len(sample) != 1 else []
    shaped = [Part(layers.Reshape(*place.shape))] if place.ndim != 1 else []
    return [*flat, Part(layers.Select(place.reshape(-1).tolist())), *shaped]


def _check_runs(count: int) -> None:
    if count > MOST_RUNS:
        raise ValueError(f"it puts the entries of a sample in another order, in {count} pieces, which no layer here does")


def _factor(place: np.ndarray, base: np.ndarray) -> tuple[int, ...] | None:
    """How often each entry is repeated along each axis but the channels, if that is all."""
    if place.ndim != base.ndim or base.ndim < 2 or place.shape[0] != base.shape[0]:
        return None
    factors = []
    for axis in range(1, base.ndim):
        if place.shape[axis] % base.shape[axis]:
            return None
        factors.append(place.shape[axis] // base.shape[axis])
        base = np.repeat(base, factors[-1], axis)
    return tuple(factors) if np.array_equal(place, base) else None
