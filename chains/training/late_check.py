"""The check of large data for infinities and NaN during the first epoch, while the batches are taken."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chains.support import arguments


class LateCheck:
    """Checks data that training has begun with.

    A pass over large data takes longer than all else before the first step. So the feed of the steps looks at the numbers of
    each batch (`Feed.watch`). If one is not finite, or if the first epoch ends early for any reason, a call checks all data. If
    they are refused, the trained arrays are as they were: until the end of the epoch, nobody else has seen them.
    """

    def __init__(self, data: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray]) -> None:
        self._data, self._trained = data, trained
        self._before = {name: array.copy() for name, array in trained.items()}

    def __call__(self) -> None:
        """Check the data. Raises ValueError for numbers that do not fit, after putting the trained arrays back."""
        try:
            arguments.check_finite(self._trained["p"].dtype, **self._data)
        except ValueError:
            for name, array in self._trained.items():
                array[...] = self._before[name]
            raise
