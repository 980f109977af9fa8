"""Arrays that users pass: NumPy's unchanged, those of other libraries without a copy if possible."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from chains.support.checks import as_unmasked
from chains.support.memory import is_elsewhere
from chains.support.messages import shown

REAL = "fiub"  # NumPy's kinds of real numbers: floats, integers with and without sign, booleans


def as_array(name: str, value: Any) -> Any:
    """`value` itself if it is an array of real numbers on a GPU of chains, else as a NumPy array.

    Raises TypeError as `as_numpy` does.
    """
    if not is_elsewhere(value):
        return as_numpy(name, value)
    if value.dtype.kind not in REAL:
        raise TypeError(f"`{name}` must be real, got {value.dtype}")
    return value


def as_numpy(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array, which shares memory if its library can (a PyTorch CPU tensor, any DLPack array).

    Raises TypeError unless it holds real numbers, and for masked entries, arrays on other devices or without memory, and
    tensors of PyTorch that require a gradient or are negated when they are read; ValueError for lists of several lengths.
    """
    if type(value) is np.ndarray and value.dtype.kind in REAL:
        return value
    array = _imported(name, value)
    if array.dtype.kind in REAL:
        return array
    if type(value).__module__.startswith("pandas"):  # columns of several types, or of pandas' own: objects for NumPy
        raise TypeError(f"`{name}` (a {type(value).__name__}) must be real, got {array.dtype}; {_advice(name, value)}")
    if hasattr(value, "dtype"):
        raise TypeError(f"`{name}` must be real, got {array.dtype}")
    raise TypeError(f"`{name}` (={shown(value)}) must be an array of real numbers")


def _advice(name: str, value: Any) -> str:
    """What to do with a table or a column of pandas that does not hold real numbers."""
    frame = value.to_frame() if hasattr(value, "to_frame") and value.ndim == 1 else value
    dates = [column for column, dtype in zip(frame.columns, frame.dtypes, strict=True) if getattr(dtype, "kind", "") in "mM"]
    if not dates:
        return f"try {name}.to_numpy(float)"
    column = name if frame is not value else f"{name}[{dates[0]!r}]"
    what = "it holds" if frame is not value else f"the column {dates[0]!r} holds"
    return f"{what} dates or times: make them numbers of a unit, such as ({column} - {column}.min()) / np.timedelta64(1, 'D')"


def _check_readable(name: str, value: Any, torch: bool) -> None:
    """Raise TypeError for arrays of other libraries whose memory does not hold their numbers, with what to do."""
    if torch and value.requires_grad:
        raise TypeError(f"`{name}` is a tensor that requires a gradient, which would be lost here; try {name}.detach()")
    if torch and value.is_complex():
        raise TypeError(f"`{name}` must be real, got {value.dtype}")
    if torch and value.is_neg():  # as the imaginary part of a conjugate: DLPack gives the memory without the sign
        raise TypeError(f"`{name}` is a tensor that is negated when it is read; try {name}.resolve_neg()")
    if any(kind.__name__ == "Tracer" for kind in type(value).__mro__):
        advice = "within jax.jit, jax.grad and jax.vmap, call chains.interop.as_jax(net)"
        raise TypeError(f"`{name}` is a tracer of JAX, which has no numbers yet: {advice}")
    if not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__dlpack__"):  # such as an array of dask
        raise TypeError(f"`{name}` (a {type(value).__name__}) has no memory to read: pass np.asarray({name})")


def _imported(name: str, value: Any) -> np.ndarray:
    torch, foreign = array_api_compat.is_torch_array(value), array_api_compat.is_array_api_obj(value)
    if foreign:
        _check_readable(name, value, torch)
    if "bfloat16" in (kind := str(getattr(value, "dtype", ""))):  # which NumPy lacks
        remedy = "float()" if torch else "astype(np.float32)"
        raise TypeError(f"`{name}` must be float32 or float64, got {kind}; try {name}.{remedy}")
    if foreign and not isinstance(value, (np.ndarray, np.generic)):
        device = array_api_compat.device(value)
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, AttributeError) as error:
            raise TypeError(f"`{name}` (a {type(value).__name__} on {device}) cannot be used from the CPU: {error}") from error
    try:
        return as_unmasked(name, value)
    except ValueError as error:
        hint = "; for a list of batches (x, t), `t` must be None" if isinstance(value, list) and name == "x" else ""
        raise ValueError(f"`{name}` cannot be made an array: {error}{hint}") from error
