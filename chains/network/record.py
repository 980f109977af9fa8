"""From a declared network to its programs: the forward pass, the gradient, the pullback, a training step.

The caller's buffers have the same names in every program: ``p`` and ``g`` (parameters, gradient), ``x``, ``y``, ``dx``, ``dy``
(input, output and their cotangents), ``t`` and ``weights`` (targets, their weights or those of samples), ``value`` (the loss),
``state`` (the network's), ``moments`` and ``step`` (the optimiser's), ``random`` (seed and step of random numbers),
``communicator``, ``inverse_total`` and ``first_sample`` (the other processes and their samples).

Programs that train, and calls in the mode "train", update ``state``; pure ones only read it, if at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chains.activations import Activation
from chains.expr import where
from chains.jets.jet import Jet
from chains.jets.series import indices
from chains.layers.node import Node, Root, Vectors, check_filled, check_kept
from chains.layers.recurrent import mask_of
from chains.losses import Loss, SeriesLoss
from chains.network.network import Network
from chains.optimizers import Optimizer
from chains.penalties import Penalty, Selection
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.settings import Tunable
from chains.program.view import View

IDS = np.dtype(np.int64)  # the type of ids in programs
MAX_LINES = 16  # of an activation that counts as piecewise linear


def forward(network: Network, dtype: Any, training: bool, *, masked: bool = False) -> Program:
    """y = the network's output at x; while training, the state is updated."""
    ops, p, x = begin("forward", network, dtype, training, masked=masked)
    y = ops.external("y", network.declaration.output_shape, role="output", batched=True)
    unread = ops.scratch("gradient", (network.layout.size,), batched=False)
    node_with(ops, network, p, unread, updates=training).forward(ops, x, y)
    return ops.finish()


def vjp(
    network: Network, dtype: Any, training: bool, wanted: Collection[str] = ("g", "dx"), *, masked: bool = False
) -> Program:
    """g and dx = the pullback of the cotangent dy, or only the `wanted` one of them. Pure."""
    ops, p, x = begin("vjp", network, dtype, training, masked=masked)
    cotangent = ops.external("dy", network.declaration.output_shape, role="input", batched=True)
    g, dx = _gradients(ops, network, wanted)
    y, dy = (ops.scratch(name, network.declaration.output_shape) for name in ("y", "dy"))
    node = node_with(ops, network, p, g)
    node.forward(ops, x, y)
    ops.copy(dy, cotangent)  # a pullback may overwrite its cotangent
    node.pullback(ops, x, y, dy, dx)
    zero_frozen(ops, network, g)
    return ops.finish()


@dataclass(frozen=True)
class Criterion(Tunable):
    """The quantity that training minimises: the loss on targets of this sample shape, perhaps weighted, plus a penalty.

    `weights` is the sample shape of the weights, () for one a sample, or None. `masked`: whether samples have lengths.
    """

    loss: Loss
    target: tuple[int, ...]
    weights: tuple[int, ...] | None = None
    penalty: Penalty | None = None
    masked: bool = False

    def record_weights(self, ops: Recorder) -> View | None:
        """The input of weights, if there are any."""
        return None if self.weights is None else ops.external("weights", self.weights, role="input", batched=True)


def loss(network: Network, criterion: Criterion, dtype: Any, training: bool = False) -> Program:
    """value = the loss and penalty. Pure."""
    ops, p, x = begin("loss", network, dtype, training, masked=criterion.masked)
    record_gradient(ops, network, criterion, p, None, x)
    return ops.finish()


def gradient(
    network: Network,
    criterion: Criterion,
    dtype: Any,
    training: bool,
    *,
    pure: bool = False,
    wanted: Collection[str] = ("g",),
    parallel: bool = False,
) -> Program:
    """value = the loss and penalty; and the `wanted` gradients: g with respect to p, dx with respect to x.

    While training, the state is updated unless `pure`. If `parallel`, value and g are those of all processes together.
    """
    ops, p, x = begin("gradient", network, dtype, training, masked=criterion.masked, parallel=parallel)
    g, dx = _gradients(ops, network, wanted)
    record_gradient(ops, network, criterion, p, g, x, dx, updates=training and not pure)
    zero_frozen(ops, network, g)
    return ops.finish()


def training_step(
    network: Network, criterion: Criterion, optimizer: Optimizer, dtype: Any, *, parallel: bool = False
) -> Program:
    """value = the loss and penalty; then p, the state and the optimiser's moments take one step along the gradient.

    If `parallel`, the gradient is that of all processes together.
    """
    ops, p, x = begin("training step", network, dtype, True, "state", masked=criterion.masked, parallel=parallel)
    criterion, moving = ops.symbolic((criterion, optimizer))  # in the order of the numbers that a step gets
    g = record_gradient(ops, network, criterion, p, None, x, updates=True)
    with ops.label(type(optimizer).__name__):
        moving.record(ops, p, g, network.trainable)
    return ops.finish()


