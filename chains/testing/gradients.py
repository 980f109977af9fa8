"""Gradients of layers, networks and losses against central differences, extrapolated, and on every backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np

from chains.backends import registered
from chains.chain import Chain
from chains.layers.base import Layer
from chains.layers.dense import Dense
from chains.layers.shape import Reshape
from chains.losses import Loss
from chains.network import checks, record
from chains.network.network import network_of
from chains.program.program import Program
from chains.support import arguments
from chains.support.arrays import as_numpy
from chains.support.checks import check_count, check_shape
from chains.testing.programs import named_backends, run_program

T = TypeVar("T")
DTYPES = (np.dtype(np.float64), np.dtype(np.float32))
ROUNDING = {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-12}  # of a short computation, relative to its scale
SLOPE = 2e-8  # of a float64 gradient against a central difference, relative to its scale


class Kink(Exception):  # noqa: N818 - no error, but a place
    """A function was not smooth at the point of differentiation."""


def central_difference(f: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The gradient of a function at an array: central differences, extrapolated to step zero.

    Parameters
    ----------
    f : callable
        A function of an array that returns a number.
    at : array of float64
        Where.
    step : float
        The longest step.

    Raises
    ------
    Kink
        If steps of different lengths disagree, as at a jump of slope or curvature.
    """
    gradient = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        wide, middle, narrow = (_slope(f, at, index, h) for h in (step, step / 2, step / 4))
        coarse, fine = (4.0 * middle - wide) / 3.0, (4.0 * narrow - middle) / 3.0
        if abs(coarse - fine) > 1e-8 * max(1.0, abs(fine)):
            raise Kink
        gradient[index] = fine
    return gradient


def _slope(f: Callable[[np.ndarray], float], at: np.ndarray, index: tuple[int, ...], h: float) -> float:
    up, down = at.copy(), at.copy()
    up[index] += h
    down[index] -= h
    return (f(up) - f(down)) / (up[index] - down[index])


def away_from_kinks(make: Callable[[int], T], first: int = 0, tries: int = 12) -> T:
    """``make(seed)`` for the first seed that raises no Kink. Raises AssertionError if all of them do.

    Parameters
    ----------
    make : callable
        A function of a seed.
    first, tries : int
        The first seed, and the number of seeds.
    """
    for seed in range(first, first + tries):
        try:
            return make(seed)
        except Kink:
            continue
    raise AssertionError(f"{tries} random points all lay at a kink: is the function smooth anywhere?")


def assert_close(actual: Any, wanted: Any, tolerance: float, what: str = "") -> None:
    """Raise AssertionError unless two arrays are equal, to within `tolerance` times the scale of `wanted` (at least 1).

    Parameters
    ----------
    actual, wanted : array
        The arrays.
    tolerance : float
        The difference allowed.
    what : str
        The subject of the message.
    """
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    if actual.shape != wanted.shape:
        raise AssertionError(f"{what}: must have shape {wanted.shape}, got {actual.shape}")
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    np.testing.assert_allclose(actual, wanted, rtol=0.0, atol=tolerance * scale, err_msg=what)


@dataclass(frozen=True)
class Checked:
    """The result of `check_gradients`: the largest differences from central differences, and the backends that ran."""

    parameters: float
    inputs: float
    backends: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"gradients differ from central differences by at most {self.parameters:.1e} for parameters and {self.inputs:.1e} "
            f"for inputs; the same on {', '.join(self.backends)}"
        )


