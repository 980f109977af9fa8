"""The reasons why a layer's solutions end early or are not found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains.layers.base import Declaration, Layer
from chains.layers.ode import ODE
from chains.layers.steady import SteadyState
from chains.network import inner_layers
from chains.network.call import Call
from chains.network.network import Network
from chains.network.ode_steps import trajectories
from chains.support.memory import is_elsewhere


def check_solved(call: Call, results: np.ndarray) -> None:
    """Raise FloatingPointError if results of a call are NaN because of a solution that ends early or is not found."""
    network, lengths = call.network, call.lengths
    if is_elsewhere(results) or not np.isnan(results).any():
        return
    kinds = tuple(REASONS)
    solvers, followed = list(inner_layers.find(network.declaration, kinds)), []
    try:
        for d, own, x_d in inner_layers.with_inputs(network, network.declaration, call.p, call.data["x"], kinds, lengths):
            reason = next(REASONS[kind] for kind in type(d.layer).__mro__ if kind in REASONS)
            if problem := reason(network, d, own, x_d, lengths):
                raise FloatingPointError(problem if len(solvers) == 1 else f"layer {d.name}: {problem}")
            followed.append(d)
    except (TypeError, ValueError):  # a layer before it needs a state
        pass
    for d in solvers:
        if d not in followed:
            raise FloatingPointError(
                f"the result is NaN: a solution of layer {d.name}, {d.layer!r}, ended before its last time or was not found, "
                "or its input was not finite; a network of that layer alone shows the reason"
            )


def _early_end(network: Network, d: Declaration, p: np.ndarray, x: Any, lengths: Any) -> str:
    """Why the first trajectory of a batch that ends early does so; empty if all reach their last times."""
    return next((each.problem for each in trajectories(network, d, p, x, lengths) if each.problem), "")


def _not_found(network: Network, d: Declaration, p: np.ndarray, x: Any, lengths: Any) -> str:
    """How many steady states of a batch were not found, with advice; empty if all were."""
    layer, x = d.layer, np.asarray(x)
    assert isinstance(layer, SteadyState)
    failed = np.isnan(inner_layers.outputs(network.part(layer, d.input), p, x, None)).any(1)
    if not failed.any():
        return ""
    first = int(np.argmax(failed))
    which = f"the steady state of sample {first} was not found, and {int(failed.sum())} of {len(failed)} in all were not"
    if not np.isfinite(p).all() or not np.isfinite(x[first]).all():
        return f"{which}: {'its input is' if np.isfinite(p).all() else 'the parameters are'} not finite"
    return (
        f"{which}: method={layer.method!r} did not converge within max_steps (={layer.max_steps}) from `guess` "
        f"(={layer.guess!r}). Another guess may be nearer, the tolerances rtol and atol larger, or there is no such state"
    )


REASONS: dict[type[Layer], Callable[..., str]] = {ODE: _early_end, SteadyState: _not_found}
