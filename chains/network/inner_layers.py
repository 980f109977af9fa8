"""Layers of some kinds within a network, with the inputs that they receive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from chains.layers.base import Declaration, Layer
from chains.layers.combine import Parallel, Residual, Series
from chains.network import executables
from chains.network.call import Call, check_lengths, run
from chains.network.network import Network

Kinds = tuple[type[Layer], ...]


def find(d: Declaration, kinds: Kinds) -> Iterator[Declaration]:
    """The layers of these kinds within a declared layer, except those within one of these kinds."""
    if isinstance(d.layer, kinds):
        yield d
    else:
        for child in d.children:
            yield from find(child, kinds)


def with_inputs(
    network: Network, d: Declaration, p: np.ndarray, x: Any, kinds: Kinds, lengths: Any
) -> Iterator[tuple[Declaration, np.ndarray, Any]]:
    """The layers of these kinds whose inputs can be computed, with their parameters and inputs."""
    if isinstance(d.layer, kinds):
        yield d, p, x
    if not isinstance(d.layer, (Series, Residual, Parallel)):
        return
    start, entering = 0, x
    for k, child in enumerate(d.children):
        own = p[start : start + child.n_params]
        start += child.n_params
        yield from with_inputs(network, child, own, entering, kinds, lengths)
        if isinstance(d.layer, Series) and any(any(find(later, kinds)) for later in d.children[k + 1 :]):
            before = network.part(child.layer, child.input)
            entering = outputs(before, own, entering, lengths if child.has_time_axis else None)


def outputs(network: Network, p: np.ndarray, x: Any, lengths: Any) -> Any:
    """The outputs of a network of a part, which has no state."""
    program = executables.forward_pass(network, p, False, lengths is not None)
    call = Call(network, {"p": p, "lengths": lengths})
    call.data["x"] = x
    check_lengths(call)
    return run(call, program, {"y": ((len(x), *network.output_shape), None, "")})["y"]
