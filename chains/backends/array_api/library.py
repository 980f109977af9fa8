"""An array library on one device: the standard's functions, and the few that the standard lacks.

The standard (https://data-apis.org/array-api) has no strides, no error function and no sums into rows. `Library` does the last
two on the host. Its subclasses use the functions that a library has for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends.numpy.formulas import ufunc
from chains.program.operations import Window

Array = Any  # an array of the library

_COMPATIBLE = ("numpy", "torch", "cupy", "dask.array")  # array_api_compat adds what these lack
_ERF = {"torch": "torch", "cupy": "cupyx.scipy.special", "jax.numpy": "jax.scipy.special"}
_NARROW = {"float64": "float32", "int64": "int32"}
LIKELY = "such as 'torch:cpu', 'torch:cuda', 'cupy:cuda' or 'jax.numpy:cpu'"  # as `backend=`
_LIKELY = "such as 'torch', 'cupy', 'jax.numpy' or 'array_api_strict'"


class Library:
    """The functions of a namespace on a device; None is the library's default device."""

    has_strides = False  # whether there is `strided`

    def __init__(self, xp: Any, name: str, device: Any) -> None:
        self.xp, self.device = xp, device
        self.narrow = False  # whether there are no numbers of 64 bits, as on MPS; those of 32 bits then take their place
        self._dtypes: dict[np.dtype[Any], Any] = {}
        self._erf = importlib.import_module(_ERF[name]).erf if name in _ERF else None

    def dtype(self, dtype: np.dtype[Any]) -> Any:
        """The library's name of a type."""
        if dtype not in self._dtypes:
            self._dtypes[dtype] = getattr(self.xp, "bool" if dtype == np.bool_ else self._kept(dtype).name)
        return self._dtypes[dtype]

    def full(self, shape: tuple[int, ...], dtype: np.dtype[Any], value: float = 0) -> Array:
        """An array of equal numbers."""
        return self.xp.full(shape, value, dtype=self.dtype(dtype), device=self.device)

    def from_host(self, array: Any) -> Array:
        """A copy of a NumPy array."""
        array = np.asarray(array)
        return self.xp.asarray(np.array(array, self._kept(array.dtype)), device=self.device)

    def _kept(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(_NARROW.get(dtype.name, dtype)) if self.narrow else dtype

    def to_host(self, array: Array) -> np.ndarray:
        """The contents as a NumPy array, only to be read."""
        return np.asarray(array)

    def converted(self, array: Array, dtype: np.dtype[Any]) -> Array:
        """The array with another type; itself if it has the type."""
        wanted = self.dtype(dtype)
        return array if array.dtype == wanted else self.xp.astype(array, wanted)

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        """A view of a flat array; strides and offset in elements."""
        raise NotImplementedError

    def added(self, array: Array, key: Any, value: Array) -> Array:
        """The array with `value` added to ``array[key]``; perhaps the same array, changed."""
        array[key] = array[key] + value
        return array

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        """The table with each of the rows added to the row of its index."""
        sums = np.array(self.to_host(table))
        np.add.at(sums, self.to_host(index), self.to_host(rows))
        return self.from_host(sums)

    def convolution(self, name: str, window: Window, groups: int) -> Callable[..., Array] | None:
        """The library's own "conv2d", "conv2d_input" or "conv2d_weight" of padded images, with PyTorch's arguments; or None."""
        return None

    def erf(self, x: Array) -> Array:
        """The error function."""
        return self.from_host(ufunc("erf")(self.to_host(x))) if self._erf is None else self._erf(x)


class NumpyLike(Library):
    """NumPy and CuPy."""

    has_strides = True

    def to_host(self, array: Array) -> np.ndarray:
        return array.get() if hasattr(array, "get") else np.asarray(array)

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        tricks = importlib.import_module(f"{self.xp.__name__.removeprefix('array_api_compat.')}.lib.stride_tricks")
        return tricks.as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        sums = table.copy()
        self.xp.add.at(sums, index, rows)
        return sums


class Torch(Library):
    """PyTorch, on any of its devices."""

    has_strides = True

    def to_host(self, array: Array) -> np.ndarray:
        return array.detach().cpu().numpy()

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        return flat.as_strided(shape, strides, flat.storage_offset() + offset)

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        return table.index_add(0, index, rows)

    def convolution(self, name: str, window: Window, groups: int) -> Callable[..., Array] | None:
        torch = importlib.import_module("torch")
        function = getattr(torch.nn.functional if name == "conv2d" else torch.nn.grad, name)

        def call(*operands: Any) -> Array:
            with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
                return function(*operands, stride=window.stride, dilation=window.dilation, groups=groups)

        return call


class Jax(Library):
    """JAX, whose arrays never change."""

    def added(self, array: Array, key: Any, value: Array) -> Array:
        return array.at[key].add(value)

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        return table.at[index].add(rows)


_KINDS: dict[str, type[Library]] = {"numpy": NumpyLike, "cupy": NumpyLike, "torch": Torch, "jax.numpy": Jax}


def library(name: str, device: str | None) -> Library:
    """The array library of this name on a device. Raises ValueError if one of the two cannot be used."""
    try:
        xp = importlib.import_module(f"array_api_compat.{name}" if name in _COMPATIBLE else name)
        made = _KINDS.get(name, Library)(xp, name, None if device is None else _device(xp, name, device))
        made.to_host(made.from_host(np.zeros(1, np.float32)))
        made.narrow = not _has_float64(made)
    except Exception as error:  # each library raises its own errors for a device that it does not have
        where = "" if device is None else f" on the device {device!r}"
        likely = _LIKELY if device is None else LIKELY
        raise ValueError(f"the array library {name!r} cannot be used{where}: {error}; choose one {likely}") from error
    return made


def _has_float64(library: Library) -> bool:
    try:
        return str(library.from_host(np.zeros(1)).dtype).endswith("float64")
    except Exception:  # each library raises its own errors
        return False


def _device(xp: Any, name: str, device: str) -> Any:
    """The library's object for a device."""
    kind, _, number = device.partition(":")
    if name == "cupy":
        return xp.cuda.Device(int(number or 0))
    if name == "jax.numpy":
        return importlib.import_module("jax").devices(kind)[int(number or 0)]
    known = {} if name in _COMPATIBLE else {str(each): each for each in xp.__array_namespace_info__().devices()}
    return next((each for text, each in known.items() if device in text), device)
