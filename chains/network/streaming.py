"""Recurrent networks called step by step; `Chain` inherits it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chains.layers.base import Declaration
from chains.layers.stepwise import Carried, carried_by, stepwise
from chains.network import arguments, record
from chains.network.derivatives import Derivatives
from chains.params import Layout, LayoutBuilder
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.support.arrays import as_array
from chains.support.lazy import lazy
from chains.support.memory import memory_of


class Streaming(Derivatives):
    """A network that can be called one step of a sequence at a time."""

    def step(
        self, x: Any, p: Any, carried: Any = None, *, out: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The output at one step of a sequence, and the states that are carried to the next step.

        Parameters
        ----------
        x : array, shape (batch, *input_shape[1:])
            The inputs of a step.
        p : array, shape (n_params,)
            The parameters, whose type is that of the computation.
        carried : array, shape (batch, n_carried), optional
            The `carried` of the previous step; None for the first step, which begins with the layers' initial states.
        out : pair of arrays, optional
            Filled with the output and the new `carried`; neither may be an argument.

        Returns
        -------
        y : array
            The output: that of the network for the sequence up to this step.
        carried : array, shape (batch, n_carried)
            The states of all cells, for the next step.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and for networks that need more than one step at a time, such as those with
            bidirectional layers. Nothing is written then.
        """
        given = (None, None) if out is None else out
        quick = self._shortcuts.find("step", p, x)
        if quick is not None and (found := quick(p, x, carried, *given)) is not None:
            return found
        if out is not None and (not isinstance(out, tuple) or len(out) != 2):
            raise TypeError("`out` must be a pair of arrays, for the output and for what is carried on")
        network = self._stepwise
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, network.declaration.input, ids=network.id_count)
        if carried is None:
            carried = self._first_carried(p, len(x))
        carried = arguments.check_input(as_array("carried", carried), (self.n_carried,), "carried", "carried array")
        if len(carried) != len(x):
            raise ValueError(f"`carried` is of {len(carried)} samples, but `x` is a batch of {len(x)}")
        run = self._program(p, ("step", p.dtype), partial(self._record_step, p.dtype))
        data = {"p": p, **arguments.together(p, {"x": x, "carried": carried})}
        shape, place = (len(x), *network.declaration.output_shape), memory_of(p)
        y, after = given
        y = place.empty(shape, p.dtype) if y is None else arguments.check_out(y, shape, p.dtype, data, "out[0]")
        if after is None:
            after = place.empty(carried.shape, p.dtype)
        else:
            after = arguments.check_out(after, carried.shape, p.dtype, {**data, "out[0]": y}, "out[1]")
        run(len(x), {**data, "y": y, "new carried": after})
        self._shortcuts.add("step", run, {"p": p, "x": x, "carried": carried}, ["y", "new carried"])
        return y, after

    @property
    def n_carried(self) -> int:
        """The number of values that a sample carries from step to step."""
        return self._carried[-1].stop if self.network.declaration.goes_along_time else 0

    @lazy
    def _stepwise(self) -> record.Network:
        """The network at one step. Raises ValueError where there is none."""
        params, state = LayoutBuilder(), LayoutBuilder()
        if not self.network.declaration.goes_along_time:
            raise ValueError("this network has no recurrent layer: it is called as a whole, net(x, p)")
        declaration = Declaration(stepwise(self), self.input_shape[1:], params, state)
        layout = Layout(params.slices)
        if [(e.name, e.shape) for e in layout] != [(e.name, e.shape) for e in self.layout] or state.slices:
            raise ValueError("this network has layers whose parameters or state depend on the number of steps")
        return record.Network(declaration, layout, Layout(state.slices, "state array"))

    @lazy
    def _carried(self) -> list[Carried]:
        return carried_by(self._stepwise.declaration)

    def _first_carried(self, p: Any, batch: int) -> Any:
        carried = memory_of(p).empty((batch, self.n_carried), p.dtype)
        carried[...] = 0
        for each in self._carried:
            if each.initial is not None:
                entry = self.layout[each.initial]
                carried[:, each.start : each.stop] = p[entry.start : entry.stop]
        return carried

    def _record_step(self, dtype: Any) -> Program:
        """y and the new carried states, from x and the old ones."""
        network = self._stepwise
        ops = Recorder("step", dtype)
        p = ops.external("p", (self.n_params,), role="input")
        kind = None if network.id_count is None else record.IDS
        x = ops.external("x", network.declaration.input, role="input", batched=True, dtype=kind)
        y = ops.external("y", network.declaration.output_shape, role="output", batched=True)
        ends = [ops.external(n, (self.n_carried,), role=r, batched=True) for n, r in CARRIED.items()]
        by_cell: dict[int, list[Carried]] = {}
        for each in self._carried:
            by_cell.setdefault(each.cell, []).append(each)
        for cell in by_cell.values():
            ops.carried += [end.slice(1, each.start, each.stop).reshape(*each.shape) for end in ends for each in cell]
        record.node_of(ops, network, p).forward(ops, x, y)
        return ops.finish()


CARRIED = {"carried": "input", "new carried": "output"}
