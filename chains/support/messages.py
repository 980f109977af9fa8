"""The wording of messages: numbers with their nouns, short lists, names that may have been meant."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

# Names of other frameworks, with those here.
SYNONYMS = {
    "swish": "silu", "linear": "identity", "logistic": "sigmoid",
    "lr": "learning_rate", "step_size": "learning_rate", "betas": "beta1", "rho": "decay", "alpha": "decay",
    "val_loss": "validation loss", "validation_loss": "validation loss", "val_accuracy": "accuracy", "acc": "accuracy",
    "in_features": "inputs", "in_channels": "inputs", "out_features": "outputs", "out_channels": "outputs", "units": "outputs",
    "filters": "outputs", "kernel_size": "kernel", "strides": "stride", "use_bias": "bias", "p": "rate",
    "kernel_initializer": "weight_init", "bias_initializer": "bias_init", "num_features": "channels",
    "num_channels": "channels", "num_groups": "groups", "normalized_shape": "shape",
    "xavier_normal": "glorot_normal", "xavier_uniform": "glorot_uniform",
    "kaiming_normal": "he_normal", "kaiming_uniform": "he_uniform",
    "gpu": "cupy", "cuda": "cupy", "validation_data": "validation",
}  # fmt: skip
MAX_NAMES_LISTED = 20
MAX_VALUE_CHARACTERS = 100  # characters of a value


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 step", "2 steps"."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a noun: "steps", "trajectories", "arrays"."""
    return f"{noun[:-1]}ies" if noun[-1:] == "y" and noun[-2:-1] not in "aeiou" else f"{noun}s"


def listed(names: Iterable[str]) -> str:
    """The names; of many, the first ones and their number."""
    names = list(names)
    if len(names) <= MAX_NAMES_LISTED:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:MAX_NAMES_LISTED])}, ... ({len(names)} in all)"


def meant(name: str, names: Iterable[str]) -> str:
    """A question with the name that was probably meant, for the end of a message; empty if none is similar."""
    from difflib import get_close_matches  # as `html`, needed in few programs

    by_lower = {known.lower(): known for known in names}
    synonym = SYNONYMS.get(name.lower())
    near = [synonym] if synonym in by_lower else get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean `{by_lower[near[0]]}`?" if near else ""


def shown(value: Any) -> str:
    """A value for a message: an array or a table by its type and shape, others as they are printed, cut if too long."""
    if isinstance(value, (np.generic, type, ModuleType)):  # NumPy itself has a shape and a dtype
        return _short(repr(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of {value.dtype}, shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" if hasattr(value, "__array__") else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


def as_html(text: str) -> str:
    """A printed text for notebooks."""
    import html

    return f'<pre style="line-height: 1.2; white-space: pre">{html.escape(text)}</pre>'
