"""A model of a population and its flat vector as a file of safetensors."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.files.architecture import built, described
from chains.population.errors import Additive, Combined, ErrorModel, Proportional
from chains.population.model import PopulationModel
from chains.support import storage
from chains.support.checks import check_is, check_path

FORMAT = "chains population 1"
ERRORS = {kind.__name__: kind for kind in (Additive, Proportional, Combined)}


def save(path: str | os.PathLike[str], model: PopulationModel, theta: Any) -> None:
    """Write a model and its flat vector to a file of safetensors.

    Custom layers and densities are written by name only: pass the network and the errors to `load`.

    Parameters
    ----------
    path : str or path
        The file.
    model : PopulationModel
        The model.
    theta : array, shape (n_params,)
        Its flat vector.
    """
    file = check_path("path", path, "model.safetensors")
    check_is("model", model, PopulationModel, "a PopulationModel")
    theta = model.checked(theta)
    settings = {"effects": model.effects, "covariance": model.covariance, "error": type(model.error).__name__}
    settings |= {"start": model.error.start}
    texts = {"format": FORMAT, "network": json.dumps(described(model.net), allow_nan=False), "model": json.dumps(settings)}
    storage.write(file, {"theta": theta}, texts)


def load(
    path: str | os.PathLike[str], *, net: Chain | None = None, error: ErrorModel | None = None
) -> tuple[PopulationModel, np.ndarray]:
    """Read a model and its flat vector. Nothing in the file is evaluated.

    Parameters
    ----------
    path : str or path
        The file.
    net : Chain, optional
        The network, if it has custom layers.
    error : ErrorModel, optional
        The residual errors, if they are a `Density`.

    Raises
    ------
    ValueError
        If the file holds no model, one with custom parts that were not passed, or another number of parameters.
    OSError
        If there is no such file.
    """
    file = check_path("path", path, "model.safetensors")
    try:
        arrays, texts = storage.read(file)
        if texts.get("format") != FORMAT or "theta" not in arrays:
            raise ValueError("it holds no model of a population")
        settings = json.loads(texts["model"])
        if error is None and settings["error"] not in ERRORS:
            raise ValueError(f"its errors are a {settings['error']}: pass it as `error`")
        error = error or ERRORS[settings["error"]](**settings["start"])
        net = net or built(json.loads(texts["network"]))
        model = PopulationModel(net, settings["effects"], error, covariance=settings["covariance"])
        return model, model.checked(arrays["theta"])
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"`path` (={str(path)!r}) cannot be loaded: {problem}") from problem
