"""Settings of optimisers by name, as searches set them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chains.optimizers import Optimizer

LEARNING_RATE = 0.001  # the default of `learning_rate_init`


def with_settings(optimizer: Any, settings: dict[str, Any]) -> Optimizer:
    """The same optimiser with other settings; "optimizer__eps" is a setting of its setting `optimizer`.

    Raises ValueError where there is no such setting.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"`solver` (={optimizer!r}) must be an optimiser, such as Adam(), to have the parameters {sorted(settings)}"
        )
    known = optimizer.get_params()
    inner: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        head, _, rest = name.partition("__")
        if head not in known:
            raise ValueError(f"{name!r} is no parameter of {optimizer!r}; there are {', '.join(sorted(known))}")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, those in inner.items():
        own[head] = with_settings(own.get(head, getattr(optimizer, head)), those)
    return replace(optimizer, **own)
