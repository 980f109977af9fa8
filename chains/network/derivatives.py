"""Derivatives beyond the gradient; see the methods of `Chain`.

The programs are recorded by `chains.network.record_derivatives`. All calls are in the mode "eval": dropout is off, and batch
normalisation uses its running statistics. At a kink, such as relu's at 0, the slope is that of the activation's own derivative.

Derivatives along a direction are the coefficients of a series. Mixed second derivatives come from those along sums of inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import calls, checks, executables, jacobian_direction, record, record_derivatives
from chains.network.call import (
    Call,
    Method,
    add_shortcut,
    check_lengths,
    check_point,
    check_problem,
    door,
    run,
    state_of,
    vector,
)
from chains.program.program import Program
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.checks import check_flags
from chains.support.memory import memory_of
from chains.support.messages import shown

MAX_ORDER = 4
DIRECTIONS_AT_ONCE = 16  # the most directions, or cotangents, in one program; more take several calls


# By the inputs


@door(Method("derivatives", "net.derivatives(p, x)", "p x order directions full state out"))
def derivatives(call: Call) -> tuple[np.ndarray, ...]:
    """The outputs and their derivatives with respect to the inputs, order by order."""
    order, full, directions = call.order, call.full, call.directions
    if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= MAX_ORDER:
        raise ValueError(f"`order` (={shown(order)}) must be a whole number from 1 to {MAX_ORDER}")
    check_flags(full=full)
    if full and (order != 2 or directions is not None):
        raise ValueError(f"`full` is for order 2 (got {order}) and for the inputs, without `directions`")
    _check_point(call, real=True)
    inputs, output = call.network.input_shape, _output(call)
    vectors = _axes(inputs, call.dtype, full) if directions is None else _directions(call)
    count, separate = vectors.shape[-1 - len(inputs)], vectors.ndim > 1 + len(inputs)
    along = inputs if directions is None else (count,)
    shapes = [output] + [(*output, *along)] * order
    if full:
        shapes[2] = (*shapes[1], *inputs)
    results = _outs(call, shapes, v=vectors)
    if not full and count <= DIRECTIONS_AT_ONCE:
        _along(call, vectors, separate, [results[0], *(each.reshape(*output, -1) for each in results[1:])])
        return tuple(results)
    first, *others = _in_parts(call, vectors, separate, results[0])
    size = math.prod(inputs)
    results[1][...] = (first[..., :size] if full else first).reshape(results[1].shape)
    for target, each in zip(results[2:], others, strict=True):
        target[...] = (_matrix(each, size) if full else each).reshape(target.shape)
    return tuple(results)


@door(Method("laplacian", "net.laplacian(p, x)", "p x state out"))
def laplacian(call: Call) -> np.ndarray:
    """The sum of the second derivatives by each input."""
    _check_point(call, real=True)
    network, size = call.network, math.prod(call.network.input_shape)
    (total,) = _outs(call, [_output(call)])
    axes = _axes(network.input_shape, call.dtype, False)
    part = total if size <= DIRECTIONS_AT_ONCE else call.memory.empty(total.shape, call.dtype)
    for start in range(0, size, DIRECTIONS_AT_ONCE):
        v = axes[start : start + DIRECTIONS_AT_ONCE]
        make = partial(record_derivatives.laplacian, network, len(v), call.dtype)
        _run(call, network.program(call.p, ("laplacian", call.dtype, len(v)), make), {"laplacian": part}, v=v)
        if part is not total:
            total[...] = part if start == 0 else total + part
    return total


@door(Method("input_jacobian", "net.input_jacobian(p, x)", "p x state out"))
def input_jacobian(call: Call) -> np.ndarray:
    """The derivatives of the outputs with respect to the inputs, in the cheaper direction."""
    _check_point(call, real=True)
    shape, output = call.network.input_shape, _output(call)
    inputs, outputs = math.prod(shape), math.prod(call.network.output_shape)
    if inputs > outputs or inputs > DIRECTIONS_AT_ONCE:
        return _pulled(call, "dx", record_derivatives.input_jacobian, shape)
    call.out = None if call.out is None else (call.memory.empty(output, call.dtype), call.out)
    y, result = _outs(call, [output, (*output, *shape)])
    _along(call, _axes(shape, call.dtype, False), False, [y, result.reshape(*output, -1)])
    return result


def _axes(shape: tuple[int, ...], dtype: Any, diagonals: bool) -> np.ndarray:
    """The directions of inputs of this shape; with `diagonals`, also the sums of each two of them."""
    size = math.prod(shape)
    axes = np.eye(size, dtype=dtype)
    if diagonals:
        sums = [axes[i] + axes[j] for i, j in itertools.combinations(range(size), 2)]
        axes = np.concatenate([axes, np.array(sums, dtype).reshape(len(sums), size)])
    return axes.reshape(-1, *shape)


def _directions(call: Call) -> np.ndarray:
    """The user's directions in the type of the parameters."""
    shape, batch = call.network.input_shape, len(call.data["x"])
    v = as_array("directions", call.directions)
    shared, separate = v.ndim == 1 + len(shape), v.ndim == 2 + len(shape) and len(v) == batch
    if v.shape[v.ndim - len(shape) :] != shape or not (shared or separate):
        text = ", ".join(map(str, shape))
        raise ValueError(
            f"`directions` has shape {v.shape}: wanted (directions, {text}), or ({batch}, directions, {text}) for "
            "separate directions at each point"
        )
    return call.memory.contiguous(v, call.dtype)


