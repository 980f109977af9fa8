"""Checks of arrays and other arguments without a network: they become arrays that fit, or are refused with a message."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from chains.support.arrays import REAL, as_array
from chains.support.checks import check_count, is_masked_array, takes
from chains.support.memory import HOST, Memory, is_elsewhere, memory_of
from chains.support.messages import counted, shown

_PIECE_ELEMENTS = 1 << 16  # elements
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
ID_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


def to_device_of(p: Any, data: dict[str, Any], *, move: bool = True) -> dict[str, Any]:
    """The data in the memory of the parameters: copied to the GPU unless `move` is false.

    Raises TypeError if only the data are on a GPU.
    """
    place = memory_of(p)
    if place is HOST:
        for name, array in data.items():
            if type(array) is np.ndarray or not is_elsewhere(array):
                continue
            to_gpu, to_host = "pass cupy.asarray(p) to compute there", f"cupy.asnumpy({name})"
            raise TypeError(f"`{name}` is on the GPU and `p` in the computer's memory: {to_gpu}, or {to_host}")
        return data
    native = {name: array if place.owns(array) else _native(array) for name, array in data.items()}
    return {name: place.contiguous(array) for name, array in native.items()} if move else native


def _native(array: np.ndarray) -> np.ndarray:
    """The array in a type that GPUs support."""
    return array if array.dtype.isnative and array.dtype.itemsize <= 8 else array.astype(np.float64)


def array_of(name: str, value: Any) -> Any:
    """As `as_array`, which NumPy's own arrays do not need."""
    return value if type(value) is np.ndarray and value.dtype.kind in REAL else as_array(name, value)


def check_params(p: Any, size: int) -> np.ndarray:
    """`p` as a flat parameter vector of `size` entries. Raises TypeError or ValueError for anything else."""
    p = array_of("p", p)
    if p.shape != (size,):
        parameters = counted(size, "parameter")
        hint = "; of an ensemble, pass one row, P[k]" if p.shape[1:] == (size,) else ""
        raise ValueError(f"`p` must have shape ({size},), a vector of {parameters} of this network, got {p.shape}{hint}")
    if p.dtype not in DTYPES:
        raise TypeError(f"`p` must be float32 or float64, got {p.dtype}; try p.astype(np.float32)")
    if not p.flags.c_contiguous:
        raise ValueError("`p` must be contiguous, got a strided view; try np.ascontiguousarray(p)")
    return p