def begin_series(name: str, network: Network, dtype: Any, *, masked: bool = False) -> tuple[Recorder, View, View]:
    """As `begin`, for programs on series. Raises NotImplementedError for networks that have none."""
    network.declaration.check_series()
    return begin(name, network, dtype, training=False, masked=masked)


def begin(
    name: str,
    network: Network,
    dtype: Any,
    training: bool,
    role: str = "input",
    *,
    masked: bool = False,
    parallel: bool = False,
) -> tuple[Recorder, View, View]:
    ops = Recorder(name, dtype, training=training, parallel=parallel)
    lengths = ops.external("lengths", (), role="input", batched=True) if masked else None
    ops.lengths, ops.output_lengths = (lengths, None) if network.declaration.has_time_axis else (None, lengths)
    p = ops.external("p", (network.layout.size,), role=role)
    kind = None if network.id_count is None else IDS
    return ops, p, ops.external("x", network.declaration.input, role="input", batched=True, dtype=kind)


def node_of(ops: Recorder, network: Network, p: View) -> Node:
    """The network with its parameters alone."""
    return node_with(ops, network, p, ops.scratch("gradient", (network.layout.size,), batched=False))


def node_with(ops: Recorder, network: Network, p: View, g: View, *, updates: bool = False) -> Node:
    """The network with these vectors; without `updates`, the new state goes to scratch that is never read."""
    size = (network.state_layout.size,)
    state = ops.external("state", size, role="state" if updates else "input")
    new_state = state if updates else ops.scratch("new_state", size, batched=False)
    return Root(network.declaration, ops, Vectors(p, g, state, new_state, network.frozen))


def _gradients(ops: Recorder, network: Network, wanted: Collection[str]) -> tuple[View, View]:
    """The gradients with respect to p and to x. One that is not `wanted` is never read, so it is never computed."""
    size, shape = (network.layout.size,), network.declaration.input
    g = ops.external("g", size, role="output") if "g" in wanted else ops.scratch("gradient", size, batched=False)
    dx = ops.external("dx", shape, role="output", batched=True) if "dx" in wanted else ops.scratch("dx", shape)
    return g, dx


def record_gradient(
    ops: Recorder,
    network: Network,
    criterion: Criterion,
    p: View,
    g: View | None,
    x: View,
    dx: View | None = None,
    *,
    updates: bool = False,
) -> View:
    """Record the value of the criterion and its gradient, to be written to `g` or to scratch. Returns the gradient.

    If the batch is divided among processes, their sums are in one buffer, which is summed over the processes in one operation.
    A penalty, which does not depend on samples, is added afterwards.
    """
    output, size = network.declaration.output_shape, network.layout.size
    t = ops.external("t", criterion.target, role="input", batched=True)
    w = criterion.record_weights(ops)
    value = ops.external("value", (), role="output")
    y, dy = (ops.scratch(name, output) for name in ("y", "dy"))
    if ops.parallel:
        sums = ops.scratch("sums", (size + 1,), batched=False)
        own_g, own_value = sums.slice(0, 0, size), sums.index(0, size)
    else:
        own_g, own_value = ops.scratch("gradient", (size,), batched=False) if g is None else g, value
    node = node_with(ops, network, p, own_g, updates=updates)
    if dx is None:
        dx = ops.scratch("dx", network.declaration.input)  # never read, so never computed
    views = Gradient(x, y, dy, dx, t, w, own_value)
    if isinstance(criterion.loss, SeriesLoss):
        _record_residuals(ops, criterion.loss, network, node, views)
    else:
        _record_loss(ops, criterion.loss, node, views)
    if ops.parallel:
        zero_frozen(ops, network, own_g)
        ops.all_reduce(sums, sums)
        ops.copy(value, own_value)
        if g is not None:
            ops.copy(g, own_g)
            own_g = g
    _record_penalty(ops, network, ops.symbolic(criterion).penalty, (p, own_g, value))
    return own_g


def _record_penalty(ops: Recorder, network: Network, penalty: Penalty | None, views: tuple[View, View, View]) -> None:
    """Add a penalty and its gradient: `views` are p, g and the value."""
    if penalty is not None:
        with ops.label(type(penalty).__name__):
            names = frozenset(entry.name for entry in network.layout)
            penalty.record(ops, Selection(network.layout, names, network.frozen), *views)


class Gradient(NamedTuple):
    """The views that a loss and the pullback of its gradient read and fill."""

    x: View
    y: View
    dy: View
    dx: View
    t: View
    w: View | None
    value: View


def _record_loss(ops: Recorder, loss: Loss, node: Node, views: Gradient) -> None:
    x, y, dy, dx, t, w, value = views
    node.forward(ops, x, y)
    begun, function = len(ops.operations), f"{type(loss).__name__}.record"
    with ops.label(type(loss).__name__):
        loss.record(ops, *within_lengths(ops, node.declaration.output_steps, y, t, w), value, dy)
    check_filled(function, ops.operations[begun:], {"value": value, "dy": dy})
    check_kept(function, ops.operations[begun:], {"y": y}, "write to a separate one, ops.scratch(name, shape)")
    node.pullback(ops, x, y, dy, dx)