def _in_parts(call: Call, vectors: Any, separate: bool, y: np.ndarray) -> list[np.ndarray]:
    """Fill `y`; the derivatives of each order, (batch, *output_shape, directions), some directions at a time."""
    count, empty = vectors.shape[1 if separate else 0], call.memory.empty
    whole = [empty((*y.shape, count), call.dtype) for _ in range(call.order)]
    if count <= DIRECTIONS_AT_ONCE:
        _along(call, vectors, separate, [y, *whole])
        return whole
    for start in range(0, count, DIRECTIONS_AT_ONCE):
        part = slice(start, min(count, start + DIRECTIONS_AT_ONCE))
        some = [empty((*y.shape, part.stop - start), call.dtype) for _ in range(call.order)]
        _along(call, vectors[:, part] if separate else vectors[part], separate, [y, *some])
        for each, found in zip(whole, some, strict=True):
            each[..., part] = found
    return whole


def _along(call: Call, v: Any, separate: bool, results: Sequence[np.ndarray]) -> None:
    """Fill the outputs and their derivatives along few directions; each point may have `separate` ones."""
    count, order = results[1].shape[-1], len(results) - 1
    make = partial(record_derivatives.derivatives, call.network, count, order, call.dtype, own=separate)
    program = call.network.program(call.p, ("derivatives", call.dtype, count, order, separate), make)
    names = ["y", *(f"d{power}" for power in range(1, order + 1))]
    _run(call, program, dict(zip(names, results, strict=True)), v=v)


def _matrix(second: np.ndarray, size: int) -> np.ndarray:
    """The matrices of second derivatives, from those along the inputs and along sums of two inputs."""
    result = memory_of(second).empty((*second.shape[:-1], size, size), second.dtype)
    diagonal = second[..., :size]
    for i in range(size):
        result[..., i, i] = diagonal[..., i]
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2), size):
        # The second derivative along the sum is those by i and by j, plus twice the mixed one.
        result[..., i, j] = result[..., j, i] = 0.5 * (second[..., number] - diagonal[..., i] - diagonal[..., j])
    return result


# By the parameters


