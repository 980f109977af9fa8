"""The loss on fixed data as a function of the flat parameter vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.backends import Binding, Executable


class Objective:
    """``objective(p)`` returns ``(value, gradient)``: a float and a fresh float64 vector. Made by `Chain.objective`.

    The data are converted once and kept. Calls from several threads are safe; each uses arrays of its own.
    """

    def __init__(
        self, executable: Executable, data: Mapping[str, np.ndarray], n_params: int, extra: Mapping[str, np.ndarray]
    ) -> None:
        dtype = executable.program.dtype
        self.n_params = n_params
        self.batch = len(data["x"])
        self._executable = executable
        self._data = {name: np.ascontiguousarray(array, dtype) for name, array in data.items()} | dict(extra)
        self._idle: list[Binding] = []

    def __call__(self, p: Any) -> tuple[float, np.ndarray]:
        """The value and the gradient at `p`, shape (n_params,). Raises ValueError for another shape."""
        p = np.asarray(p)
        if p.shape != (self.n_params,):
            raise ValueError(
                f"`p` has shape {p.shape}, but the network has {self.n_params} parameters, shape ({self.n_params},)"
            )
        binding = self._idle.pop() if self._idle else self._bind()
        try:
            arrays = binding.arrays
            arrays["p"][...] = p
            with self._executable.backend.running():
                binding.run()
            return float(arrays["value"]), arrays["g"].copy()
        finally:
            self._idle.append(binding)

    def value(self, p: Any) -> float:
        """The value alone."""
        return self(p)[0]

    def gradient(self, p: Any) -> np.ndarray:
        """The gradient alone, fresh."""
        return self(p)[1]

    def _bind(self) -> Binding:
        program = self._executable.program
        used = {name: array for name, array in self._data.items() if name in program.buffers}
        return self._executable.backend.bind(program, self.batch, used)

    def __repr__(self) -> str:
        return f"<objective of {self.n_params} parameters on {self.batch} samples>"
