"""Steps of several processes: each takes its part of every batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network.parallel import part_arrays
from chains.training.optimizer_state import State
from chains.training.steps import Arrays, ArraySteps


class SharedSteps(ArraySteps):
    """`ArraySteps` of the processes of a communicator, which hold the same `data` and see the same order of the samples.

    Losses, parameters and states come out the same on all of them. `batch_size` is that of the whole batch.
    """

    def __init__(self, comm: Any, data: Arrays, executable: Executable, *rest: Any, batch_size: int, **settings: Any) -> None:
        self._comm, self._executable = comm, executable
        self._shares: list[tuple[slice, int, slice, np.ndarray]] = []  # part of the order, whole batch, own columns, own order
        samples = len(data["x"])
        if batch_size == samples:
            own = self._columns(samples)
            data = {name: array[own] for name, array in data.items()}
        super().__init__(data, executable, *rest, batch_size=batch_size, samples=samples, **settings)

    def _columns(self, batch: int) -> slice:
        """The places in a batch of this process's samples."""
        rank, size = self._comm.rank, self._comm.size
        return slice(batch * rank // size, batch * (rank + 1) // size)

    def _feed_of(self, data: State, batch: int, order: slice) -> Any:
        own = self._columns(batch)
        count = own.stop - own.start
        share = np.empty((order.stop - order.start) // batch * count, np.int64)
        self._shares.append((order, batch, own, share))
        self._divide()
        arrays: Mapping[str, np.ndarray] = part_arrays(self._comm, self._executable, batch, own.start, self._shared["p"])
        return self._runner.feed(self._runner.bind(self._program, count, {**self._shared, **arrays}), data, share)

    def _shuffle_all(self) -> None:
        super()._shuffle_all()
        self._divide()

    def _divide(self) -> None:
        """Take this process's part of the order of an epoch."""
        for order, batch, own, share in self._shares:
            share.reshape(-1, own.stop - own.start)[...] = self._order[order].reshape(-1, batch)[:, own]

    @property
    def chunk(self) -> int:
        """The steps of the next run."""
        return self._chunk

    @chunk.setter
    def chunk(self, steps: int) -> None:
        self._chunk = steps