@door(Method("jacobian", "net.jacobian(p, x)", "p x lengths direction state out"))
def jacobian(call: Call) -> np.ndarray:
    """The derivatives of each sample's outputs with respect to the parameters, in the cheaper direction or in the given one."""
    _check_point(call)
    if jacobian_direction.chosen(call.network, len(call.data["x"]), call.direction) == jacobian_direction.FORWARD:
        try:
            return _pushed(call)[1]
        except NotImplementedError:  # an operation without a rule for tangents
            call.network.lacks_tangents = True
            if call.direction == jacobian_direction.FORWARD:
                raise
    make = partial(record_derivatives.jacobian, masked=call.lengths is not None)
    try:
        return _pulled(call, "j", make, (call.network.n_params,))
    except NotImplementedError:  # layers without a rule for single samples: a pullback for each sample and output
        return _sample_by_sample(call)


def outputs_and_jacobian(call: Call) -> tuple[np.ndarray, np.ndarray] | None:
    """The outputs and their Jacobian, from one pass, for a call like those of `jacobian`; None where it is not done forward."""
    _check_point(call)
    if jacobian_direction.cheaper(call.network, len(call.data["x"])) == jacobian_direction.REVERSE:
        return None
    try:
        return _pushed(call)
    except NotImplementedError:
        call.network.lacks_tangents = True
        return None


