"""Batches of arrays that belong together, random changes of images, and labels as one-hot rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chains.support import arguments, streams
from chains.support.checks import as_unmasked, check_count, check_flags, check_labels, check_number, takes


@dataclass(frozen=True)
class Augment:
    """Random flips and shifts of images, for `Batches(..., augment=Augment())`, or a call ``augment(images, rng)``.

    Images (n, ..., rows, columns) are not changed; the result is a fresh array of the same shape and type. Source: He, Zhang,
    Ren and Sun, "Deep residual learning for image recognition", 2016, section 4.2.

    Parameters
    ----------
    flip : bool
        Whether half of the images, drawn at random, are mirrored, left to right.
    shift : int
        The largest shift in pixels, uniform in both directions. New pixels are zero: this is a random crop of the image padded
        with `shift` zeros.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, and images that are no larger than the shift.
    """

    flip: bool = True
    shift: int = 4

    def __post_init__(self) -> None:
        check_flags(flip=self.flip)
        check_count("shift", self.shift, 0, " pixels")

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        images = as_unmasked("images", images)
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"`rng` (={rng!r}) must be a Generator, such as np.random.default_rng(0)")
        self.check(images.shape)
        samples, *_, rows, columns = images.shape
        shift = self.shift
        flipped = rng.random(samples) < 0.5 if self.flip else None
        if shift:
            top, left = rng.integers(0, 2 * shift, (2, samples), endpoint=True)
            padded = np.zeros((*images.shape[:-2], rows + 2 * shift, columns + 2 * shift), images.dtype)
            padded[..., shift:-shift, shift:-shift] = images
            windows = sliding_window_view(padded, (rows, columns), (-2, -1))  # (samples, ..., top, left, rows, columns)
            result = windows[np.arange(samples), ..., top, left, :, :]
        else:
            result = images.copy()
        if flipped is not None:
            result[flipped] = result[flipped][..., ::-1]
        return result

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless images of this shape, samples first, can be shifted."""
        if len(shape) < 3 or self.shift >= min(shape[-2:]):
            raise ValueError(
                f"images to be shifted by up to {self.shift} pixels must have shape (samples, ..., rows, columns), with more "
                f"than {self.shift} rows and columns, got {shape}"
            )


