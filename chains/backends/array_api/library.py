"""An array library on one device: the standard's functions, and the few that the standard lacks.

The standard (https://data-apis.org/array-api) has no strides, no error function and no sums into rows. `Library` does the last
two on the host. Its subclasses use the functions that a library has for them.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends.numpy.formulas import ufunc
from chains.program.operations import Window
from chains.support.messages import listed

Array = Any  # an array of the library

_COMPATIBLE = ("numpy", "torch", "cupy", "dask.array")  # array_api_compat adds what these lack
_ERF = {"torch": "torch", "cupy": "cupyx.scipy.special", "jax.numpy": "jax.scipy.special"}
_NARROW = {"float64": "float32", "int64": "int32"}
LIKELY = "such as 'torch:cpu', 'torch:cuda', 'cupy:cuda' or 'jax.numpy:cpu'"  # as `backend=`
_LIKELY = "such as 'torch', 'cupy', 'jax.numpy' or 'array_api_strict'"


class Library:
    """The functions of a namespace on a device; None is the library's default device.

    `strided(flat, shape, strides, offset)` is a view of a flat array, with strides and offset in elements; None if the library
    has no such views. `narrow`: whether there are no numbers of 64 bits, as on MPS; those of 32 bits then take their place.
    """

    strided: Callable[..., Array] | None = None

    def __init__(self, xp: Any, name: str, device: Any) -> None:
        self.xp, self.device, self.narrow = xp, device, False
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
        if self.narrow and array.dtype == np.int64:  # far indices stay out of range
            array = array.clip(-(2**31), 2**31 - 1)
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

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        """The table with each of the rows added to the row of its index."""
        sums = np.array(self.to_host(table))
        np.add.at(sums, self.to_host(index), self.to_host(rows))
        return self.from_host(sums)

    def convolution(self, name: str, window: Window, groups: int) -> Callable[..., Array] | None:
        """The library's own "conv2d", "conv2d_input" or "conv2d_weight", of arrays and shapes as PyTorch's; or None."""
        return None

    def max_pool(self, window: Window) -> tuple[Callable[..., Array], Callable[..., Array]] | None:
        """The library's own pool by the largest, of x, and its gradient, of dy, x and y; or None."""
        return None

    def erf(self, x: Array) -> Array:
        """The error function."""
        return self.from_host(ufunc("erf")(self.to_host(x))) if self._erf is None else self._erf(x)


class NumpyLike(Library):
    """NumPy and CuPy."""

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

    def to_host(self, array: Array) -> np.ndarray:
        return array.detach().cpu().numpy()

    def strided(self, flat: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        return flat.as_strided(shape, strides, flat.storage_offset() + offset)

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        return table.index_add(0, index, rows)

    def convolution(self, name: str, window: Window, groups: int) -> Callable[..., Array] | None:
        torch = importlib.import_module("torch")
        function = getattr(torch.nn.functional if name == "conv2d" else torch.nn.grad, name)
        backwards, (pad, crop) = name == "conv2d_input", _padders(torch, window)

        def call(first: Any, *rest: Array) -> Array:
            if backwards:  # then the first operand is the shape of the images
                first = (*first[:2], *(size + sum(sides) for size, sides in zip(first[2:], window.padding, strict=True)))
            with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
                first = first if backwards else pad(first)
                result = function(first, *rest, stride=window.stride, dilation=window.dilation, groups=groups)
            return crop(result) if backwards else result

        return call

    def max_pool(self, window: Window) -> tuple[Callable[..., Array], Callable[..., Array]] | None:
        torch = importlib.import_module("torch")
        pad, crop = _padders(torch, window)

        def pool(x: Array) -> Any:
            images, settings = pad(x, value=-np.inf), (window.size, window.stride, 0, window.dilation)
            return images, *torch.nn.functional.max_pool2d(images, *settings, return_indices=True)

        def gradient(dy: Array, x: Array, y: Array) -> Array:
            images, _, places = pool(x)  # where several are the largest, the first one
            shares = torch.where(y == y, dy, 0.0)  # NaN is no largest entry
            dx = torch.zeros_like(images).flatten(2).scatter_add(2, places.flatten(2), shares.flatten(2))
            return crop(dx.reshape(images.shape))

        return lambda x: pool(x)[1], gradient


def _padders(torch: Any, window: Window) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """The functions of PyTorch that pad images for a window, and that crop them."""
    border = [size for sides in reversed(window.padding) for size in sides]
    if not any(border):
        return (lambda images, value=0.0: images), lambda images: images
    pad = torch.nn.functional.pad
    return (lambda images, value=0.0: pad(images, border, value=value)), lambda images: pad(images, [-size for size in border])


class Jax(Library):
    """JAX, whose arrays never change."""

    def scattered(self, table: Array, index: Array, rows: Array) -> Array:
        return table.at[index].add(rows)


_KINDS: dict[str, type[Library]] = {"numpy": NumpyLike, "cupy": NumpyLike, "torch": Torch, "jax.numpy": Jax}


def library(name: str, device: str | None) -> Library:
    """The array library of this name on a device. Raises ValueError if one of the two cannot be used."""
    where, choice = ("", f"; choose one {_LIKELY}") if device is None else (f" on the device {device!r}", "")
    try:
        xp = importlib.import_module(f"array_api_compat.{name}" if name in _COMPATIBLE else name)
        made = _KINDS.get(name, Library)(xp, name, None if device is None else _device(xp, name, device))
        made.to_host(made.full((1,), np.dtype(np.float32)) + made.from_host(np.ones(1, np.float32)))
    except Exception as error:  # each library raises its own errors
        raise ValueError(f"the array library {name!r} cannot be used{where}: {error}{choice}") from error
    try:
        made.narrow = not str(made.from_host(np.zeros(1)).dtype).endswith("float64")
    except Exception:
        made.narrow = True
    return made


def _device(xp: Any, name: str, device: str) -> Any:
    """The library's object for a device: the first one for a kind such as "cuda"."""
    kind, jax = "cuda" if name == "cupy" else device.partition(":")[0], name == "jax.numpy"
    with warnings.catch_warnings(action="ignore"):  # of PyTorch, about kinds that it once had
        found = importlib.import_module("jax").devices(kind) if jax else xp.__array_namespace_info__().devices()
    known = {f"{kind}:{each.id}" if hasattr(each, "id") else str(each): each for each in found}
    for text, each in known.items():
        if text == device or text.startswith(f"{device}:") or f"'{device}'" in text:
            return each
    raise ValueError(f"there is {listed(repr(f'{name}:{text}') for text in known if text != 'meta')}")