def _pushed(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """The outputs, and tangents of all parameters."""
    network, shape, masked = call.network, (*_output(call), call.network.n_params), "lengths" in call.data
    make = partial(record_derivatives.forward_jacobian, network, call.dtype, masked=masked)
    program = network.program(call.p, ("Jacobian, forward", call.dtype, masked), make)
    (result,) = _outs(call, [shape])
    y = call.memory.empty(shape[:-1], call.dtype)
    j = result.reshape(len(result), math.prod(network.output_shape), network.n_params)
    _run(call, program, {"y": y, "j": j})
    return y, result


def _sample_by_sample(call: Call) -> np.ndarray:
    network, data, outputs = call.network, call.data, math.prod(call.network.output_shape)
    (result,) = _outs(call, [(*_output(call), network.n_params)])
    rows = result.reshape(len(data["x"]), outputs, network.n_params)
    eye = np.eye(outputs, dtype=call.dtype).reshape(outputs, 1, *network.output_shape)
    for sample, output in itertools.product(range(len(rows)), range(outputs)):
        one = {"lengths": None} | {name: array[sample : sample + 1] for name, array in data.items()}
        given = {"p": call.p, **one, "dy": eye[output], "state": call.state, "mode": "eval", "seed": 0, "out": None}
        rows[sample, output] = calls.vjp(network, **given)[0]
    return result


def _product(call: Call, make: Callable[..., Program]) -> np.ndarray:
    """The product of a matrix of the loss with the vector `v`."""
    assert call.method is not None
    check_problem(call)
    program = executables.of_criterion(call, call.method.name, make)
    call.data = {**arguments.to_device_of(call.p, call.data), "v": vector(call)}
    (result,) = _outs(call, [call.p.shape])
    _run(call, program, {"hv": result})
    add_shortcut(call, program)
    return result


def _of_product(name: str, takes: str) -> Method:
    return Method(name, f"net.{name}(p, x, t, loss, v)", takes, "p x t v", ("hv",), plain="weights lengths state")


@door(_of_product("hvp", "p x t loss v weights lengths penalty state out"))
def hvp(call: Call) -> np.ndarray:
    """The product of the Hessian matrix of the loss with a vector."""
    return _product(call, record_derivatives.hessian_product)


@door(_of_product("gauss_newton", "p x t loss v weights lengths state out"))
def gauss_newton(call: Call) -> np.ndarray:
    """The product of the Gauss-Newton matrix with a vector."""
    return _product(call, record_derivatives.gauss_newton_product)


@door(Method("sample_gradients", "net.sample_gradients(p, x, t, loss)", "p x t loss weights lengths state out"))
def sample_gradients(call: Call) -> np.ndarray:
    """The gradient of each sample's own loss."""
    check_problem(call)
    program = executables.of_criterion(call, "sample gradients", record_derivatives.sample_gradients)
    call.data = arguments.to_device_of(call.p, call.data)
    (result,) = _outs(call, [(len(call.data["x"]), call.network.n_params)])
    _run(call, program, {"j": result})
    return result


def residuals(call: Call, *, with_jacobian: bool) -> dict[str, np.ndarray]:
    """r: the equations of each point, (batch, equations), times the roots of the weights in `t`; j: their Jacobian."""
    network, loss, target = call.network, call.loss, call.data["t"].shape[1:]
    make = partial(record_derivatives.residuals, network, loss, target, call.dtype, with_jacobian=with_jacobian)
    program = network.program(call.p, ("residuals", call.dtype, with_jacobian), make, record.Criterion(loss, target))
    shape = len(call.data["x"]), loss.equations
    outs = {"r": (shape, None, "")} | ({"j": ((*shape, network.n_params), None, "")} if with_jacobian else {})
    return run(call, program, outs)


def _pulled(call: Call, name: str, make: Callable[..., Program], shape: tuple[int, ...]) -> np.ndarray:
    """Pullbacks of each output of each sample: (batch, *output_shape, *shape)."""
    network, batch, outputs = call.network, len(call.data["x"]), math.prod(call.network.output_shape)
    (result,) = _outs(call, [(*_output(call), *shape)])
    rows = result.reshape(batch, outputs, *shape)
    eye = np.eye(outputs, dtype=call.dtype).reshape(outputs, *network.output_shape)
    for start in range(0, outputs, DIRECTIONS_AT_ONCE):
        dy = eye[start : start + DIRECTIONS_AT_ONCE]
        kind = (name, call.dtype, len(dy), "lengths" in call.data)
        program = network.program(call.p, kind, partial(make, network, len(dy), call.dtype))
        part = rows if outputs <= DIRECTIONS_AT_ONCE else call.memory.empty((batch, len(dy), *shape), call.dtype)
        _run(call, program, {name: part}, dy=dy)
        if part is not rows:
            rows[:, start : start + DIRECTIONS_AT_ONCE] = part
    return result


# Checked arguments and results


def _check_point(call: Call, *, real: bool = False) -> None:
    """Check the point of a derivative. Raises TypeError if inputs must be `real` and are ids."""
    if real:
        checks.check_numeric(call.network)
    check_point(call)
    check_lengths(call)
    call.data = arguments.to_device_of(call.p, call.data)


def _output(call: Call) -> tuple[int, ...]:
    """The shape of the outputs."""
    return len(call.data["x"]), *call.network.output_shape


def _outs(call: Call, shapes: Sequence[tuple[int, ...]], **others: Any) -> list[np.ndarray]:
    """The arrays to fill: fresh ones, or the given ones, checked; they may not overlap the data and the `others`."""
    given = call.out if len(shapes) > 1 or call.out is None else (call.out,)
    if given is None:
        return [call.memory.empty(shape, call.dtype) for shape in shapes]
    if not isinstance(given, tuple) or len(given) != len(shapes):
        raise TypeError(f"`out` must be a tuple of {len(shapes)} arrays, not {shown(given)}")
    taken = {"p": call.p, **call.data, **others}
    for number, (array, shape) in enumerate(zip(given, shapes, strict=True)):
        name = "out" if len(shapes) == 1 else f"out[{number}]"
        taken[name] = arguments.check_out(array, shape, call.dtype, taken, name)
    return list(given)


def _run(call: Call, executable: Executable, results: Mapping[str, Any], **vectors: Any) -> None:
    """Run an executable that fills these arrays, on the data and on directions or cotangents."""
    arrays = {"p": call.p, **call.data, **{name: call.memory.contiguous(array) for name, array in vectors.items()}}
    arrays |= state_of(call, executable.program, arrays)
    executable(len(call.data["x"]), {**arrays, **results})
