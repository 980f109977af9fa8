"""Calls with the parameters on a GPU and the inputs in the computer's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import arguments
from chains.support.memory import memory_of


def call_from_host(
    net: Any, run: Executable, x: np.ndarray, p: Any, more: dict[str, Any], state: Any, training: bool, seed: int, out: Any
) -> np.ndarray:
    """The outputs of a network; `out` may be in the computer's memory too. `more` are inputs."""
    place, shape = memory_of(p), (len(x), *net.output_shape)
    inputs = {**arguments.together(p, {"x": x, **more}, move=False), "p": p}
    inputs |= net.state_for(run.program, state, p.dtype, training, inputs)
    if out is None:
        y = place.empty(shape, p.dtype)
    else:
        outwards = isinstance(out, np.ndarray) and not place.owns(out)
        y = arguments.check_out(out, shape, p.dtype, {"x": x} if outwards else inputs)
    inputs = arguments.with_random(inputs, run, seed, p)
    own = y if place.owns(y) else place.empty(shape, p.dtype)
    run(len(x), {**inputs, **arguments.together(p, {name: inputs[name] for name in ("x", *more)}), "y": own})
    if own is not y:
        place.assign(y, own)
    return y
