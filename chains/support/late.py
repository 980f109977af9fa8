"""Names of a package whose modules are imported when the names are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late_names(package: dict[str, Any], sources: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, whose globals these are. `sources` has the module of each name.

    A module that is called like the name is the value itself.
    """
    own = package["__name__"]

    def find(name: str) -> Any:
        source = sources.get(name)
        if source is None:
            raise AttributeError(f"module {own!r} has no attribute {name!r}", name=name, obj=import_module(own))
        module = import_module(source)
        value = module if source == f"{own}.{name}" else getattr(module, name)
        package[name] = value  # found without this function from now on
        return value

    return find
