"""From a declared network to programs of its derivatives, by series of the perturbed arrays (`chains.jets`).

In addition to the buffers of `chains.network.record` there are ``v`` (directions of inputs, or of parameters), ``d1``, ``d2``,
... (derivatives of the outputs) and ``hv`` (a product with the Hessian matrix).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from chains.expr import where
from chains.jets.jet import Jet
from chains.jets.per_sample import PerSample
from chains.jets.series import ZERO
from chains.jets.tangents import Tangents
from chains.losses import Loss, SeriesLoss
from chains.network.network import Network
from chains.network.record import (
    Criterion,
    begin,
    begin_series,
    node_of,
    node_with,
    record_from_series,
    record_gradient,
    within_lengths,
    zero_frozen,
)
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.simplify import live
from chains.program.view import View

FIRST = (0, 1)  # the derivative along the one direction of a series of order one
MIN_BLOCK_ROWS, MAX_BLOCKS = 16, 8  # rows of J'J that one product fills; such products


def derivatives(network: Network, directions: int, order: int, dtype: Any, *, own: bool = False) -> Program:
    """y = the outputs; d1, d2, ... = their derivatives along each direction, the last axis; v = the directions.

    All samples share the directions, shape (directions, *input), or each has `own` ones, shape (batch, directions, *input).
    """
    ops, y, jet = _outputs_along("derivatives", network, directions, order, dtype, own=own)
    output = y.sample_shape
    ops.copy(ops.external("y", output, role="output", batched=True), jet.row(y, ZERO))
    for power in range(1, order + 1):
        out = ops.external(f"d{power}", (*output, directions), role="output", batched=True)
        for direction in range(directions):
            _scaled(ops, out.index(-1, direction), jet.coefficient(y, (direction, power)), math.factorial(power))
    return ops.finish()


def laplacian(network: Network, directions: int, dtype: Any) -> Program:
    """laplacian = the sum of the second derivatives of the outputs along the directions v, (directions, *input)."""
    ops, y, jet = _outputs_along("Laplacian", network, directions, 2, dtype)
    out = ops.external("laplacian", y.sample_shape, role="output", batched=True)
    found = [jet.coefficient(y, (direction, 2)) for direction in range(directions)]
    seconds = [each for each in found if each is not None]
    if seconds:
        ops.map(out, lambda *parts: 2.0 * reduce(add, parts), *seconds)
    else:
        ops.fill(out, 0.0)
    return ops.finish()


def hessian_product(network: Network, criterion: Criterion, dtype: Any) -> Program:
    """hv = the Hessian matrix of the loss and penalty times v, a vector like p. Pure. It is zero for frozen parameters."""
    ops, p, x = begin_series("Hessian product", network, dtype, masked=criterion.masked)
    size = (network.layout.size,)
    g = ops.scratch("gradient", size, batched=False)
    record_gradient(ops, network, criterion, p, g, x)
    zero_frozen(ops, network, g)
    jet, recorded = Jet(ops, (1,)), ops.pop_operations()
    jet.perturb(p, (0, 1), _direction(ops, network))
    hv = ops.external("hv", size, role="output")
    jet.place(g, (0, 1), hv)
    jet.place(ops.external("value", (), role="output"), ZERO, ops.scratch("value", (), batched=False))
    jet.record(recorded)
    if jet.coefficient(g, (0, 1)) is None:
        ops.fill(hv, 0.0)
    return ops.finish()


def gauss_newton_product(network: Network, criterion: Criterion, dtype: Any) -> Program:
    """hv = the pullback of the Hessian matrix of the loss with respect to the outputs times their change along v. Pure."""
    ops, p, x = begin_series("Gauss-Newton product", network, dtype, masked=criterion.masked)
    size, output = (network.layout.size,), network.declaration.output_shape
    g = ops.external("hv", size, role="output")
    t = ops.external("t", criterion.target, role="input", batched=True)
    w = criterion.record_weights(ops)
    y, dy = (ops.scratch(name, output) for name in ("y", "dy"))
    node, ops.linearises = node_with(ops, network, p, g), True
    node.forward(ops, x, y)
    ops.linearises = False
    counted = within_lengths(ops, network.declaration.output_steps, y, t, w)
    criterion.loss.record(ops, *counted, ops.scratch("value", (), batched=False), dy)
    jet, recorded = Jet(ops, (1,), holds=True), ops.pop_operations()
    jet.perturb(p, (0, 1), _direction(ops, network))
    jet.record(recorded)
    _scaled(ops, dy, jet.coefficient(dy, (0, 1)), 1.0)
    node.pullback(ops, x, y, dy, ops.scratch("dx", network.declaration.input))
    zero_frozen(ops, network, g)
    return ops.finish()


def sample_gradients(network: Network, criterion: Criterion, dtype: Any) -> Program:
    """j = the gradient of each sample's own loss, (batch, n_params). Pure."""
    ops, p, x = begin("gradients of samples", network, dtype, training=False, masked=criterion.masked)
    j = ops.external("j", (network.layout.size,), role="output", batched=True)
    g = ops.scratch("gradient", (network.layout.size,), batched=False)
    record_gradient(ops, network, criterion, p, g, x)
    zero_frozen(ops, network, g)
    # Each sample is a separate batch, and the sum of their losses is not computed.
    inverse, one = ops.inverse_batch, ops.constant("one", np.ones(()))
    recorded = [operation for operation in ops.pop_operations() if all(out.buffer.name != "value" for out in operation.outs)]
    alone = [replace(each, ins=tuple(one if view == inverse else view for view in each.ins)) for each in recorded]
    PerSample(ops, {g.buffer: j}).record(alone)
    return ops.finish()


