"""The identity of a run, as numbers and texts that can be stored and compared: the network, the loss, the batches."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.expr.replay import Replay
from chains.losses import Loss

SOURCE = "len(x)"  # the number of batches a pass, for sources only
# The attributes of a source, if it has them, that decide its batches.
SETTINGS = ("samples", "batch_size", "shuffle", "seed", "drop_last", "augment", "scale")


def data_of(samples: int, batch_size: int, drop_last: bool, shuffle: bool, seed: Any) -> dict[str, Any]:
    """The settings that decide the batches of an epoch on arrays, by the names that users know."""
    return {
        "samples": samples,
        "batch_size": batch_size,
        "drop_last": bool(drop_last),
        "shuffle": bool(shuffle),
        "seed": seed,
    }


def source_data(source: Any, seed: int) -> dict[str, Any]:
    """The settings that decide the batches of a source, as far as known; for a prefetching source, those of the inner one."""
    while hasattr(source, "batches"):
        source = source.batches
    try:
        length = len(source)
    except TypeError:
        length = None
    settings = {f"x.{name}": _plain(getattr(source, name)) for name in SETTINGS if hasattr(source, name)}
    return {SOURCE: length, **settings, "seed": seed}


def network_text(net: Chain) -> str:
    """The layers, without their starting values."""
    return f"Chain({', '.join(_without_address(layer.short_repr()) for layer in net.layers)})"


def loss_text(loss: Loss) -> str:
    """The printed form, with the formulas of a loss made by `chains.loss`, which prints its name alone."""
    parts: list[Any] = [getattr(loss, field.name) for field in fields(loss)] if is_dataclass(loss) else []
    return " ".join(text_of(part) for part in (loss, *(part for part in parts if isinstance(part, Replay))))


def text_of(thing: Any) -> str:
    """The printed form, without memory addresses."""
    return _without_address(repr(thing))


def _without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _plain(value: Any) -> Any:
    """The value if JSON has its type, else its text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (bool, int, float, str, type(None))) else text_of(value)
