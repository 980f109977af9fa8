"""Layers with their arrays, as they come from another library, and the network that they become."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chains.activations import identity
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.interop.comparison import Source, check_same
from chains.layers import Activation, Conv, ConvTranspose, Dense, Layer
from chains.layers.base import SampleShape
from chains.network.network import network_of
from chains.params import Layout
from chains.support import arguments
from chains.support.memory import on_host


def needed(name: str, package: str = "") -> Any:
    """A module of an optional package. If it is missing, raises ImportError that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install {package or name} ({error})", name=name) from error


def arrays_by_name(net: Chain, p: Any, state: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The checked parameters of a network on the host, and the values of all its arrays by name, including its state."""
    p = on_host(arguments.check_params(p, net.n_params))
    arrays = dict(net.values(p))
    if net.n_state:
        if state is None:
            raise ValueError(f"`state` is missing: this network has one ({net.state_layout[0].name}, ...)")
        arrays |= net.state_views(on_host(arguments.check_state(state, net.n_state, p.dtype, False, {})))
    return p, arrays


@dataclass
class Part:
    """A layer with its parameters and its state, in the order in which it declares them.

    `name` is that of its result in the source. If `axes` is given, samples must have that many axes.
    """

    layer: Layer
    params: list[np.ndarray] = field(default_factory=list)
    state: list[np.ndarray] = field(default_factory=list)
    name: str = ""
    axes: int | None = None


def joined(parts: list[Part]) -> list[Part]:
    """The parts, with activations merged into the layers before them."""
    result: list[Part] = []
    for part in parts:
        before = result[-1].layer if result else None
        if (
            isinstance(part.layer, Activation)
            and isinstance(before, (Dense, Conv, ConvTranspose))
            and before.activation is identity
        ):
            before.activation = part.layer.f
            result[-1].name = part.name
        else:
            result.append(part)
    return result


def assembled(
    parts: list[Part], input_shape: SampleShape | None, backend: str | Cupy | Backend, dtype: Any, source: Source | None
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """The network of these parts, its parameters and its state.

    Raises ValueError if an array does not fit, and if the network does not compute what its source does.
    """
    parts = joined(parts)
    net = Chain(*(part.layer for part in parts), input_shape=input_shape, backend=backend)
    _check_axes(net, parts)
    p = _vector(net.layout, [array for part in parts for array in part.params], dtype)
    state = _vector(net.state_layout, [array for part in parts for array in part.state], dtype) if net.n_state else None
    if source is not None:
        check_same(net, p, state, [part.name for part in parts], source)
    return net, p, state


def _check_axes(net: Chain, parts: list[Part]) -> None:
    if not any(part.axes for part in parts):
        return
    for part, declaration in zip(parts, network_of(net).declaration.children, strict=True):
        if part.axes not in (None, len(declaration.input)):
            raise ValueError(
                f"{part.layer!r} takes the last axis, but the axis {part.axes} of its input is not the last one of samples "
                f"of shape {declaration.input}"
            )


def _vector(layout: Layout, arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    for entry, array in zip(layout, arrays, strict=True):
        if array.shape != entry.shape:
            raise ValueError(f"{entry.name!r} must have shape {entry.shape}, got {array.shape}")
    return np.concatenate([np.empty(0), *(array.reshape(-1) for array in arrays)]).astype(dtype)