def residuals(network: Network, loss: SeriesLoss, target: tuple[int, ...], dtype: Any, *, with_jacobian: bool) -> Program:
    """r, (batch, equations), = the residuals times the roots of the weights in t; j, (batch, equations, n_params). Pure."""
    ops, p, x = begin("residuals", network, dtype, training=False)
    t = ops.external("t", target, role="input", batched=True)
    r = ops.external("r", (loss.equations,), role="output", batched=True)
    shape = (loss.equations, network.layout.size)
    j = ops.external("j", shape, role="output", batched=True) if with_jacobian else None
    _record_equations(ops, network, Points(p, x, t), loss, r, j)
    return ops.finish()


class Points(NamedTuple):
    """What the equations of points read."""

    p: View
    x: View
    t: View


def _record_equations(ops: Recorder, network: Network, points: Points, loss: SeriesLoss, r: View, j: View | None) -> None:
    """Record the equations of each point, `r` (batch, equations), and their Jacobian `j`, (batch, equations, n_params)."""
    p, x, t = points
    for number in range(loss.equations):
        before = ops.pop_operations()
        g = ops.scratch("gradient", (network.layout.size,), batched=False)
        y, dy = (ops.scratch(name, network.declaration.output_shape) for name in ("y", "dy"))
        dx = ops.scratch("dx", network.declaration.input)
        fill = partial(loss.record_equation, ops, number, x, t=t, residual=r.index(-1, number))
        record_from_series(ops, loss, network, node_with(ops, network, p, g), (x, y, dy, dx), fill)
        zero_frozen(ops, network, g)
        recorded, ops.operations = ops.pop_operations(), before
        if j is None:
            ops.operations += recorded  # its pullback is never read, and dropped
        else:
            PerSample(ops, {g.buffer: j.index(1, number)}).record(recorded)


class MatrixForm(NamedTuple):
    """The array for a symmetric matrix: its shape, and whether more than the blocks on and above the diagonal are filled."""

    shape: tuple[int, int]
    both_halves: bool = False


def sum_of_squares(
    network: Network, loss: Loss, target: tuple[int, ...], dtype: Any, matrix: MatrixForm | None, *, masked: bool = False,
    forward: bool = False,
) -> Program:  # fmt: skip
    """value = r'r / 2 for the residuals r times `factors`, (batch, residuals). With `matrix`, also g = J'r and J'J. Pure.

    J is computed by tangents if `forward`, else by pullbacks.
    """
    name = "sum of squares" if matrix is None else f"sum of squares, Jacobian {'forward' if forward else 'in reverse'}"
    ops, p, x = begin(name, network, dtype, training=False, masked=masked)
    size, output = network.layout.size, network.declaration.output_shape
    count = loss.equations if isinstance(loss, SeriesLoss) else math.prod(output)
    points = Points(p, x, ops.external("t", target, role="input", batched=True))
    factors = ops.external("factors", (count,), role="input", batched=True)
    r, j = ops.scratch("residuals", (count,)), ops.scratch("Jacobian", (count, size))
    wanted = None if matrix is None else j
    if isinstance(loss, SeriesLoss):
        raw = ops.scratch("unweighted", (count,))
        _record_equations(ops, network, points, loss, raw, wanted)
        ops.map(r, _weighed, raw, factors)
        if matrix is not None:
            ops.map(j, _weighed, j, factors.expand(-1))
    elif forward and wanted is not None:
        _record_differences_forward(ops, network, points, factors, r, wanted)
    else:
        _record_differences(ops, network, points, factors, r, wanted)
    squares = ops.scratch("squares", (count,))
    ops.map(squares, lambda r: 0.5 * r * r, r)
    ops.sum(ops.external("value", (), role="output"), squares)
    if matrix is not None:
        _record_normal_equations(ops, r, j, matrix)
    return ops.finish()