def check_gradients(
    network: Chain | Layer, input_shape: tuple[int, ...] | None = None, *, batch: int = 3, seed: int = 0,
    backends: Sequence[str] | None = None,
) -> Checked:  # fmt: skip
    """Check the pullback of a layer, or of a whole network, at random parameters and inputs, in the modes "eval" and "train".

    In float64 on NumPy, the gradients with respect to parameters and inputs must equal central differences. Then every backend
    must give the same to rounding in float64 and in float32, and the same bits whether its scratch memory holds zeros or NaN
    beforehand. Points at a kink, such as relu's at 0, are avoided.

    Parameters
    ----------
    network : Layer or Chain
        A small network: it is computed about six times for each parameter and each input.
    input_shape : tuple of int, optional
        The shape of one sample, needed where the layer does not fix it.
    batch : int
        The number of samples.
    seed : int
        Decides the random numbers.
    backends : sequence of str, optional
        By default all that can be used on this computer.

    Returns
    -------
    Checked
        The largest differences, and the backends that ran.

    Raises
    ------
    AssertionError
        Where a check fails; the message says what differs.
    TypeError, ValueError
        If the layer cannot be recorded (it does not fill a result, or writes to `x`), and for invalid arguments.
    """
    net, seed = _network(network, input_shape), arguments.check_seed(seed)
    names = named_backends(backends, ("numpy", "native", "cupy", *registered()))
    size = max(check_count("batch", batch), network_of(net).declaration.most_demanding.smallest_batch)
    worst = {"g": 0.0, "dx": 0.0}
    for mode in ("eval", "train"):
        forward, vjp = (partial(make, network_of(net), training=mode == "train") for make in (record.forward, record.vjp))
        _check_memory(forward(dtype=DTYPES[0]), "numpy", size, _point(net, size, seed), mode)
        arrays, wanted = away_from_kinks(partial(_differences, net, forward(dtype=DTYPES[0]), size), seed)
        found = _check_memory(vjp(dtype=DTYPES[0]), "numpy", size, arrays, mode)
        for result, what in (("g", "parameters"), ("dx", "inputs")):
            actual = found.get(result, np.zeros(0))  # left out if there is nothing to fill
            assert_close(actual, wanted[result], SLOPE, f"the gradient with respect to the {what}, mode {mode!r}")
            worst[result] = max(worst[result], float(np.max(np.abs(actual - wanted[result]), initial=0.0)))
        for dtype, make in product(DTYPES, (forward, vjp)):
            program = make(dtype=dtype)
            reference = run_program(program, "numpy", size, arrays)
            for name in names:
                results = _check_memory(program, name, size, arrays, mode)
                for key, value in reference.items():
                    what = f"`{key}` of the {program.name} program on the backend {name!r}, {dtype}, mode {mode!r}"
                    assert_close(results[key], value, ROUNDING[dtype], what)
    return Checked(worst["g"], worst["dx"], names)


def check_loss(
    loss: Loss, t: Any, output_shape: tuple[int, ...] | None = None, *, seed: int = 0, backends: Sequence[str] | None = None
) -> float:
    """Check the derivative of a loss at random outputs, without weights and with weights of samples and of targets.

    Targets of weight 0 are NaN, as users may pass them. Weights of targets are for losses with `weighs_targets`.

    The derivative must equal central differences of the loss, in float64 and, to rounding, in float32. Points at a kink are
    avoided.

    Parameters
    ----------
    loss : Loss
        The loss.
    t : array, shape (batch, ...)
        Its targets.
    output_shape : tuple of int, optional
        The shape of one sample's outputs; by default that of its target.
    seed : int
        Decides the random numbers.
    backends : sequence of str, optional
        By default those of the processor that can be used on this computer.

    Returns
    -------
    float
        The largest difference in float64.

    Raises
    ------
    AssertionError
        Where a check fails; the message says what differs.
    TypeError, ValueError
        For targets that do not go with the loss.
    """
    checks.check_loss(loss)
    t, seed = as_numpy("t", t), arguments.check_seed(seed)
    if t.ndim == 0 or not len(t):
        raise ValueError(f"`t` must be a batch of at least one target, got shape {t.shape}")
    batch, shape = len(t), t.shape[1:] if output_shape is None else check_shape("output_shape", output_shape)
    names = named_backends(backends, ("numpy", "native"))
    layers = Dense(batch, math.prod(shape), bias=False), Reshape(*shape)
    nets = {name: Chain(*layers, backend=name) for name in ("numpy", *names)}
    x = np.eye(batch)  # so that the weights are the outputs, and the gradient is the derivative
    worst = 0.0
    kinds = {"": None, ", with weights of samples": (batch,)}
    if loss.weighs_targets and t.ndim > 1:
        kinds[", with weights of targets"] = t.shape
    for kind, weighed in kinds.items():
        weights = None if weighed is None else _weights(weighed)
        holed = t if weights is None else _with_holes(t, weights)
        value = partial(nets["numpy"].loss, x=x, t=holed, loss=loss, weights=weights)

        def differences(seed: int, value: Callable[[np.ndarray], float] = value) -> tuple[np.ndarray, np.ndarray]:
            y = np.random.default_rng([seed, batch]).normal(size=batch * math.prod(shape)).astype(np.float32).astype(np.float64)
            return y, central_difference(value, y)

        y, wanted = away_from_kinks(differences, seed)
        if not np.isfinite(wanted).all():
            hint = ", of which those of targets that are NaN are 0: use where(w == 0, 0, ...)" if kind else ""
            raise AssertionError(f"{loss!r} is not finite at random outputs{kind}{hint}")
        for name in names:
            for dtype in DTYPES:
                bound = SLOPE if dtype == DTYPES[0] else ROUNDING[dtype]
                _, actual = nets[name].value_and_grad(y.astype(dtype), x, holed, loss, weights=weights)
                what = f"the derivative of {loss!r} on the backend {name!r}, {dtype}{kind}"
                assert_close(actual, wanted, bound, what)
                worst = max(worst, float(np.max(np.abs(actual - wanted))) * (dtype == DTYPES[0]))
    return worst


