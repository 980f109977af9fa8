"""Metrics: numbers people judge a network by, computed from outputs and targets with NumPy."""

from __future__ import annotations

import numpy as np

from chains.backends.places import on_host


def accuracy(y: np.ndarray, t: np.ndarray, *, threshold: float = 0.5) -> float:
    """The share of samples whose largest output is that of the target: a label, or the largest of a one-hot row.

    `y` has shape (batch, ..., classes), `t` (batch, ...) or that of `y`. With one output a sample, an output
    above the threshold counts as class 1: 0.5 for probabilities, 0 for the logits of `BCEWithLogitsLoss`. Raises ValueError for
    other shapes, for no samples and for NaN.
    """
    y, t = on_host(y), on_host(t)
    if not y.size:
        raise ValueError(f"`y` has shape {y.shape}, but at least one sample is wanted")
    if t.shape not in (y.shape, y.shape[:-1]):
        raise ValueError(f"`t` has shape {t.shape}, but outputs of shape {y.shape} go with {y.shape[:-1]} or {y.shape}")
    if np.isnan(y).any():
        raise ValueError("`y` holds nan, but outputs that can be compared are wanted")
    if y.shape[-1] == 1:
        return float(np.mean((y[..., 0] > threshold) == t.reshape(y.shape[:-1])))
    return float(np.mean(y.argmax(axis=-1) == (t.argmax(axis=-1) if t.shape == y.shape else t)))
