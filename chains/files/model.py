"""Saving a network with its parameters, and loading it again."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from chains.backends import Backend, Cupy
from chains.backends import backend as find_backend
from chains.chain import Chain
from chains.files.architecture import built, described
from chains.network.network import check_net, network_of
from chains.params import Layout
from chains.support import arguments, storage
from chains.support.checks import check_path
from chains.support.memory import on_host
from chains.support.messages import shown
from chains.version import __version__

FORMAT = "chains 1"


def save(path: str | os.PathLike[str], net: Chain, p: Any, state: Any = None) -> None:
    """Write a network and its parameters to a file of safetensors.

    Each parameter is an array with its name and shape (`net.layout`), and so is each array of the state. The architecture is
    JSON in the file's metadata, with the name of the backend and a digest of the whole file. Custom layers are written only by
    name. The file is written under a unique name in the same folder and then renamed: readers find the old file or the new one,
    and of several writers the last one counts.

    Parameters
    ----------
    path : str or path
        The file, ``"model.safetensors"``.
    net : Chain
        The network.
    p : array, shape (n_params,)
        Its parameters, float32 or float64.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit; nothing is written then.
    OSError
        If the file cannot be written.

    Notes
    -----
    The layout of the file is that of https://github.com/huggingface/safetensors, whose library reads it.
    """
    file = check_path("path", path, "model.safetensors")
    check_net(net)
    p = on_host(arguments.check_params(p, net.n_params))
    arrays: dict[str, np.ndarray] = dict(net.views(p))
    if state is None and net.n_state:
        raise ValueError(f"`state` is missing: this network has one ({net.state_layout[0].name}, ...)")
    if state is not None:
        state = on_host(arguments.check_state(state, net.n_state, p.dtype, False, {}))
        for name, array in net.state_views(state).items():
            if name in arrays:
                raise ValueError(f"a file cannot hold {name!r} both as a parameter and as a state")
            arrays[name] = array
    texts = {"format": FORMAT, "version": __version__, "network": json.dumps(described(net), allow_nan=False)}
    storage.write(file, arrays, texts | {"bounds": json.dumps(_bounds(net)), "backend": network_of(net).backend.name})


def load(
    path: str | os.PathLike[str], *, net: Chain | None = None, backend: str | Cupy | Backend = "auto"
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """Read a network and its parameters from a file that `save` has written.

    Nothing in the file is evaluated: layers and activations are found by their names among those of this package.

    Parameters
    ----------
    path : str or path
        The file.
    net : Chain, optional
        The network that the parameters are of, for files of networks with custom layers, and for files of safetensors from
        elsewhere. The arrays in the file must have the names and shapes of its parameters and state, and the parameters the
        bounds with which they were saved.
    backend : str, backends.Cupy or backends.Backend
        The backend of a network that is made from the file, as of a `Chain`.

    Returns
    -------
    net : Chain
        The network; the one that was passed, if any.
    p : array, shape (n_params,)
        Its parameters, fresh, of the type in the file.
    state : array, shape (n_state,), or None
        Its state; None for networks without.

    Raises
    ------
    ValueError
        If the file is not one of safetensors, was cut short or changed, holds no network, or one with custom layers; if the
        arrays are not those of the network, naming the first that differs; and for an unknown backend.
    OSError
        If there is no such file.
    """
    file = check_path("path", path, "model.safetensors")
    if net is not None:
        check_net(net)
    find_backend(backend)
    try:
        arrays, texts = storage.read(file, digest=False)
        if net is None:
            net = _network(texts, backend)
        elif "bounds" in texts:
            _check_bounds(_parsed("bounds", texts), _bounds(net))
        p = _vector(net.layout, arrays)
        state = _vector(net.state_layout, arrays, p.dtype) if net.n_state else None
        if arrays:
            name, array = next(iter(arrays.items()))
            raise ValueError(f"it has {name!r} of shape {array.shape}, which the network lacks")
    except ValueError as error:
        raise ValueError(f"`path` (={str(path)!r}) cannot be loaded: {error}") from error
    return net, p, state


def _bounds(net: Chain) -> dict[str, list[float | None]]:
    """The bounds of the parameters that have any, as pairs by name."""
    return {entry.name: [entry.bounds.low, entry.bounds.high] for entry in net.layout if entry.bounds is not None}


def _check_bounds(saved: Any, own: dict[str, list[float | None]]) -> None:
    """Raise ValueError, naming the first that differs, unless the bounds in a file are those of the network."""
    if not isinstance(saved, dict):
        raise ValueError(f"its bounds make no sense: {shown(saved)}")
    for name in [*saved, *own]:
        if saved.get(name) != own.get(name):
            raise ValueError(f"{name!r} has the bounds {saved.get(name)}, but the network has {own.get(name)}")


def _parsed(name: str, texts: dict[str, str]) -> Any:
    """The JSON in a text of the metadata. Raises ValueError for anything else."""
    try:
        return json.loads(texts[name])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its metadata {name!r} are no JSON that can be read: {error}") from None


def _network(texts: dict[str, str], backend: str | Cupy | Backend) -> Chain:
    if "network" not in texts or not texts.get("format", "").startswith("chains "):
        raise ValueError("it holds arrays, but no network of chains: pass the network as `net`")
    if texts["format"] != FORMAT:
        raise ValueError(f"it is of a later version, {shown(texts.get('version'))}, in the format {shown(texts['format'])}")
    return built(_parsed("network", texts), backend)


def _vector(layout: Layout, arrays: dict[str, np.ndarray], dtype: np.dtype[Any] | None = None) -> np.ndarray:
    """The vector of these slices, which are taken from the arrays. Raises ValueError for the first that differs."""
    found = []
    for entry in layout:
        if entry.name not in arrays:
            raise ValueError(f"it has no {entry.name!r}, which the network has in shape {entry.shape}")
        array = arrays.pop(entry.name)
        if array.shape != entry.shape:
            raise ValueError(f"{entry.name!r} has shape {array.shape}, but the network has {entry.shape}")
        dtype = array.dtype if dtype is None else dtype
        if array.dtype != dtype or dtype not in arguments.DTYPES:
            wanted = "float32 or float64" if dtype not in arguments.DTYPES else f"{dtype}, as those before"
            raise ValueError(f"{entry.name!r} must be {wanted}, got {array.dtype}")
        found.append(array.reshape(-1))
    return np.concatenate(found) if found else np.empty(0, np.float32 if dtype is None else dtype)