Item = TypeVar("Item")
# Changes images at random: takes a batch of them and a generator, and returns a fresh batch.
Augmentation = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Batches:
    """Arrays of as many samples each, batch by batch: every pass over it is an epoch.

    A batch is a tuple of as many arrays: copies of its samples if they are shuffled, otherwise views. The data set itself is
    never copied. ``len()`` is the number of batches of a pass.

    Parameters
    ----------
    *arrays : array, shape (samples, ...)
        The arrays, such as inputs and targets.
    batch_size : int
        Samples of a batch. A last, smaller batch is used too, unless `drop_last` is set.
    shuffle : bool
        Whether every pass takes the samples in a new order.
    seed : int
        The seed that decides, with the number of the pass, the order and the numbers that `augment` draws.
    drop_last : bool
        Whether a last, smaller batch is left out.
    augment : callable, optional
        An `Augment`, or a function of images and a random generator: it changes the first array of each batch.
    scale : float, optional
        A factor of the first array, after `augment`. The array becomes float32 unless it is float64: ``scale=1 / 255`` maps
        bytes of pixels to numbers from 0 to 1. Scale images for validation in the same way: ``x * np.float32(1 / 255)``.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, by name.

    Examples
    --------
    >>> for x, t in Batches(images, labels, batch_size=10):
    ...     value, g = net.value_and_grad(p, x, t, loss)
    >>> batches = Batches(images, labels, batch_size=64, augment=Augment(), scale=1 / 255)
    >>> history = train(net, p, batches, None, loss, Adam(1e-3), epochs=10)
    """

    def __init__(
        self, *arrays: Any, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
        augment: Augmentation | None = None, scale: float | None = None,
    ) -> None:  # fmt: skip
        if not arrays:
            raise ValueError("`arrays` is empty; try Batches(x, t, batch_size=10)")
        self.arrays = tuple(as_unmasked(f"arrays[{k}]", array) for k, array in enumerate(arrays))
        for k, array in enumerate(self.arrays):
            if array.ndim == 0:
                raise ValueError(f"`arrays[{k}]` (={array}) must have an axis of samples")
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise ValueError(f"`arrays` must have the same number of samples, got {lengths}")
        batch_size, seed = check_count("batch_size", batch_size), arguments.check_seed(seed)
        check_flags(shuffle=shuffle, drop_last=drop_last)
        if augment is not None and (not callable(augment) or isinstance(augment, type) or not takes(augment, 2)):
            raise TypeError(f"`augment` (={augment!r}) must be a function of images and a random generator, such as Augment()")
        if isinstance(augment, Augment):
            augment.check(self.arrays[0].shape)
        if scale is not None:
            check_number("scale", scale, "finite", ", such as 1 / 255")
            if scale == 0:
                raise ValueError("`scale` (=0) must not be zero")
            if self.arrays[0].dtype.kind not in "fiub":
                raise TypeError(f"the first array must be real to be scaled, got {self.arrays[0].dtype}")
        self.samples = lengths[0]
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.augment = augment
        self.scale = scale
        self.epoch = 0  # passes begun so far

    def __len__(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        return self.pass_from(0)

    def pass_from(self, batch: int) -> Iterator[tuple[np.ndarray, ...]]:
        """The next pass from one of its batches on; the batches are those of a whole pass.

        Parameters
        ----------
        batch : int
            The number of the first batch, from 0.

        Raises
        ------
        TypeError, ValueError
            For another number.
        """
        batch = check_count("batch", batch, 0)
        rng = streams.generator("batches", self.seed, self.epoch)
        order = rng.permutation(self.samples) if self.shuffle else None
        self.epoch += 1
        return self._batches(order, rng, batch)

    def _batches(self, order: np.ndarray | None, rng: np.random.Generator, begin: int) -> Iterator[tuple[np.ndarray, ...]]:
        for k in range(begin if self.augment is None else 0, len(self)):
            part = slice(k * self.batch_size, (k + 1) * self.batch_size)
            chosen = part if order is None else order[part]
            first, *others = (array[chosen] for array in self.arrays)
            if k < begin:
                self._changed(first, rng)  # for the random numbers that it draws
            else:
                yield (self._changed(first, rng), *others)

    def _changed(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A batch of the first array, augmented and scaled as the settings say."""
        if self.augment is not None:
            x = self.augment(x, rng)
            if not isinstance(x, np.ndarray):
                raise TypeError(f"`augment` (={self.augment!r}) must return an array of images, got a {type(x).__name__}")
        if self.scale is None:
            return x
        kind = np.float64 if x.dtype == np.float64 else np.float32
        return np.multiply(x, kind(self.scale), dtype=kind)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{array.dtype} {array.shape}" for array in self.arrays)
        settings = f"batch_size={self.batch_size}, shuffle={self.shuffle}, seed={self.seed}, drop_last={self.drop_last}"
        if self.augment is not None:
            settings += f", augment={self.augment!r}"
        if self.scale is not None:
            settings += f", scale={self.scale:g}"
        return f"<Batches of {arrays}: {len(self)} an epoch; {settings}>"


def pass_from(source: Iterable[Item], batch: int) -> Iterator[Item]:
    """A pass over a source of batches, from the batch of this number on.

    If the source has a method `pass_from`, it gives the pass; otherwise earlier batches are made and dropped.
    """
    own = getattr(source, "pass_from", None)
    if batch and own is not None:
        asked: Iterator[Item] = own(batch)
        return asked
    batches = iter(source)
    for _ in zip(range(batch), batches, strict=False):
        pass
    return batches


def one_hot(labels: Any, classes: int, dtype: Any = np.float32) -> np.ndarray:
    """Rows of zeros with a one at each label.

    Parameters
    ----------
    labels : array of int
        From 0 up to `classes`, exclusive.
    classes : int
        The length of a row.
    dtype : type
        Of the rows.

    Returns
    -------
    array, shape (*labels.shape, classes)
        The rows.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit; for labels out of range with the first one.
    """
    labels = as_unmasked("labels", labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"`labels` must be integers, got {labels.dtype}")
    classes = check_count("classes", classes)
    try:
        known = np.dtype(dtype).kind in "biufc"
    except TypeError:
        known = False
    if not known:
        raise TypeError(f"`dtype` (={dtype!r}) must be a type of numbers, such as np.float32")
    check_labels(labels, classes, "`labels`")
    rows = np.zeros((*labels.shape, classes), dtype)
    np.put_along_axis(rows, labels[..., None].astype(np.intp, copy=False), 1, axis=-1)
    return rows