def within_lengths(ops: Recorder, steps: int, y: View, t: View, w: View | None) -> tuple[View, View, View | None]:
    """Outputs, targets and weights of a loss, for outputs of this many `steps`. Steps after a sample's length do not count.

    Their weight is 0; weights are then those of steps or of targets. Outputs of these steps might not be finite: they are
    replaced by those of the first step.
    """
    mask = mask_of(ops, ops.lengths if ops.output_lengths is None else ops.output_lengths, steps) if steps else None
    if mask is None or t.sample_shape[:1] != (steps,):
        return y, t, w
    kept, has = ops.scratch("y within lengths", y.sample_shape), mask.reshape(steps, *[1] * (y.ndim - 2))
    ops.map(kept, lambda has, y, first: where(has > 0.0, y, first), has, y, y.slice(1, 0, 1))
    if w is None:
        return kept, t, mask.index(2, 0)
    own = w if w.ndim > 1 else w.expand(1)
    weights = ops.scratch("weights within lengths", (steps, *own.sample_shape[1:]))
    ops.map(weights, lambda has, w: where(has > 0.0, w, 0.0), mask.reshape(steps, *[1] * (own.ndim - 2)), own)
    return kept, t, weights


def _record_residuals(ops: Recorder, loss: SeriesLoss, network: Network, node: Node, views: Gradient) -> None:
    x, t, w, value = views.x, views.t, views.w, views.value
    fill = partial(loss.record_series, ops, x, t=t, w=w, value=value)
    record_from_series(ops, loss, network, node, (x, views.y, views.dy, views.dx), fill)


def record_from_series(
    ops: Recorder, loss: SeriesLoss, network: Network, node: Node, views: tuple[View, View, View, View],
    fill: Callable[..., None],
) -> None:  # fmt: skip
    """Record the derivatives of the outputs by series, then `fill`, then the pullback of the cotangents of all coefficients.

    The `views` are x, y, dy and dx. `fill(rows=, adjoints=)` gets the coefficients of the outputs and their cotangents, by
    output and index.
    """
    x, y, dy, dx = views
    if network.id_count is not None:
        raise ValueError(f"{loss!r} derives the outputs with respect to the inputs, which are ids here")
    if ops.training and not network.is_stateless:
        raise ValueError(f"{loss!r} derives the outputs of one sample, which batch statistics would mix: there is no training")
    network.declaration.check_series()
    before = ops.pop_operations()
    node.forward(ops, x, y)
    jet, forward = Jet(ops, loss.orders), ops.pop_operations()
    ops.operations += before
    tangents = ops.constant("directions", loss.tangents)
    for direction in range(len(loss.orders)):
        tangent = ops.scratch(f"direction {direction}", x.sample_shape)
        ops.copy(tangent, tangents.index(0, direction))
        jet.perturb(x, (direction, 1), tangent)
    jet.record(forward)
    coefficients = {index: jet.coefficient(y, index) for index in indices(loss.orders)}
    present = {index: row for index, row in coefficients.items() if row is not None}
    zero = [power for direction, power in coefficients if (direction, power) not in present and (direction, 1) in present]
    _check_smooth(network, loss, zero)
    jet.adjoint(dy, present)
    outputs = range(len(loss.outputs))
    with ops.label("residuals"):
        rows = {(k, index): row.index(-1, k) for index, row in present.items() for k in outputs}
        adjoints = {(k, index): jet.row(dy, index).index(-1, k) for index in present for k in outputs}
        fill(rows=rows, adjoints=adjoints)
    before = ops.pop_operations()
    node.pullback(ops, x, y, dy, dx)
    pullback = ops.pop_operations()
    ops.operations += before
    jet.record(pullback)


def _check_smooth(network: Network, loss: SeriesLoss, zero: list[int]) -> None:
    """Raise ValueError if derivatives of these orders are zero because of an activation."""
    kinked = [f for each in network.declaration.all for f in vars(each.layer).values() if _is_kinked(f)]
    if zero and kinked:
        raise ValueError(
            f"{loss!r} has derivatives of order {min(zero)}, which are zero everywhere for this network, since its activation "
            f"{kinked[0]} is piecewise linear: use a smooth one, such as tanh"
        )


def _is_kinked(f: Any) -> bool:
    """Whether this is an activation that is piecewise linear, and not linear."""
    if not isinstance(f, Activation):
        return False
    x = np.linspace(-8.0, 8.0, 1001)
    with np.errstate(all="ignore"):
        slopes = np.unique(np.broadcast_to(f.slope(x, f(x)), x.shape))
    return 1 < len(slopes) <= MAX_LINES


def zero_frozen(ops: Recorder, network: Network, g: View) -> None:
    for name in sorted(network.frozen):
        entry = network.layout[name]
        ops.fill(g.slice(0, entry.start, entry.stop), 0.0)
