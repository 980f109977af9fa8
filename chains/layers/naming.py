"""What the authors and users of layers are told about names: of settings, of parameters and scratch arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import SimpleNamespace
from typing import Any

from chains.checks import check_settings, signature
from chains.messages import listed, meant


def naming_settings(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a layer, with a TypeError that names the layer and its settings where the arguments do not fit."""
    fixed = [p.name for p in signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD][1:]

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            check_settings(type(self), init, args, kwargs)
            raise
        vars(self)["_chains_settings"] = (*vars(self).get("_chains_settings", ()), *fixed)

    return checked


class Names(SimpleNamespace):
    """Views by name, as attributes. A name that the layer did not declare is refused, and so is an assignment."""

    __slots__ = ("_layer", "_prefix", "_what")

    def __init__(self, layer: str, prefix: str, what: str, views: Mapping[str, Any]) -> None:
        vars(self).update(views)
        for name, text in zip(self.__slots__, (layer, prefix, what), strict=True):
            object.__setattr__(self, name, text)

    def __getattr__(self, name: str) -> Any:
        declared = [other for other in vars(self) if other != "children"]
        raise AttributeError(
            f"`{self._prefix}.{name}`: {self._layer}.declare declares no {self._what} of that name, but {listed(declared)}"
            f"{meant(name, declared)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`{self._prefix}.{name} = ...` fills no array: record an operation that does, such as "
            f"ops.copy({self._prefix}.{name}, ...) in {self._layer}"
        )
