"""Ensembles: many networks of one structure. Each row of an array (members, n_params) is the parameter vector of a member.

The results of a member have the bits that it would have alone. Data are shared by all members, or separate for each, along a
first axis: (members, batch, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import array_api_compat
import numpy as np

from chains.layers.base import Declaration
from chains.losses import Loss
from chains.network import checks, executables
from chains.network.network import Network
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.memory import memory_of, on_host
from chains.support.messages import counted
from chains.support.streams import member_seeds


def is_ensemble(p: Any) -> bool:
    """Whether these are the parameters of many networks."""
    return getattr(p, "ndim", 1) == 2


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


def call(
    network: Network, one: Callable[..., np.ndarray], x: Any, p: Any, lengths: Any, state: Any, mode: str, seed: int, out: Any
) -> np.ndarray:
    """The outputs of all members, shape (members, batch, *output_shape); `one` computes those of a member."""
    p = check_members(p, network.n_params)
    members = Members(len(p))
    shape = (len(p), _add_inputs(members, network, x, lengths), *network.output_shape)
    y = _checked(members, network, p, state, mode, out, shape)
    for member, own in enumerate(_seeds(network, p, mode, seed)):
        data = members.of(member)
        with _named(member):
            one(network, data["x"], p[member], data.get("lengths"), data.get("state"), mode, own, y[member])
    return y


def value_and_grad(
    network: Network, one: Callable[..., Any], p: Any, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any, state: Any,
    mode: str, seed: int, out: Any, check_finite: bool,
) -> tuple[Any, np.ndarray]:  # fmt: skip
    """The losses of all members, shape (members,), float64, and their gradients; `one` computes those of a member."""
    p = check_members(p, network.n_params)
    members = check_data(network, len(p), x, t, loss, weights, lengths)
    if check_finite:
        arguments.check_finite(p.dtype, p=p, **members.with_counted_targets(network.declaration))
    g, values = _checked(members, network, p, state, mode, out, p.shape), np.empty(len(p))
    absent = dict.fromkeys(("weights", "lengths", "state"))
    for member, own in enumerate(_seeds(network, p, mode, seed)):
        data = {**absent, **members.of(member)}
        with _named(member):
            values[member], _ = one(p=p[member], **data, seed=own, out=g[member], check_finite=False)
    return values, g


def _seeds(network: Network, p: Any, mode: str, seed: int) -> list[int]:
    """The seeds of the members; the given one for all where no random numbers are drawn, since calls with 0 are the fastest."""
    training = arguments.check_mode(mode)
    draws = training and "random" in executables.forward_pass(network, p[0], training).program.buffers
    return member_seeds(len(p), seed) if draws else [seed] * len(p)


def _checked(members: Members, network: Network, p: Any, state: Any, mode: str, out: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The array to fill with results of all members. Adds their states."""
    add_state(members, network, state, p, arguments.check_mode(mode))
    arguments.to_device_of(p, members.arrays, move=False)
    if out is None:
        return memory_of(p).empty(shape, p.dtype)
    return arguments.check_out(out, shape, p.dtype, members.arrays | {"p": p})


@contextmanager
def _named(member: int) -> Iterator[None]:
    """A context: errors about numbers name the member."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"member {member}: {error}") from None


def check_data(network: Network, count: int, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any) -> Members:
    """The data of the members. Raises TypeError or ValueError if they do not fit.

    Members with separate inputs have separate targets. With shared inputs, targets may be shared or separate, and so may
    weights: those of shape (members, samples) are separate.
    """
    members = Members(count)
    samples = _add_inputs(members, network, x, lengths)
    checks.check_loss(loss)
    t, output = as_array("t", t), network.output_shape
    own = "x" in members.own or (t.shape[:2] == (count, samples) and not fits(t, samples, output, loss))
    flat = _flat("t", t, count, samples, f" by `x` of shape {members.arrays['x'].shape}") if own else t
    checked = checks.check_targets(flat, count * samples if own else samples, output, loss)
    members.add("t", checked.reshape(count, samples, *checked.shape[1:]) if own else checked, own)
    if weights is not None:
        _add_weights(members, as_array("weights", weights), checked.shape[1:], loss)
    if type(loss).check_values is not Loss.check_values:
        counted = members.with_counted_targets(network.declaration)["t"]
        checks.check_target_values(counted.reshape(checked.shape), output, loss)
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


def _add_inputs(members: Members, network: Network, x: Any, lengths: Any) -> int:
    """Add the inputs, and the lengths of sequences. Returns the number of samples of a member."""
    x, shape, ids = as_array("x", x), network.input_shape, network.id_count
    own = x.ndim == len(shape) + 2 and x.shape[2:] == shape
    if own:
        samples = x.shape[1]
        arguments.check_input(_flat("x", x, members.count, samples), shape, ids=ids)
    else:
        x = arguments.check_input(x, shape, ids=ids)
        samples = len(x)
    members.samples = samples
    members.add("x", x, own)
    if lengths is not None:
        lengths = as_array("lengths", lengths)
        flat = _flat("lengths", lengths, members.count, samples) if lengths.ndim == 2 else lengths
        checks.lengths_of(flat, np.broadcast_to(np.empty(()), flat.shape[:1]), network.declaration)
        if len(flat) != samples * (members.count if lengths.ndim == 2 else 1):
            raise ValueError(f"`lengths` has shape {lengths.shape}, but `x` is a batch of {samples}")
        members.add("lengths", lengths, lengths.ndim == 2)
    return samples


def add_state(members: Members, network: Network, state: Any, p: Any, updated: bool) -> None:
    """Add the members' states, shape (members, n_state), if any; they are read, or `updated` in place."""
    if state is None:
        return
    state = as_array("state", state)
    shape = (members.count, network.state_layout.size)
    if state.shape != shape:
        raise ValueError(f"`state` must have shape {shape}, a state for each member, got {state.shape}")
    for row in state:
        arguments.check_state(row, network.state_layout.size, p.dtype, updated, members.arrays | {"p": p})
    members.add("state", state, True)


def _flat(name: str, array: Any, count: int, samples: int, given: str = "") -> Any:
    """The samples of all members in one batch. Raises ValueError unless they are `samples`, as `given`."""
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
