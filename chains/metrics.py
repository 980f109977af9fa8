"""Metrics: numbers for people, computed from targets and outputs with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.support.arrays import as_array
from chains.support.checks import check_labels, check_number
from chains.support.memory import on_host


def accuracy(t: Any, y: Any, *, threshold: float = 0.5) -> float:
    """The share of samples whose largest output is that of their class. Targets come first, as in scikit-learn.

    Parameters
    ----------
    t : array
        Labels, shape (batch, ...), or rows in the shape of `y`, whose largest entry marks the class.
    y : array, shape (batch, ..., classes)
        Outputs. A single output means class 1 if it is above `threshold`.
    threshold : float
        0.5 for probabilities; 0 for the logits of `BCEWithLogitsLoss`.

    Raises
    ------
    TypeError
        Unless both are arrays of real numbers.
    ValueError
        For other shapes, no samples, NaN, and labels without a class.
    """
    t, y = on_host(as_array("t", t)), on_host(as_array("y", y))
    check_number("threshold", threshold, "finite")
    if y.ndim < 2 or not y.size:
        wanted = "shape (batch, ..., classes), with at least one sample"
        raise ValueError(f"`y` must have {wanted}, got {y.shape}; targets come first: accuracy(t, y)")
    if t.shape not in (y.shape, y.shape[:-1]):
        raise ValueError(f"`t` must have shape {y.shape[:-1]} or {y.shape}, to go with the outputs, got {t.shape}")
    for name, array in (("t", t), ("y", y)):
        if np.isnan(array).any():
            raise ValueError(f"`{name}` holds NaN, which cannot be compared")
    classes = y.shape[-1]
    predicted = y.argmax(axis=-1) if classes > 1 else y[..., 0] > threshold
    labels = t.reshape(predicted.shape) if t.size == predicted.size else t.argmax(axis=-1)
    check_labels(labels, max(2, classes), "`t`")
    return float(np.mean(predicted == labels))
