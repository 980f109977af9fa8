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
from chains.losses import Loss
from chains.network import calls, checks, executables, record, record_derivatives
from chains.network.network import Network
from chains.penalties import Penalty
from chains.program.program import Program
from chains.residuals.loss import ResidualLoss
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.checks import check_flags
from chains.support.memory import memory_of
from chains.support.messages import shown

MAX_ORDER = 4
DIRECTIONS_AT_ONCE = 16  # the most directions, or cotangents, in one program; more take several calls


# By the inputs


def derivatives(
    network: Network, p: Any, x: Any, order: int, directions: Any, full: bool, state: Any, out: Any
) -> tuple[np.ndarray, ...]:
    """The outputs and their derivatives with respect to the inputs, order by order."""
    if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= MAX_ORDER:
        raise ValueError(f"`order` (={shown(order)}) must be a whole number from 1 to {MAX_ORDER}")
    check_flags(full=full)
    if full and (order != 2 or directions is not None):
        raise ValueError(f"`full` is for order 2 (got {order}) and for the inputs, without `directions`")
    p, x = _point(network, p, x, "net.derivatives(p, x)", real=True)
    inputs, output = network.input_shape, (len(x), *network.output_shape)
    vectors = _axes(inputs, p.dtype, full) if directions is None else _directions(inputs, directions, x, p)
    count, separate = vectors.shape[-1 - len(inputs)], vectors.ndim > 1 + len(inputs)
    along = inputs if directions is None else (count,)
    shapes = [output] + [(*output, *along)] * order
    if full:
        shapes[2] = (*shapes[1], *inputs)
    results = _outs(out, shapes, {"p": p, "x": x, "v": vectors})
    if not full and count <= DIRECTIONS_AT_ONCE:
        filled = [each.reshape(*output, -1) for each in results[1:]]
        _along(network, p, x, vectors, order, separate, state, [results[0], *filled])
        return tuple(results)
    first, *others = _in_parts(network, p, x, vectors, order, separate, state, results[0])
    size = math.prod(inputs)
    results[1][...] = (first[..., :size] if full else first).reshape(results[1].shape)
    for target, each in zip(results[2:], others, strict=True):
        target[...] = (_matrix(each, size) if full else each).reshape(target.shape)
    return tuple(results)


def laplacian(network: Network, p: Any, x: Any, state: Any, out: Any) -> np.ndarray:
    """The sum of the second derivatives by each input."""
    p, x = _point(network, p, x, "net.laplacian(p, x)", real=True)
    size = math.prod(network.input_shape)
    (total,) = _outs(out if out is None else (out,), [(len(x), *network.output_shape)], {"p": p, "x": x})
    axes = _axes(network.input_shape, p.dtype, False)
    part = total if size <= DIRECTIONS_AT_ONCE else memory_of(p).empty(total.shape, p.dtype)
    for start in range(0, size, DIRECTIONS_AT_ONCE):
        v = axes[start : start + DIRECTIONS_AT_ONCE]
        make = partial(record_derivatives.laplacian, network, len(v), p.dtype)
        program = network.program(p, ("laplacian", p.dtype, len(v)), make)
        _run(network, program, p, {"x": x, "v": v}, state, {"laplacian": part})
        if part is not total:
            total[...] = part if start == 0 else total + part
    return total


def input_jacobian(network: Network, p: Any, x: Any, state: Any, out: Any) -> np.ndarray:
    """The derivatives of the outputs with respect to the inputs, in the cheaper direction."""
    p, x = _point(network, p, x, "net.input_jacobian(p, x)", real=True)
    inputs, outputs = math.prod(network.input_shape), math.prod(network.output_shape)
    if inputs > outputs or inputs > DIRECTIONS_AT_ONCE:
        return _pulled(network, "dx", record_derivatives.input_jacobian, p, {"x": x}, network.input_shape, state, out)
    output = (len(x), *network.output_shape)
    given = None if out is None else (memory_of(p).empty(output, p.dtype), out)
    y, result = _outs(given, [output, (*output, *network.input_shape)], {"p": p, "x": x})
    axes = _axes(network.input_shape, p.dtype, False)
    _along(network, p, x, axes, 1, False, state, [y, result.reshape(*output, -1)])
    return result


def _axes(shape: tuple[int, ...], dtype: Any, diagonals: bool) -> np.ndarray:
    """The directions of inputs of this shape; with `diagonals`, also the sums of each two of them."""
    size = math.prod(shape)
    axes = np.eye(size, dtype=dtype)
    if diagonals:
        sums = [axes[i] + axes[j] for i, j in itertools.combinations(range(size), 2)]
        axes = np.concatenate([axes, np.array(sums, dtype).reshape(len(sums), size)])
    return axes.reshape(-1, *shape)


