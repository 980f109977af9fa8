"""Metrics: numbers people judge a network by, computed from outputs and targets with NumPy."""

from __future__ import annotations

import numpy as np

from chains.backends.places import is_elsewhere, on_host
from chains.checks import as_unmasked, check_finite_number


def accuracy(y: np.ndarray, t: np.ndarray, *, threshold: float = 0.5) -> float:
    """The share of samples whose largest output is that of the target: a label, or the largest of a one-hot row.

    `y` has shape (batch, ..., classes), `t` (batch, ...) or that of `y`. With one output a sample, an output
    above the threshold counts as class 1: 0.5 for probabilities, 0 for the logits of `BCEWithLogitsLoss`. Raises ValueError for
    other shapes, for no samples, for NaN and for labels of no class, TypeError for masked entries and for no real numbers.
    """
    y, t = (on_host(array) if is_elsewhere(array) else as_unmasked(name, array) for name, array in (("y", y), ("t", t)))
    check_finite_number("threshold", threshold)
    for name, array in (("y", y), ("t", t)):
        if array.dtype.kind not in "fiub":
            raise TypeError(f"`{name}` holds {array.dtype}, but real numbers are wanted")
        if np.isnan(array).any():
            raise ValueError(f"`{name}` holds nan, but numbers that can be compared are wanted")
    if not y.size or y.ndim < 2:
        raise ValueError(f"`y` has shape {y.shape}, but at least one sample is wanted, (batch, ..., classes)")
    if t.shape not in (y.shape, y.shape[:-1]):
        raise ValueError(f"`t` has shape {t.shape}, but outputs of shape {y.shape} go with {y.shape[:-1]} or {y.shape}")
    classes = max(2, y.shape[-1])
    if t.shape != y.shape or y.shape[-1] == 1:
        wrong = t[(t < 0) | (t >= classes) | (t != np.floor(t))]
        if wrong.size:
            raise ValueError(f"`t` holds {wrong[0]}, but labels from 0 to {classes - 1} are wanted, of {classes} classes")
    if y.shape[-1] == 1:
        return float(np.mean((y[..., 0] > threshold) == t.reshape(y.shape[:-1])))
    return float(np.mean(y.argmax(axis=-1) == (t.argmax(axis=-1) if t.shape == y.shape else t)))
