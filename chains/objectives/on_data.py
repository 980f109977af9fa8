"""Programs on fixed data as functions of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chains.backends import Binding, Executable
from chains.backends.executable import decline
from chains.support.memory import HOST, memory_of

Shape = tuple[int, ...]
MANY_CALLS = 2  # many functions are called only once, in another process


class OnData:
    """``call(p)`` runs a program with a value, and returns it, a float, and the outputs, fresh and in the memory of `p`.

    Calls from several threads are safe; each uses separate arrays. After two calls, small programs have a function in machine
    code, `quick`, which declines arguments by None.
    """

    def __init__(self, executable: Executable, arrays: Mapping[str, Any], n_params: int, outs: Mapping[str, Shape]) -> None:
        self.quick: Callable[..., Any] = decline
        self._executable, self._arrays = executable, arrays
        self._batch, self._place = len(arrays["x"]), memory_of(arrays["x"])
        self._n_params, self._outs = n_params, dict(outs)
        self._idle: list[tuple[Binding, dict[str, Any]]] = []
        self._calls = 0

    def __call__(self, p: Any) -> tuple[Any, ...]:
        """The value and the outputs for a vector of parameters, in any memory and of any real type.

        Raises TypeError for a vector on a GPU if the data are on the host.
        """
        try:
            binding, own = self._idle.pop()
        except IndexError:
            binding, own = self._bind()
        place = memory_of(p)
        if self._place is HOST and place is not HOST:
            raise TypeError("`p` is on the GPU and the data in the computer's memory: make the objective with cupy.asarray(x)")
        self._place.assign(own["p"], p)
        binding()
        found = [self._copied(place, own[name]) for name in self._outs]
        result = own["value"].item(), *found
        self._calls += 1
        if self._calls != MANY_CALLS or not self._quicken(binding):
            self._idle.append((binding, own))
        return result

    def _copied(self, place: Any, own: Any) -> Any:
        copy = place.empty(own.shape, own.dtype)
        self._place.assign(copy, own)
        return copy

    def _quicken(self, binding: Binding) -> bool:
        """Use a binding for a function in machine code from now on. Returns whether there is one."""
        run, outs = self._executable, tuple(self._outs)
        if run.takes(("p",), outs, self._arrays):
            self.quick = run.backend.function(binding, {"p": run.program.dtype}, outs) or decline
        return self.quick is not decline

    def _bind(self) -> tuple[Binding, dict[str, Any]]:
        run = self._executable
        program = run.program
        shapes = {"p": (self._n_params,), "value": (), **self._outs}
        own = {name: self._place.contiguous(np.zeros(shape, program.dtype)) for name, shape in shapes.items()}
        known = {name: a for name, a in {**self._arrays, **run.settings, **own}.items() if name in program.buffers}
        return run.backend.bind(program, self._batch, known), own