def _directions(shape: tuple[int, ...], directions: Any, x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The user's directions in the type of the parameters."""
    v = as_array("directions", directions)
    shared, separate = v.ndim == 1 + len(shape), v.ndim == 2 + len(shape) and len(v) == len(x)
    if v.shape[v.ndim - len(shape) :] != shape or not (shared or separate):
        text = ", ".join(map(str, shape))
        raise ValueError(
            f"`directions` has shape {v.shape}: wanted (directions, {text}), or ({len(x)}, directions, {text}) for "
            "separate directions at each point"
        )
    return memory_of(p).contiguous(v, p.dtype)


def _in_parts(
    network: Network, p: Any, x: Any, vectors: Any, order: int, separate: bool, state: Any, y: np.ndarray
) -> list[np.ndarray]:
    """Fill `y`; the derivatives of each order, (batch, *output_shape, directions), some directions at a time."""
    count = vectors.shape[1 if separate else 0]
    whole = [memory_of(p).empty((*y.shape, count), p.dtype) for _ in range(order)]
    if count <= DIRECTIONS_AT_ONCE:
        _along(network, p, x, vectors, order, separate, state, [y, *whole])
        return whole
    for start in range(0, count, DIRECTIONS_AT_ONCE):
        part = slice(start, min(count, start + DIRECTIONS_AT_ONCE))
        some = [memory_of(p).empty((*y.shape, part.stop - start), p.dtype) for _ in range(order)]
        v = vectors[:, part] if separate else vectors[part]
        _along(network, p, x, v, order, separate, state, [y, *some])
        for each, found in zip(whole, some, strict=True):
            each[..., part] = found
    return whole


def _along(
    network: Network, p: Any, x: Any, v: Any, order: int, separate: bool, state: Any, results: Sequence[np.ndarray]
) -> None:
    """Fill the outputs and their derivatives along few directions; each point may have `separate` ones."""
    count = results[1].shape[-1]
    make = partial(record_derivatives.derivatives, network, count, order, p.dtype, own=separate)
    program = network.program(p, ("derivatives", p.dtype, count, order, separate), make)
    names = ["y", *(f"d{power}" for power in range(1, order + 1))]
    _run(network, program, p, {"x": x, "v": v}, state, dict(zip(names, results, strict=True)))


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


def jacobian(network: Network, p: Any, x: Any, lengths: Any, state: Any, out: Any) -> np.ndarray:
    """The derivatives of each sample's outputs with respect to the parameters."""
    p, x = _point(network, p, x, "net.jacobian(p, x)")
    data = {"x": x, **arguments.to_device_of(p, checks.lengths_of(lengths, x, network.declaration))}
    make = partial(record_derivatives.jacobian, masked=lengths is not None)
    try:
        return _pulled(network, "j", make, p, data, (network.n_params,), state, out)
    except NotImplementedError:  # layers without a rule for single samples: a pullback for each sample and output
        outputs = math.prod(network.output_shape)
        whole = (len(x), *network.output_shape, network.n_params)
        (result,) = _outs(out if out is None else (out,), [whole], {"p": p, "x": x})
        rows = result.reshape(len(x), outputs, network.n_params)
        eye = np.eye(outputs, dtype=p.dtype).reshape(outputs, 1, *network.output_shape)
        for sample, output in itertools.product(range(len(x)), range(outputs)):
            one = {name: array[sample : sample + 1] for name, array in data.items()}
            given = one["x"], eye[output], one.get("lengths")
            rows[sample, output] = calls.vjp(network, p, *given, state, "eval", 0, None)[0]
        return result


def hessian_product(
    network: Network, p: Any, x: Any, t: Any, loss: Loss, v: Any, weights: Any, lengths: Any, penalty: Penalty | None,
    state: Any, out: Any, *, gauss_newton: bool = False,
) -> np.ndarray:  # fmt: skip
    """The product of the Hessian matrix of the loss, or of the Gauss-Newton matrix, with a vector."""
    name = "gauss_newton" if gauss_newton else "hvp"
    plain = weights is None and lengths is None and state is None
    quick = network.shortcuts.find(name, None, p, x, loss, penalty) if plain else None
    if quick is not None and (found := quick(p, x, t, v, out)) is not None:
        return found
    p = checks.check_params(network, p, x, f"net.{name}(p, x, t, loss, v)")
    data, problem = executables.problem(network, x, t, loss, weights, penalty, lengths)
    data = {**arguments.to_device_of(p, data), "v": _vector(network, v, p)}
    record_product = record_derivatives.gauss_newton_product if gauss_newton else record_derivatives.hessian_product
    program = network.program(p, (name, p.dtype), partial(record_product, network, problem, p.dtype), problem)
    (result,) = _outs(out if out is None else (out,), [(network.n_params,)], {"p": p, **data})
    _run(network, program, p, data, state, {"hv": result})
    if plain:
        ins = {"p": p, **{name: data[name] for name in ("x", "t", "v")}}
        network.shortcuts.add(name, None, program, ins, ["hv"], loss, penalty, checks.target_check(network.output_shape, loss))
    return result


def sample_gradients(
    network: Network, p: Any, x: Any, t: Any, loss: Loss, weights: Any, lengths: Any, state: Any, out: Any
) -> np.ndarray:
    """The gradient of each sample's own loss."""
    p = checks.check_params(network, p, x, "net.sample_gradients(p, x, t, loss)")
    data, problem = executables.problem(network, x, t, loss, weights, None, lengths)
    data = arguments.to_device_of(p, data)
    (result,) = _outs(out if out is None else (out,), [(len(data["x"]), network.n_params)], {"p": p, **data})
    make = partial(record_derivatives.sample_gradients, network, problem, p.dtype)
    _run(network, network.program(p, ("sample gradients", p.dtype), make, problem), p, data, state, {"j": result})
    return result


def residuals(
    network: Network, p: np.ndarray, x: np.ndarray, t: np.ndarray, loss: ResidualLoss, state: Any, *, with_jacobian: bool
) -> dict[str, np.ndarray]:
    """r: the equations of each point, (batch, equations), times the roots of the weights in `t`; j: their Jacobian."""
    make = partial(record_derivatives.residuals, network, loss, t.shape[1:], p.dtype, with_jacobian=with_jacobian)
    program = network.program(p, ("residuals", p.dtype, with_jacobian), make, record.Criterion(loss, t.shape[1:]))
    shape = len(x), loss.equations
    outs = {"r": (shape, None, "")} | ({"j": ((*shape, network.n_params), None, "")} if with_jacobian else {})
    return executables.run(network, program, p, {"x": x, "t": t}, outs, state)


def _pulled(
    network: Network, name: str, make: Callable[..., Program], p: Any, data: Mapping[str, Any], shape: tuple[int, ...],
    state: Any, out: Any,
) -> np.ndarray:  # fmt: skip
    """Pullbacks of each output of each sample: (batch, *output_shape, *shape)."""
    x, outputs = data["x"], math.prod(network.output_shape)
    whole = (len(x), *network.output_shape, *shape)
    (result,) = _outs(out if out is None else (out,), [whole], {"p": p, **data})
    rows = result.reshape(len(x), outputs, *shape)
    eye = np.eye(outputs, dtype=p.dtype).reshape(outputs, *network.output_shape)
    for start in range(0, outputs, DIRECTIONS_AT_ONCE):
        dy = eye[start : start + DIRECTIONS_AT_ONCE]
        kind = (name, p.dtype, len(dy), "lengths" in data)
        program = network.program(p, kind, partial(make, network, len(dy), p.dtype))
        part = rows if outputs <= DIRECTIONS_AT_ONCE else memory_of(p).empty((len(x), len(dy), *shape), p.dtype)
        _run(network, program, p, {**data, "dy": dy}, state, {name: part})
        if part is not rows:
            rows[:, start : start + DIRECTIONS_AT_ONCE] = part
    return result


# Checked arguments and results


def _point(network: Network, p: Any, x: Any, call: str, *, real: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The checked parameters and inputs. Raises TypeError if inputs must be `real` and are ids."""
    if real:
        checks.check_numeric(network)
    p = checks.check_params(network, p, x, call)
    x = arguments.check_input(x, network.input_shape, ids=network.id_count)
    return p, arguments.to_device_of(p, {"x": x})["x"]


def _vector(network: Network, v: Any, p: np.ndarray) -> np.ndarray:
    v = as_array("v", v)
    if v.shape != (network.n_params,):
        raise ValueError(f"`v` has shape {v.shape}: wanted ({network.n_params},), a number for each parameter")
    return memory_of(p).contiguous(v, p.dtype)


def _outs(given: Any, shapes: Sequence[tuple[int, ...]], inputs: Mapping[str, Any]) -> list[np.ndarray]:
    """The arrays to fill: fresh ones, or the given ones, checked."""
    p = inputs["p"]
    if given is None:
        return [memory_of(p).empty(shape, p.dtype) for shape in shapes]
    if not isinstance(given, tuple) or len(given) != len(shapes):
        raise TypeError(f"`out` must be a tuple of {len(shapes)} arrays, not {shown(given)}")
    taken = dict(inputs)
    for number, (array, shape) in enumerate(zip(given, shapes, strict=True)):
        name = "out" if len(shapes) == 1 else f"out[{number}]"
        taken[name] = arguments.check_out(array, shape, p.dtype, taken, name)
    return list(given)


def _run(
    network: Network, executable: Executable, p: np.ndarray, data: Mapping[str, Any], state: Any, results: Mapping[str, Any]
) -> None:
    """Run an executable that fills these arrays."""
    arrays = {"p": p, **data, **{name: memory_of(p).contiguous(data[name]) for name in ("v", "dy") if name in data}}
    arrays |= executables.state_for(network, executable.program, state, p.dtype, arrays)
    executable(len(data["x"]), {**arrays, **results})