def _record_differences(ops: Recorder, network: Network, points: Points, factors: View, r: View, j: View | None) -> None:
    """Record the outputs minus the targets, times the factors, and their Jacobian."""
    p, x, t = points
    output, size = network.declaration.output_shape, network.layout.size
    count = r.sample_size
    y, dx = ops.scratch("y", output), ops.scratch("dx", network.declaration.input)
    g = ops.scratch("gradient", (size,), batched=False)
    node = node_with(ops, network, p, g)
    node.forward(ops, x, y)
    forward = list(ops.operations)
    kept = {view.buffer for operation in forward for view in operation.outs}
    ops.map(r, _difference, y.reshape(count), t.reshape(count), factors)
    for number in range(0 if j is None else count):
        recorded = ops.pop_operations()
        dy = ops.scratch("dy", output)
        if count > 1:
            ops.fill(dy, 0.0)
        ops.copy(dy.reshape(count).index(1, number), factors.index(1, number))
        node.pullback(ops, x, y, dy, dx)
        zero_frozen(ops, network, g)
        pullback, ops.operations = ops.pop_operations(), recorded
        assert j is not None
        PerSample(ops, {g.buffer: j.index(1, number)}).record(pullback)
        if number + 1 < count and any(view.buffer in kept for operation in pullback for view in operation.outs):
            ops.operations += forward  # this pullback has overwritten arrays of the forward pass


def _record_differences_forward(ops: Recorder, network: Network, points: Points, factors: View, r: View, j: View) -> None:
    """As `_record_differences`, by tangents."""
    p, x, t = points
    y = ops.scratch("y", network.declaration.output_shape)
    _record_tangents(ops, network, p, x, y, j)
    ops.map(r, _difference, y.reshape(r.sample_size), t.reshape(r.sample_size), factors)
    ops.map(j, _weighed, j, factors.expand(-1))


def _difference(y: Any, t: Any, factor: Any) -> Any:
    return where(factor == 0.0, 0.0, (y - t) * factor)


