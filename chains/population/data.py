"""The measurements of many subjects as arrays: samples sorted by subject, and sums over the samples of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.support.arrays import as_numpy
from chains.support.messages import counted


class Subjects:
    """Samples sorted by subject: inputs `x` without effects, measurements `t`, and `weights`, 0 where there is none.

    `ids` are the subjects in ascending order. Samples of one subject keep their order; `order` has their places in the data.
    """

    def __init__(
        self, x: np.ndarray, t: np.ndarray, weights: np.ndarray, ids: np.ndarray, number: np.ndarray, order: np.ndarray
    ) -> None:
        self.x, self.t, self.weights, self.ids, self.number, self.order = x, t, weights, ids, number, order
        self.count = len(ids)
        self.starts = np.searchsorted(number, np.arange(self.count))
        self._single = len(x) == self.count

    @classmethod
    def of(cls, x: Any, y: Any, subjects: Any, width: int, outputs: int) -> Subjects:
        """The checked data. Raises TypeError or ValueError, naming the argument, for data that do not fit."""
        x, y = _numbers("x", x), _numbers("y", y)
        if x.ndim != 2 or x.shape[1] != width:
            raise ValueError(f"`x` has shape {x.shape}: wanted (samples, {width}), the network's inputs without the effects")
        if not len(x):
            raise ValueError("`x` has no samples")
        if not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            raise ValueError(f"`x` must be finite, got {x[row, column]} in row {row}, column {column}")
        if len(y) != len(x) or y.size != len(x) * outputs:
            raise ValueError(f"`y` has shape {y.shape}: wanted ({len(x)}, {outputs}), the measurements of each sample")
        y = y.reshape(len(x), outputs)
        if np.isinf(y).any():
            raise ValueError(f"`y` must be finite, or NaN where nothing was measured, got {y[np.isinf(y)][0]}")
        ids, number = _ids(subjects, len(x))
        order = np.argsort(number, kind="stable")
        there = np.isfinite(y)
        measured = np.bincount(number, there.sum(1), len(ids))
        if not measured.all():
            raise ValueError(f"`y` has no measurement of subject {ids[np.argmin(measured)]}")
        # A missing number is replaced by one that is measured, so that no formula gets NaN.
        t = np.where(there, y, y[there][0])
        t, weights = t[order], there[order].astype(np.float64)
        return cls(np.ascontiguousarray(x[order]), np.ascontiguousarray(t), weights, ids, number[order], order)

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """The sums of rows over the samples of each subject, (subjects, numbers), fresh."""
        return rows.copy() if self._single else np.add.reduceat(rows, self.starts, axis=0)

    def spread(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` (samples, numbers) with the numbers of each sample's subject."""
        if self._single:
            out[...] = rows
        else:
            np.take(rows, self.number, axis=0, out=out, mode="clip")

    def without_effects(self, n: int) -> np.ndarray:
        """The network's inputs at effects of zero."""
        return np.hstack([self.x, np.zeros((len(self.x), n))])

    def rows(self, subject: int) -> slice:
        """The samples of a subject, by its number."""
        stop = self.starts[subject + 1] if subject + 1 < self.count else len(self.x)
        return slice(int(self.starts[subject]), int(stop))

    def blocks(self, most: int) -> list[Subjects]:
        """The subjects in blocks of so many; all blocks have as many samples, some of them without a measurement."""
        if self.count <= most:
            return [self]
        ends = [*self.starts[most::most].tolist(), len(self.x)]
        begins = [0, *ends[:-1]]
        length = max(stop - start for start, stop in zip(begins, ends, strict=True))
        found = []
        for k, (start, stop) in enumerate(zip(begins, ends, strict=True)):
            rows = np.minimum(np.arange(start, start + length), stop - 1)
            weights = np.where((np.arange(length) < stop - start)[:, None], self.weights[rows], 0.0)
            ids = self.ids[k * most : (k + 1) * most]
            found.append(Subjects(self.x[rows], self.t[rows], weights, ids, self.number[rows] - k * most, np.arange(length)))
        return found

    def restored(self, rows: np.ndarray) -> np.ndarray:
        """The rows of samples in the order of the data."""
        found = np.empty_like(rows)
        found[self.order] = rows
        return found

    def __str__(self) -> str:
        return f"{counted(self.count, 'subject')}, {counted(int(self.weights.sum()), 'measurement')}"


def _numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(as_numpy(name, value))
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must have numbers, got {array.dtype}")
    return array.astype(np.float64)


def _ids(subjects: Any, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The subjects in ascending order, and the number of each sample's subject."""
    if subjects is None:
        return np.arange(samples), np.arange(samples)
    given = np.asarray(subjects)
    if given.shape != (samples,):
        raise ValueError(f"`subjects` has shape {given.shape}: wanted ({samples},), the subject of each sample")
    if given.dtype.kind not in "iuUfSb" or (given.dtype.kind == "f" and not np.isfinite(given).all()):
        raise TypeError(f"`subjects` must be whole numbers or strings, got {given.dtype}")
    ids, number = np.unique(given, return_inverse=True)
    return ids, number.reshape(-1)