def check_state(state: Any, size: int, dtype: np.dtype[Any] | None, updated: bool, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """`state` as a network's state of this size and type (None: float32 or float64), which is read, or `updated` in place.

    Raises TypeError or ValueError if it does not fit, is not in the memory of the inputs, or overlaps one while updated.
    """
    state = as_array("state", _updatable("state", state) if updated else state)
    if state.shape != (size,):
        if not size:
            raise ValueError("`state` must be left out, since this network has none")
        raise ValueError(f"`state` must have shape ({size},), {counted(size, 'number')}, got {state.shape}")
    if state.dtype not in (DTYPES if dtype is None else (dtype,)):
        wanted = dtype or "float32 or float64"
        raise TypeError(f"`state` must be {wanted}, as `p`, got {state.dtype}; try state.astype(p.dtype)")
    if not state.flags.c_contiguous or (updated and not getattr(state.flags, "writeable", True)):
        raise ValueError("`state` must be contiguous, and writable where it is updated: pass a copy")
    beside = "p" if "p" in inputs else "x"
    if beside in inputs and memory_of(inputs[beside]) is not memory_of(state):
        move = "asarray" if memory_of(state) is HOST else "asnumpy"
        raise TypeError(f"`state` and `{beside}` are on different devices: pass cupy.{move}(state)")
    if updated:
        check_apart("state", state, inputs)
    return state


def _updatable(name: str, value: Any) -> Any:
    """`value`. Raises TypeError unless it is an array, of any library."""
    if not (isinstance(value, np.ndarray) or array_api_compat.is_array_api_obj(value)):
        raise TypeError(f"`{name}` must be an array, since it is updated in place, got a {type(value).__name__}")
    return value


def check_apart(name: str, updated: Any, others: dict[str, Any]) -> None:
    """Raise ValueError if an array that is updated in place overlaps one of the others in memory."""
    for other, array in others.items():
        if _overlap(memory_of(updated), updated, array):
            raise ValueError(f"`{name}` overlaps `{other}` in memory, but it is updated in place: pass a copy")


def check_trained(p: Any, size: int | None = None) -> np.ndarray:
    """`p` as a parameter vector that is updated in place. Raises TypeError or ValueError for anything else."""
    p = check_params(_updatable("p", p), math.prod(p.shape) if size is None else size)
    if isinstance(p, np.ndarray) and not p.flags.writeable:
        raise ValueError("`p` is read-only, but it is updated in place: pass a copy")
    return p


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """`dtype` as a NumPy type. Raises TypeError unless it is float32 or float64."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = None
    if known is None or known not in DTYPES:
        raise TypeError(f"`dtype` (={dtype!r}) must be float32 or float64")
    return known


def check_seed(seed: Any, also: str = "") -> int:
    """`seed` as a number of 64 bits. Raises TypeError or ValueError for anything else; `also` names other accepted kinds."""
    if type(seed) is int and 0 <= seed < 1 << 64:
        return seed
    seed = check_count("seed", seed, 0, also)
    if not seed < 1 << 64:
        raise ValueError(f"`seed` (={seed}) must be below 2**64")
    return seed


def check_functions(name: str, functions: Any, what: str, arguments: int) -> None:
    """Raise TypeError unless this is a sequence of functions with this number of arguments."""
    if not isinstance(functions, (list, tuple)):
        raise TypeError(f"`{name}` (={shown(functions)}) must be a list of {what}")
    for function in functions:
        fits = callable(function) and not isinstance(function, type)
        if not fits or not takes(function, arguments):
            why = f", which does not take {counted(arguments, 'argument')}" if fits else ""
            raise TypeError(f"`{name}` must hold {what}, got {shown(function)}{why}")


def check_input(x: Any, shape: tuple[int, ...], name: str = "x", what: str = "input", *, ids: int | None = None) -> np.ndarray:
    """`x` as a batch of arrays of this sample shape; with `ids`, its numbers must be ids below that.

    Raises TypeError or ValueError for anything else.
    """
    x = array_of(name, x)
    if x.shape[1:] != shape or x.ndim == 0:
        wanted = ", ".join(["batch", *map(str, shape)])
        hint = _hint(x.shape, shape, name)
        raise ValueError(f"`{name}` must have shape ({wanted}), a batch of the network's {what}s, got {x.shape}{hint}")
    if len(x) == 0:
        raise ValueError(f"`{name}` must hold at least one sample, got an empty batch of shape {x.shape}")
    if ids is not None:
        _check_ids(name, x, ids)
    return x


def _check_ids(name: str, x: Any, count: int) -> None:
    """Raise TypeError unless `x` holds whole numbers of 32 or 64 bits, ValueError unless all are from 0 to `count` - 1."""
    if x.dtype not in ID_TYPES:
        raise TypeError(f"`{name}` must hold ids, int32 or int64, got {x.dtype}; try {name}.astype(np.int64)")
    if x.size and not (x.min() >= 0 and x.max() < count):
        at = tuple(int(positions[0]) for positions in ((x < 0) | (x >= count)).nonzero())
        raise ValueError(f"`{name}` must hold ids from 0 to {count - 1}, got {int(x[at])} at index {at}")


def _hint(given: tuple[int, ...], shape: tuple[int, ...], name: str) -> str:
    """A hint how to give a batch, or one sample, this sample shape; empty if there is no way."""
    if given == shape:
        return f"; for one sample pass {name}[None]"
    if given == shape[1:] and shape[0] == 1:
        return f"; for one sample of one channel pass {name}[None, None]"
    last = (*shape[1:], *shape[:1])
    if len(shape) > 1 and given in (last, (*given[:1], *last)):
        batch = name if given != last else f"{name}[None]"
        return f"; here the channels are the last axis, but they come first: np.moveaxis({batch}, -1, 1)"
    if given[1:] == shape[1:] and shape[0] == 1:
        return f"; the single channel is an axis: {name}[:, None]"
    if len(given) == 2 and given[:1] == shape:
        return f"; samples are rows: {name}.T"
    if len(given) > 1 and math.prod(given[1:]) == math.prod(shape):
        lengths = ", ".join(map(str, shape)) or ""
        return f"; a sample has as many numbers: {name}.reshape(len({name}), {lengths}), where they are in that order"
    return ""


def check_batch(name: str, array: np.ndarray, batch: int, x: str = "x") -> None:
    """Raise ValueError unless there is an entry for each sample of the argument named `x`."""
    if array.ndim == 0 or len(array) != batch:
        samples = counted(batch, "sample")
        raise ValueError(f"`{name}` has shape {array.shape}, but `{x}` is a batch of {batch}: both need {samples}")


def check_out(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], inputs: dict[str, np.ndarray], name: str = "out"
) -> np.ndarray:
    """`out` as an array to fill. Raises TypeError or ValueError unless it lies where `p` does, fits, and overlaps no input."""
    place = HOST if "p" not in inputs else memory_of(inputs["p"])
    if not place.owns(out) or (place is HOST and is_elsewhere(out)) or is_masked_array(out):
        kind = "a NumPy array to fill" if place is HOST else "an array to fill on the GPU, where `p` lies"
        raise TypeError(f"`{name}` must be {kind}, got a {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(f"`{name}` must have shape {shape} and type {dtype}, got {out.shape} and {out.dtype}")
    if not getattr(out.flags, "writeable", True) or not out.flags.c_contiguous:
        raise ValueError(f"`{name}` must be a writable, contiguous array")
    owned = out.flags.owndata
    for other, array in inputs.items():
        apart = owned and array is not out and array.flags.owndata  # a quick test before that for shared memory
        if not apart and _overlap(place, out, array):
            raise ValueError(f"`{name}` overlaps `{other}` in memory; pass a separate array")
    return out


def _overlap(place: Memory, out: Any, array: Any) -> bool:
    """Whether two arrays may share memory."""
    if place is HOST or not place.owns(array):
        return np.may_share_memory(out, array) if place is HOST else False
    start, other = place.address(out), place.address(array)
    reach = sum((length - 1) * abs(step) for length, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return start < other + reach and other < start + out.nbytes


WEIGHTS_OF = {  # advice on targets that are NaN
    "t": "; a missing target has the weight 0 in `weights`",
    "validation[1]": "; a missing target has the weight 0 in `validation[3]`, of (x, t, lengths, weights)",
}


def check_finite(dtype: np.dtype, **arrays: np.ndarray | None) -> None:
    """Raise ValueError for an infinity, NaN or number beyond the range of `dtype`; the message names array and position."""
    for name, array in arrays.items():
        if array is None or array.dtype.kind != "f":
            continue
        fits = np.isfinite if array.dtype.itemsize <= dtype.itemsize else partial(_is_within, np.finfo(dtype).max)
        if not _all(fits, array):
            index = tuple(int(k) for k in np.argwhere(~fits(array))[0])
            wanted = f"within the range of {dtype}, the type of `p`" if np.isfinite(array[index]) else "finite"
            advice = WEIGHTS_OF.get(name, "") if np.isnan(array[index]) else ""
            raise ValueError(f"`{name}` must be {wanted}, got {array[index]} at index {index}{advice}")


def _is_within(largest: Any, array: np.ndarray) -> np.ndarray:
    """Where numbers are finite in a narrower type."""
    within: np.ndarray = abs(array) <= largest
    return within


def _all(fits: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> bool:
    """Whether all numbers fit. They are checked piece by piece, so that each piece stays in the cache."""
    if array.size <= _PIECE_ELEMENTS or not isinstance(array, np.ndarray):
        return bool(fits(array).all())
    rows = max(1, _PIECE_ELEMENTS * len(array) // array.size)
    return all(fits(array[start : start + rows]).all() for start in range(0, len(array), rows))


def check_mode(mode: str) -> bool:
    """Whether the mode is "train". Raises ValueError unless it is "train" or "eval"."""
    if not isinstance(mode, str) or mode not in ("train", "eval"):
        raise ValueError(f"`mode` (={mode!r}) must be 'train' or 'eval'")
    return mode == "train"
