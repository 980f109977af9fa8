"""Random flips and shifts of images, for training on more than there is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chains.checks import as_unmasked, check_count, check_flags


@dataclass(frozen=True)
class Augment:
    """Random changes to images: `flip` mirrors half of them, left to right; `shift` moves them by up to so many pixels.

    A shift is drawn for each image, both ways, uniformly; what moves in is zero, which is the same as a random crop of the
    image padded with `shift` zeros. For `Batches(..., augment=Augment())`, or a call ``augment(images, rng)``, with
    images of shape (n, ..., rows, columns), which are left as they are; the result is fresh, of the same shape and type.

    Raises TypeError or ValueError for a flip that is not True or False, and a shift that is no whole number from 0 up to the
    images' size, exclusive.
    Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016, section 4.2.
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