def _weights(shape: tuple[int, ...]) -> np.ndarray:
    """Weights of this shape, of which every third one is 0."""
    weights = np.linspace(0.5, 2.0, math.prod(shape))
    weights[2::3] = 0.0
    return weights.reshape(shape)


def _with_holes(t: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Targets that are NaN where their weight is 0."""
    return np.where(weights.reshape(*weights.shape, *[1] * (t.ndim - weights.ndim)) == 0.0, np.nan, t)


def _network(network: Any, input_shape: tuple[int, ...] | None) -> Chain:
    """A layer as a network. Raises TypeError or ValueError if that is impossible."""
    if isinstance(network, Chain) and input_shape in (None, network.input_shape):
        return network
    if isinstance(network, Chain):
        raise ValueError(f"`input_shape` (={input_shape}) is not that of the network, {network.input_shape}")
    if not isinstance(network, Layer):
        raise TypeError(f"`network` (={network!r}) must be a layer or a Chain")
    return Chain(network, input_shape=input_shape, backend="numpy")


def _differences(net: Chain, forward: Program, batch: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random arrays, and the central differences of sum(dy * y) there with respect to parameters and inputs."""
    arrays = _point(net, batch, seed)

    def total(name: str, array: np.ndarray) -> float:
        return float(np.sum(arrays["dy"] * run_program(forward, "numpy", batch, {**arrays, name: array})["y"]))

    g = central_difference(partial(total, "p"), arrays["p"])
    ids = network_of(net).id_count is not None
    dx = np.zeros(arrays["x"].shape) if ids else central_difference(partial(total, "x"), arrays["x"])
    for name in net.frozen:
        net.views(g)[name][...] = 0.0
    return arrays, {"g": g, "dx": dx}


def _point(network: Chain, batch: int, seed: int) -> dict[str, np.ndarray]:
    """Random arrays by buffer name. The numbers are exact in float32, so that both types get the same."""
    rng = np.random.default_rng([seed, batch])
    arrays = {
        "p": rng.normal(0.0, 0.8, network.n_params),
        "x": rng.normal(0.0, 1.0, (batch, *network.input_shape)),
        "dy": rng.normal(0.0, 1.0, (batch, *network.output_shape)),
        "state": rng.uniform(0.5, 2.0, network.n_state),
    }
    exact: dict[str, Any] = {name: array.astype(np.float32).astype(np.float64) for name, array in arrays.items()}
    if network_of(network).id_count is not None:
        exact["x"] = rng.integers(0, network_of(network).id_count, arrays["x"].shape)
    return {**exact, "random": np.array([3, 0], np.uint64)}


def _check_memory(
    program: Program, name: str, batch: int, arrays: Mapping[str, np.ndarray], mode: str
) -> dict[str, np.ndarray]:
    """The results of a program. Raises AssertionError if they depend on the earlier contents of scratch memory."""
    clean, poisoned = (run_program(program, name, batch, arrays, fill) for fill in (0x00, 0xFF))
    for key, array in clean.items():
        what = f"`{key}` of the {program.name} program, mode {mode!r}, on the backend {name!r}"
        if array.tobytes() != poisoned[key].tobytes():
            raise AssertionError(
                f"{what} depends on what scratch memory held before: an array declared by d.saved, d.shared or d.temporary, "
                "or a part of it, is read before it is filled"
            )
        if not np.isfinite(array).all():
            raise AssertionError(f"{what} is not finite, or not filled everywhere")
    return clean
