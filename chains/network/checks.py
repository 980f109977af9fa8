"""Checks of samples, which need the layers and the loss: lengths of sequences, targets and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from chains.layers.base import Declaration
from chains.losses import Loss
from chains.network.network import Network
from chains.support import arguments
from chains.support.arguments import array_of, check_batch
from chains.support.arrays import as_array
from chains.support.checks import check_is
from chains.support.memory import memory_of, on_host


def is_ensemble(p: Any) -> bool:
    """Whether these are the parameters of many networks."""
    return getattr(p, "ndim", 1) == 2


def check_order(network: Network, p: Any, x: Any, call: str) -> None:
    """Raise TypeError if parameters and inputs are evidently swapped; `call` shows their order."""
    size = network.n_params

    def holds_parameters(array: Any) -> bool:
        shape: tuple[int, ...] = getattr(array, "shape", ())
        return len(shape) in (1, 2) and shape[-1] == size

    if not holds_parameters(p) and holds_parameters(x) and x.shape[1:] != network.input_shape:
        raise TypeError(f"`x` and `p` are swapped: `{call}`; a network takes `x` first, a derivative by `p` takes `p` first")


def check_params(network: Network, p: Any, x: Any, call: str) -> np.ndarray:
    """`p` as the parameters of a network. Raises TypeError or ValueError if it is not a vector, or swapped with `x`."""
    try:
        return arguments.check_params(p, network.n_params)
    except (TypeError, ValueError):
        check_order(network, p, x, call)
        raise


def check_numeric(network: Network, advice: str = "") -> None:
    """Raise TypeError for a network of ids."""
    if network.id_count is not None:
        raise TypeError(f"the inputs of this network are ids, by which nothing can be derived{advice}")


def check_loss(loss: Any) -> None:
    """Raise TypeError unless `loss` is one."""
    if not isinstance(loss, Loss):
        check_is("loss", loss, Loss, "a loss such as SquaredLoss(), or one made by chains.loss")


def with_counted_targets(declaration: Declaration, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data for checks of their numbers: each target that does not count is replaced by one that does."""
    if "weights" not in data and "lengths" not in data:
        return data
    t = counted_targets(data["t"], data.get("weights"), data.get("lengths"), declaration.output_steps)
    return {**data, "t": t}


def counted_targets(t: Any, weights: Any, lengths: Any, steps: int) -> Any:
    """The targets, with those of weight 0 and those after a sample's length replaced by one that counts.

    They are `t` itself if all count. `steps` is the number of steps of the outputs, or 0.
    """
    masks = [] if weights is None else [on_host(weights) != 0]
    if lengths is not None and steps and t.shape[1:2] == (steps,):
        masks.append(np.arange(steps) < on_host(lengths)[:, None])
    if all(mask.all() for mask in masks):
        return t
    counts = np.logical_and.reduce([*np.broadcast_arrays(*(m.reshape(*m.shape, *[1] * (t.ndim - m.ndim)) for m in masks))])
    finite = counts & np.isfinite(on_host(t))  # so that only targets that count are reported
    other = t[np.unravel_index(np.argmax(finite), finite.shape)] if finite.any() else 0
    return array_api_compat.array_namespace(t).where(memory_of(t).contiguous(counts), t, other)


def check_targets(t: Any, batch: int, output: tuple[int, ...], loss: Loss, name: str = "t", x: str = "x") -> np.ndarray:
    """`t` as targets for outputs of this shape; for one output, (batch,) means (batch, 1). Raises TypeError or ValueError.

    Their numbers are left to `check_target_values`.
    """
    t = array_of(name, t)
    check_batch(name, t, batch, x)
    if t.shape[1:] == output and type(loss).check_target is Loss.check_target:  # most targets
        return t
    if is_column(t, output, loss):
        t = t[:, None]
    try:
        loss.check_target(output, t.shape[1:])
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None
    return t


def is_column(t: Any, output: tuple[int, ...], loss: Loss) -> bool:
    """Whether targets (batch,) mean (batch, 1): for one output a sample, unless the loss takes them unchanged."""
    if output != (1,) or t.ndim != 1:
        return False
    if type(loss).check_target is Loss.check_target:  # most losses; an exception would take microseconds
        return True
    try:
        loss.check_target(output, ())
    except ValueError:
        return True
    return False


def check_target_values(t: Any, output: tuple[int, ...], loss: Loss, name: str = "t") -> None:
    """Raise ValueError if the loss is not defined for a value of targets in the right shape."""
    try:
        loss.check_values(t, output)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None


def target_check(output: tuple[int, ...], loss: Loss) -> Callable[[Any], None] | None:
    """The check of a loss's targets for repeated calls; None where it takes any numbers."""
    if type(loss).check_values is Loss.check_values:
        return None
    return partial(check_target_values, output=output, loss=loss)


def check_weights(w: Any, target: tuple[int, ...], loss: Loss, name: str = "weights", x: str = "x") -> np.ndarray:
    """`w` as one weight a sample, or one for each number of targets of this shape. Raises TypeError or ValueError."""
    w = as_array(name, w)
    if w.ndim == 1:
        check_batch(name, w, target[0], x)
        return w
    whole = loss.weighs_targets and len(target) > 1
    if whole and w.ndim == len(target) and all(n in (1, m) for n, m in zip(w.shape, target, strict=True)):
        if w.shape == target:
            return w
        return memory_of(w).contiguous(array_api_compat.array_namespace(w).broadcast_to(w, target))
    each = f", or {target}, one for each target" if whole else ""
    reason = "" if loss.weighs_targets else f", since {loss!r} weighs samples alone"
    raise ValueError(f"`{name}` must have shape ({target[0]},), one number a sample{each}, got {w.shape}{reason}")


def lengths_of(lengths: Any, x: Any, declaration: Declaration, name: str = "lengths", of: str = "x") -> dict[str, Any]:
    """The checked lengths of the samples of the argument named `of`, under the name "lengths"; empty for None.

    Raises TypeError or ValueError unless they are whole numbers from 1 to the steps of a network that has a time axis.
    """
    if lengths is None:
        return {}
    lengths = as_array(name, lengths)
    check_batch(name, lengths, len(x), of)
    steps = declaration.max_steps
    if not steps:
        reasons = [f"layer {d.name}, {d.layer!r}, {d.without_lengths}" for d in declaration.all if d.without_lengths]
        raise ValueError(f"`{name}` must be left out: {(reasons or ['no layer of this network has a time axis'])[0]}")
    if apart := next((d for d in declaration.all if d.has_other_steps), None):
        raise ValueError(f"`{name}` must be left out: layer {apart.name}, {apart.layer!r}, has other steps than the input")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise TypeError(
            f"`{name}` must have shape ({len(x)},), a whole number of steps for each sample, "
            f"got {lengths.dtype} of shape {lengths.shape}"
        )
    if lengths.min() < 1 or lengths.max() > steps:
        wrong = int(lengths.min()) if lengths.min() < 1 else int(lengths.max())
        raise ValueError(f"`{name}` must be from 1 to {steps}, the steps of a sample, but there is {wrong}")
    return {"lengths": lengths}
