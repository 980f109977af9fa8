"""Runs of the programs of derivatives, with checked arguments and results; many directions take several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import arguments
from chains.network.recorded import Recorded
from chains.program.program import Program
from chains.support.memory import memory_of
from chains.support.messages import shown

DIRECTIONS_AT_ONCE = 16  # the most directions, or cotangents, in one program; more take several calls


class DerivativeRuns(Recorded):
    """What all derivatives of a network share."""

    def _point(self, p: Any, x: Any, *, real: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The checked parameters and inputs. Raises TypeError if inputs must be `real` and are ids."""
        if real and self.network.id_count is not None:
            raise TypeError("the inputs of this network are ids, by which nothing can be derived")
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape, ids=self.network.id_count)
        return p, arguments.together(p, {"x": x})["x"]

    def _outs(self, given: Any, shapes: Sequence[tuple[int, ...]], inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays to fill: fresh ones, or the given ones, checked."""
        p = inputs["p"]
        if given is None:
            return [memory_of(p).empty(shape, p.dtype) for shape in shapes]
        if not isinstance(given, tuple) or len(given) != len(shapes):
            raise TypeError(f"`out` must be a tuple of {len(shapes)} arrays, not {shown(given)}")
        taken = dict(inputs)
        for number, (array, shape) in enumerate(zip(given, shapes, strict=True)):
            name = "out" if len(shapes) == 1 else f"out[{number}]"
            taken[name] = arguments.check_out(array, shape, p.dtype, taken, name)
        return list(given)

    def _run(self, run: Executable, inputs: dict[str, Any], state: Any, results: dict[str, Any]) -> None:
        p = inputs["p"]
        inputs |= {name: memory_of(p).contiguous(inputs[name]) for name in ("v", "dy") if name in inputs}
        inputs |= self.state_for(run.program, state, p.dtype, False, inputs)
        run(len(inputs["x"]), {**inputs, **results})

    def _pulled(
        self, name: str, make: Callable[..., Program], p: Any, x: Any, shape: tuple[int, ...], state: Any, out: Any
    ) -> np.ndarray:
        """Pullbacks of each output of each sample: (batch, *output_shape, *shape)."""
        p, x = self._point(p, x)
        outputs = math.prod(self.output_shape)
        inputs = {"p": p, "x": x}
        whole = (len(x), *self.output_shape, *shape)
        (result,) = self._outs(None if out is None else (out,), [whole], inputs)
        rows = result.reshape(len(x), outputs, *shape)
        eye = np.eye(outputs, dtype=p.dtype).reshape(outputs, *self.output_shape)
        for start in range(0, outputs, DIRECTIONS_AT_ONCE):
            dy = eye[start : start + DIRECTIONS_AT_ONCE]
            run = self._program(p, (name, p.dtype, len(dy)), partial(make, self.network, len(dy), p.dtype))
            part = rows if outputs <= DIRECTIONS_AT_ONCE else memory_of(p).empty((len(x), len(dy), *shape), p.dtype)
            self._run(run, {**inputs, "dy": dy}, state, {name: part})
            if part is not rows:
                rows[:, start : start + DIRECTIONS_AT_ONCE] = part
        return result