def _record_normal_equations(ops: Recorder, r: View, j: View, form: MatrixForm) -> None:
    """Record g = J'r, and J'J in blocks of rows. Blocks below the diagonal are copies."""
    count, size = r.sample_size, int(j.shape[-1])  # type: ignore[arg-type]
    by_residual = j.rows
    ops.matmul(ops.external("g", (size,), role="output").expand(0), r.reshape(count, 1).rows.T, by_residual)
    matrix = ops.external("matrix", form.shape, role="output")
    rows = max(MIN_BLOCK_ROWS, -(-size // (8 * MAX_BLOCKS)) * 8)  # whole vectors
    for start in range(0, size, rows):
        stop = min(size, start + rows)
        block = matrix.slice(0, start, stop)
        ops.matmul(block.slice(1, start, size), by_residual.slice(1, start, stop).T, by_residual.slice(1, start, size))
        if form.both_halves and stop < size:
            ops.copy(matrix.slice(0, stop, size).slice(1, start, stop), block.slice(1, stop, size).T)


def _weighed(x: Any, factor: Any) -> Any:
    return where(factor == 0.0, 0.0, x * factor)


def jacobian(network: Network, cotangents: int, dtype: Any, *, masked: bool = False) -> Program:
    """j = each sample's pullback of each row of dy, (cotangents, *output): (batch, cotangents, n_params)."""
    ops, p, x = begin("Jacobian", network, dtype, training=False, masked=masked)
    j = ops.external("j", (cotangents, network.layout.size), role="output", batched=True)
    g = ops.scratch("gradient", (network.layout.size,), batched=False)
    for number, (pullback, _) in enumerate(_pullbacks(ops, network, p, g, x, cotangents)):
        PerSample(ops, {g.buffer: j.index(1, number)}).record(pullback)
    return ops.finish()


def forward_jacobian(network: Network, dtype: Any, *, masked: bool = False) -> Program:
    """y = the outputs; j = their derivatives by the parameters for each sample, (batch, outputs, n_params), by tangents."""
    ops, p, x = begin_series("Jacobian, forward", network, dtype, masked=masked)
    output = network.declaration.output_shape
    j = ops.external("j", (math.prod(output), network.layout.size), role="output", batched=True)
    y = ops.scratch("y", output)
    _record_tangents(ops, network, p, x, y, j)
    ops.copy(ops.external("y", output, role="output", batched=True), y)
    return ops.finish()


def _record_tangents(ops: Recorder, network: Network, p: View, x: View, y: View, j: View) -> None:
    """Record the outputs `y` and their derivatives by the parameters, `j`, (batch, outputs, n_params).

    The derivatives of a solution that has failed are NaN.
    """
    before, ops.linearises = ops.pop_operations(), True
    node_of(ops, network, p).forward(ops, x, y)
    forward, ops.linearises = live(ops.pop_operations(), [y.buffer]), False
    jet, direction = Jet(ops, (1,), holds=True), ops.scratch("direction", p.sample_shape, batched=False)
    jet.perturb(p, FIRST, direction)
    jet.record(forward)
    slope, trained = jet.coefficient(y, FIRST), network.trainable
    tangents = Tangents(ops, direction, trained)
    operations = live(ops.pop_operations(), [y.buffer, *(() if slope is None else (slope.buffer,))])
    tangents.record(operations)
    if slope is None or not tangents.lanes:
        ops.fill(j, 0.0)
    else:
        _place_lanes(ops, tangents.lanes_of(slope), trained, j)
    ops.operations[:0] = before
    if network.may_fail:
        failed, each = ops.scratch("failed", (1,)), ops.scratch("failed outputs", (y.sample_size,))
        ops.map(each, lambda y: where(y == y, 0.0, math.nan), y.reshape(y.sample_size))
        ops.sum(failed, each)
        ops.map(j, lambda j, failed: where(failed == 0.0, j, math.nan), j, failed.expand(-1))


def _place_lanes(ops: Recorder, rows: View, trained: Sequence[tuple[int, int]], j: View) -> None:
    """Record the copies of lanes to the columns of the trained parameters; the others are zero."""
    rows = rows.reshape(j.sample_shape[0], rows.sample_shape[-1])
    if rows.sample_shape[-1] < j.sample_shape[-1]:
        ops.fill(j, 0.0)
    lane = 0
    for start, stop in trained:
        ops.copy(j.slice(-1, start, stop), rows.slice(-1, lane, lane + stop - start))
        lane += stop - start


def input_jacobian(network: Network, cotangents: int, dtype: Any) -> Program:
    """dx = the pullback of each row of dy, (cotangents, *output), to the inputs: (batch, cotangents, *input)."""
    ops, p, x = begin("input Jacobian", network, dtype, training=False)
    out = ops.external("dx", (cotangents, *network.declaration.input), role="output", batched=True)
    unread = ops.scratch("gradient", (network.layout.size,), batched=False)
    for number, (pullback, dx) in enumerate(_pullbacks(ops, network, p, unread, x, cotangents)):
        ops.operations += pullback
        ops.copy(out.index(1, number), dx)
    return ops.finish()


def _pullbacks(ops: Recorder, network: Network, p: View, g: View, x: View, cotangents: int) -> Iterator[tuple[list[Any], View]]:
    """The pullback of each row of the input dy, and its dx; the forward pass is recorded if it is needed."""
    output = network.declaration.output_shape
    given = ops.external("dy", (cotangents, *output), role="input")
    y, dx = ops.scratch("y", output), ops.scratch("dx", network.declaration.input)
    node = node_with(ops, network, p, g)
    node.forward(ops, x, y)
    forward = list(ops.operations)
    kept = {view.buffer for operation in forward for view in operation.outs}
    for number in range(cotangents):
        recorded = ops.pop_operations()
        dy = ops.scratch("dy", output)
        ops.copy(dy, given.index(0, number))
        node.pullback(ops, x, y, dy, dx)
        zero_frozen(ops, network, g)
        pullback, ops.operations = ops.pop_operations(), recorded
        yield pullback, dx
        if number + 1 < cotangents and any(view.buffer in kept for operation in pullback for view in operation.outs):
            ops.operations += forward  # this pullback has overwritten arrays of the forward pass


def _outputs_along(
    name: str, network: Network, directions: int, order: int, dtype: Any, *, own: bool = False
) -> tuple[Recorder, View, Jet]:
    """The forward pass for series along the rows of the input v, and its outputs."""
    ops, p, x = begin_series(name, network, dtype)
    v = ops.external("v", (directions, *network.declaration.input), role="input", batched=own)
    y = ops.scratch("y", network.declaration.output_shape)
    node_with(ops, network, p, ops.scratch("gradient", (network.layout.size,), batched=False)).forward(ops, x, y)
    jet, recorded = Jet(ops, (order,) * directions), ops.pop_operations()
    for direction in range(directions):
        tangent = ops.scratch(f"direction {direction}", network.declaration.input)
        ops.copy(tangent, v.index(1 if own else 0, direction))
        jet.perturb(x, (direction, 1), tangent)
    jet.record(recorded)
    return ops, y, jet


def _direction(ops: Recorder, network: Network) -> View:
    """The input v, a vector like p, with zeros for frozen parameters."""
    v = ops.external("v", (network.layout.size,), role="input")
    direction = ops.scratch("direction", (network.layout.size,), batched=False)
    ops.copy(direction, v)
    zero_frozen(ops, network, direction)
    return direction


def _scaled(ops: Recorder, out: View, coefficient: View | None, factor: float) -> None:
    if coefficient is None:
        ops.fill(out, 0.0)
    else:
        ops.map(out, lambda c: factor * c, coefficient)
