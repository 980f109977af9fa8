"""From a declared network to programs of its derivatives with respect to the inputs, for exported functions.

In addition to the buffers of `chains.network.record` there are ``J`` (the Jacobian), ``v`` (weights of the outputs) and ``H``
(the Hessian matrix of the sum of v times the outputs). All axes of the inputs are done in one pass (`chains.jets.directions`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chains.jets.directions import Directions
from chains.jets.jet import Jet
from chains.network.network import Network
from chains.network.record import begin_series, node_of
from chains.network.stepping import Stepping
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.simplify import live
from chains.program.view import View

FIRST = (0, 1)  # the derivative along the one direction of the series here


def jvp(network: Network, dtype: Any) -> Program:
    """dy = the derivatives of the outputs along dx, a separate direction for each sample."""
    ops, p, x = begin_series("jvp", network, dtype)
    y = ops.scratch("y", network.declaration.output_shape)
    node_of(ops, network, p).forward(ops, x, y)
    dx = ops.external("dx", x.sample_shape, role="input", batched=True)
    dy = ops.external("dy", y.sample_shape, role="output", batched=True)
    (row,) = _along(ops, {x: dx}, {y: dy})
    if row is None:
        ops.fill(dy, 0.0)
    return ops.finish()


def jacobian(network: Network, dtype: Any) -> Program:
    """J = the derivatives of each sample's outputs by its inputs, (outputs, inputs).

    They are pulled back from the outputs if there are fewer outputs than inputs.
    """
    ops, p, x = begin_series("Jacobian by inputs", network, dtype)
    y = ops.scratch("y", network.declaration.output_shape)
    inputs, outputs = math.prod(x.sample_shape), math.prod(y.sample_shape)
    out = ops.external("J", (outputs, inputs), role="output", batched=True)
    node = node_of(ops, network, p)
    node.forward(ops, x, y)
    if inputs <= outputs:
        _fill_jacobian(ops, out, [x], [y])
        return ops.finish()
    dy, dx = ops.scratch("dy", y.sample_shape), ops.scratch("dx", x.sample_shape)
    node.pullback(ops, x, y, dy, dx)
    operations = live(ops.pop_operations(), [dx.buffer])
    rows = Directions(ops, {dy.buffer: _axes(ops, dy, 0, outputs)})
    rows.record(operations)
    ops.copy(out, _matrices(rows.rows_of(dx), inputs))
    return ops.finish()


def hessian(network: Network, dtype: Any) -> Program:
    """H = the second derivatives of the sum of v times each sample's outputs, (inputs, inputs), symmetric to the bit."""
    ops, p, x = begin_series("Hessian by inputs", network, dtype)
    size = math.prod(x.sample_shape)
    v = ops.external("v", network.declaration.output_shape, role="input", batched=True)
    out = ops.external("H", (size, size), role="output", batched=True)
    y, dy = (ops.scratch(name, v.sample_shape) for name in ("y", "dy"))
    node, dx = node_of(ops, network, p), ops.scratch("dx", x.sample_shape)
    node.forward(ops, x, y)
    ops.copy(dy, v)  # a pullback may overwrite its cotangent
    node.pullback(ops, x, y, dy, dx)
    direction = ops.scratch("direction", x.sample_shape)
    (row,) = _along(ops, {x: direction}, {dx: ops.scratch("row", x.sample_shape)})
    if row is None:
        ops.fill(out, 0.0)
        return ops.finish()
    operations = live(ops.pop_operations(), [row.buffer])
    rows = Directions(ops, {direction.buffer: _axes(ops, direction, 0, size)})
    rows.record(operations)
    found = _matrices(rows.rows_of(row), size)
    ops.map(out, lambda a, b: 0.5 * (a + b), found, found.swap(-2, -1))
    return ops.finish()


def step_jacobian(stepping: Stepping, dtype: Any) -> Program:
    """J = the derivatives of one step of a sequence.

    Its rows are the outputs, then the new carried states; its columns are the inputs, then the old carried states.
    """
    ops = Recorder("Jacobian of a step", dtype)
    x, old, y, new = stepping.record_forward(ops, "scratch")
    rows, columns = (sum(math.prod(view.sample_shape) for view in views) for views in ((y, new), (x, old)))
    _fill_jacobian(ops, ops.external("J", (rows, columns), role="output", batched=True), [x, old], [y, new])
    return ops.finish()


def _fill_jacobian(ops: Recorder, out: View, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    """Replace the recorded operations by those that fill `out` with the derivatives of all outputs by all inputs."""
    columns = int(out.sample_shape[1])
    directions = {x: ops.scratch("direction", x.sample_shape) for x in inputs}
    found = _along(ops, directions, {y: ops.scratch("row", y.sample_shape) for y in outputs})
    operations = live(ops.pop_operations(), [row.buffer for row in found if row is not None])
    axes, begin = {}, 0
    for direction in directions.values():
        axes[direction.buffer] = _axes(ops, direction, begin, columns)
        begin += math.prod(direction.sample_shape)
    rows = Directions(ops, axes)
    rows.record(operations)
    begin = 0
    for y, row in zip(outputs, found, strict=True):
        size = math.prod(y.sample_shape)
        part = out.slice(1, begin, begin + size)
        begin += size
        if row is None:
            ops.fill(part, 0.0)
        else:
            ops.copy(part, _matrices(rows.rows_of(row), size).swap(-2, -1))


def _along(ops: Recorder, directions: Mapping[View, View], rows: Mapping[View, View]) -> list[View | None]:
    """Replace the recorded operations by those of series along one direction. They fill `rows`, by the outputs as keys.

    Returns the rows, None for those that are zero and not filled.
    """
    operations = live(ops.pop_operations(), [y.buffer for y in rows])
    jet = Jet(ops, (1,))
    for x, direction in directions.items():
        jet.perturb(x, FIRST, direction)
    for y, row in rows.items():
        jet.place(y, FIRST, row)
    jet.record(operations)
    return [jet.coefficient(y, FIRST) for y in rows]


def _axes(ops: Recorder, view: View, begin: int, count: int) -> View:
    """`count` directions of a sample: those from `begin` on are its axes, the others are zero."""
    size = math.prod(view.sample_shape)
    rows = np.eye(count, size, -begin)
    return ops.constant("axes", rows.reshape(count, *view.sample_shape))


def _matrices(rows: View, size: int) -> View:
    """Rows of samples as matrices: (batch, directions, size), or (directions, size) for all samples."""
    axis = int(rows.batched)
    if rows.ndim == axis + 2:
        return rows
    return rows.reshape(int(rows.shape[axis]), size)  # type: ignore[arg-type]
