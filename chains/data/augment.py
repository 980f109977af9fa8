"""Random flips and shifts of images, for training on more than there is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chains.support.checks import as_unmasked, check_count, check_flags


@dataclass(frozen=True)
class Augment:
    """Random flips and shifts of images, for `Batches(..., augment=Augment())`, or a call ``augment(images, rng)``.

    Images (n, ..., rows, columns) are left as they are; the result is fresh, of the same shape and type. Source: He, Zhang, Ren
    and Sun, "Deep residual learning for image recognition", 2016, section 4.2.

    Parameters
    ----------
    flip : bool
        Whether half of the images, drawn at random, are mirrored, left to right.
    shift : int
        By how many pixels an image moves at most, uniformly in both directions. What moves in is zero: this is a random crop of
        the image padded with `shift` zeros.

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
