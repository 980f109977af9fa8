"""Networks along time called step by step; see `Chain.step`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chains.layers.stepwise import Carried, carried_by, carries, check_steps, place_carried, stepwise
from chains.network import record
from chains.network.call import Call, Method, add_shortcut, check_point, door, run
from chains.network.network import Network
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.caching import lazy
from chains.support.memory import memory_of


class Stepping:
    """A network along time at one step. Raises ValueError for a network that needs more than one step at a time."""

    def __init__(self, whole: Network) -> None:
        if not carries(whole.declaration):
            raise ValueError(
                "this network has no recurrent layer and no causal convolution of several steps: "
                "it is called as a whole, net(x, p)"
            )
        self.whole = whole
        self.network = whole.part(stepwise(whole.declaration), whole.input_shape[1:])
        same = [(e.name, e.shape) for e in self.network.layout] == [(e.name, e.shape) for e in whole.layout]
        if not same or self.network.state_layout.size:
            raise ValueError("this network has layers whose parameters or state depend on the number of steps")
        check_steps(whole.declaration, self.network.declaration, whole.input_shape[0])

    @lazy
    def carried(self) -> list[Carried]:
        """The arrays that the layers carry from step to step."""
        return carried_by(self.network.declaration)

    @property
    def n_carried(self) -> int:
        """The number of values that a sample carries."""
        return self.carried[-1].stop

    def first_carried(self, p: Any, batch: int) -> Any:
        """The initial states of the layers."""
        carried = memory_of(p).empty((batch, self.n_carried), p.dtype)
        carried[...] = 0
        for each in self.carried:
            if each.initial is not None:
                entry = self.network.layout[each.initial]
                carried[:, each.start : each.stop] = p[entry.start : entry.stop]
        return carried

    def record(self, dtype: Any) -> Program:
        """y and the new carried states, from x and the old ones."""
        ops = Recorder("step", dtype)
        self.record_forward(ops, "output")
        return ops.finish()

    def record_forward(self, ops: Recorder, role: str) -> tuple[View, View, View, View]:
        """Record one step. Returns x, the old carried states, and y and the new ones, which are buffers of this `role`."""
        network = self.network
        p = ops.external("p", (network.n_params,), role="input")
        kind = None if network.id_count is None else record.IDS
        x = ops.external("x", network.input_shape, role="input", batched=True, dtype=kind)
        y = ops.external("y", network.output_shape, role=role, batched=True)
        old = ops.external("carried", (self.n_carried,), role="input", batched=True)
        new = ops.external("new carried", (self.n_carried,), role=role, batched=True)
        place_carried(ops, network.declaration, [old, new])
        record.node_of(ops, network, p).forward(ops, x, y)
        return x, old, y, new


STEP = Method("step", "net.step(x, p)", "stepping x p carried out", "p x carried", ("y", "new carried"))


@door(STEP)
def step(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """The output at one step of a sequence, and the states that are carried to the next step."""
    stepping, out, carried = call.stepping, call.out, call.carried
    if out is not None and (not isinstance(out, tuple) or len(out) != 2):
        raise TypeError("`out` must be a pair of arrays, for the output and for what is carried on")
    given, one = out or (None, None), Call(stepping.network, call.given, STEP)
    check_point(one)
    p, x = one.p, one.data["x"]
    if carried is None:
        carried = stepping.first_carried(p, len(x))
    carried = arguments.check_input(as_array("carried", carried), (stepping.n_carried,), "carried", "carried array")
    if len(carried) != len(x):
        raise ValueError(f"`carried` is of {len(carried)} samples, but `x` is a batch of {len(x)}")
    program = call.network.program(p, ("step", one.dtype), partial(stepping.record, one.dtype))
    one.data["carried"] = carried
    outs = {
        "y": ((len(x), *one.network.output_shape), given[0], "out[0]"),
        "new carried": (carried.shape, given[1], "out[1]"),
    }
    found = run(one, program, outs)
    call.p, call.data = p, one.data
    add_shortcut(call, program)
    return found["y"], found["new carried"]
