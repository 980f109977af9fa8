"""Ensembles: many networks of one structure. Each row of an array (members, n_params) is the parameter vector of a member.

The results of a member have the bits that it would have alone. Data are shared by all members, or separate for each, along a
first axis: (members, batch, ...).
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from chains.layers.base import Declaration
from chains.losses import Loss
from chains.network import checks
from chains.network.call import Call
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.memory import memory_of, on_host
from chains.support.messages import counted


def check_members(p: Any, size: int, *, trained: bool = False) -> np.ndarray:
    """`p` as rows of `size` parameters, which are updated in place if `trained`. Raises TypeError or ValueError."""
    p = as_array("p", p)
    if p.shape[1] != size or not len(p):
        hint = "; members are rows: np.ascontiguousarray(p.T)" if len(p) == size else ""
        raise ValueError(
            f"`p` must have shape ({size},), a vector of {counted(size, 'parameter')} of this network, or (members, {size}), "
            f"one for each of many networks, got {p.shape}{hint}"
        )
    if not p.flags.c_contiguous:
        raise ValueError("`p` must be contiguous, got a strided view; try np.ascontiguousarray(p)")
    if trained:
        arguments.check_trained(p.reshape(-1))
    else:
        arguments.check_params(p.reshape(-1), p.size)
    return p


class Members:
    """Arrays of an ensemble: the members share an array, or each has its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.samples = 0  # of a member
        self.arrays: dict[str, Any] = {}
        self.own: set[str] = set()  # the names of those with the members' axis

    def add(self, name: str, array: Any, own: bool) -> None:
        """Keep an array by name. Raises ValueError if each member should have its `own`, and the number of rows differs."""
        if own and len(array) != self.count:
            raise ValueError(f"`{name}` has shape {array.shape}: its first axis is the members', of which `p` has {self.count}")
        self.arrays[name] = array
        if own:
            self.own.add(name)

    def with_counted_targets(self, declaration: Declaration) -> dict[str, Any]:
        """The arrays for checks of their numbers, as `checks.with_counted_targets`; a target counts if it does for a member."""
        t = self.arrays["t"]
        flat: dict[str, Any] = {name: self._along_targets(name) for name in ("t", "weights", "lengths") if name in self.arrays}
        return {**self.arrays, "t": checks.with_counted_targets(declaration, flat)["t"].reshape(t.shape)}

    def _along_targets(self, name: str) -> Any:
        """An array with the first axis of the targets: the samples, or those of all members in one batch."""
        array, own = self.arrays[name], "t" in self.own
        if own and name not in self.own:
            array = np.broadcast_to(on_host(array), (self.count, *array.shape))
        elif name in self.own and not own:
            return (on_host(array) != 0).any(axis=0)
        return array.reshape(-1, *array.shape[2:]) if own else array

    def of(self, member: int) -> dict[str, Any]:
        """The arrays of one member."""
        return {name: array[member] if name in self.own else array for name, array in self.arrays.items()}


def check_data(call: Call, members: Members) -> Members:
    """The members with their data. Raises TypeError or ValueError if they do not fit.

    Members with separate inputs have separate targets. With shared inputs, targets may be shared or separate, and so may
    weights: those of shape (members, samples) are separate.
    """
    network, loss, count = call.network, call.loss, members.count
    samples = add_inputs(members, call)
    checks.check_loss(loss)
    t, output = as_array("t", call.t), network.output_shape
    own = "x" in members.own or (t.shape[:2] == (count, samples) and not fits(t, samples, output, loss))
    flat = _flat("t", t, members, f" by `x` of shape {members.arrays['x'].shape}") if own else t
    checked = checks.check_targets(flat, count * samples if own else samples, output, loss)
    members.add("t", checked.reshape(count, samples, *checked.shape[1:]) if own else checked, own)
    if call.weights is not None:
        _add_weights(members, as_array("weights", call.weights), checked.shape[1:], loss)
    if (check := checks.target_check(output, loss)) is not None:
        check(members.with_counted_targets(network.declaration)["t"].reshape(checked.shape))
    return members


def _add_weights(members: Members, weights: Any, target: tuple[int, ...], loss: Loss) -> None:
    """Add the weights: (members, samples) or (samples,), and those with further axes for each target."""
    count, samples = members.count, members.samples
    own = weights.ndim == len(target) + 2
    if weights.ndim == 2 and not own:
        fits = len(target) == 1 and all(n in (1, m) for n, m in zip(weights.shape, (samples, *target), strict=True))
        own = weights.shape == (count, samples) or not fits
    if own:
        if len(weights) != count:
            raise ValueError(f"`weights` must have shape ({count}, {samples}, ...), a row a member, got {weights.shape}")
        one = checks.check_weights(weights[0], (samples, *target), loss, "weights[0]")
        whole = array_api_compat.array_namespace(weights).broadcast_to(weights, (count, *one.shape))
        members.add("weights", memory_of(weights).contiguous(whole), True)
    else:
        members.add("weights", checks.check_weights(weights, (samples, *target), loss), False)


def add_inputs(members: Members, call: Call) -> int:
    """Add the inputs, and the lengths of sequences. Returns the number of samples of a member."""
    network, lengths = call.network, call.lengths
    x, shape, ids = as_array("x", call.x), network.input_shape, network.id_count
    own = x.ndim == len(shape) + 2 and x.shape[2:] == shape
    if own:
        members.samples = x.shape[1]
        arguments.check_input(_flat("x", x, members), shape, ids=ids)
    else:
        x = arguments.check_input(x, shape, ids=ids)
        members.samples = len(x)
    samples = members.samples
    members.add("x", x, own)
    if lengths is not None:
        lengths = as_array("lengths", lengths)
        flat = _flat("lengths", lengths, members) if lengths.ndim == 2 else lengths
        checks.lengths_of(flat, np.broadcast_to(np.empty(()), flat.shape[:1]), network.declaration)
        if len(flat) != samples * (members.count if lengths.ndim == 2 else 1):
            raise ValueError(f"`lengths` has shape {lengths.shape}, but `x` is a batch of {samples}")
        members.add("lengths", lengths, lengths.ndim == 2)
    return samples


def add_state(call: Call, members: Members, *, updated: bool) -> None:
    """Add the members' states, shape (members, n_state), if any; they are read, or `updated` in place."""
    if call.state is None:
        return
    state, size = as_array("state", call.state), call.network.n_state
    shape = (members.count, size)
    if state.shape != shape:
        raise ValueError(f"`state` must have shape {shape}, a state for each member, got {state.shape}")
    for row in state:
        arguments.check_state(row, size, call.dtype, updated, members.arrays | {"p": call.p})
    members.add("state", state, True)


def _flat(name: str, array: Any, members: Members, given: str = "") -> Any:
    """The samples of all members in one batch. Raises ValueError unless they are the members' samples, as `given`."""
    count, samples = members.count, members.samples
    if array.shape[:2] != (count, samples):
        raise ValueError(
            f"`{name}` must have shape ({count}, {samples}, ...), {counted(samples, 'sample')} for each of "
            f"{counted(count, 'member')}{given}, got {array.shape}"
        )
    return array.reshape(count * samples, *array.shape[2:])


def fits(t: Any, samples: int, output: tuple[int, ...], loss: Loss) -> bool:
    """Whether these can be targets that all members share."""
    try:
        checks.check_targets(t, samples, output, loss)
    except (TypeError, ValueError):
        return False
    return True
