"""The GPU's backends that `benchmarks.gpu` compares, by name, and what its rows need of a device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.problems import NoGpuError, Setting
from chains import backends
from chains.backends import Cupy
from chains.backends.cupy import CupyBackend
from chains.backends.cupy.device.interface import Device

FLOAT = np.dtype(np.float32)
PRECISIONS = ("float32", "tf32")
SETTINGS: dict[str, str | Cupy] = {
    "float32": "cupy",
    "tf32": Cupy("tf32"),
    "tuned": Cupy(convolutions="cudnn", tune=True),
    "tf32-tuned": Cupy("tf32", "cudnn", tune=True),
    "cudnn": Cupy(convolutions="cudnn"),
    "tf32-cudnn": Cupy("tf32", "cudnn"),
}
CONVOLUTIONS = tuple(SETTINGS)[2:]  # those of cuDNN
FUSED = {"one-kernel": True, "kernel-by-kernel": False}  # whether a program is one kernel wherever possible, or nowhere


def backend_name(name: str, setting: Setting) -> str | Cupy:
    """The `backend` of a network for a name of `SETTINGS` or `FUSED`; in a rehearsal, an emulated one."""
    if setting.tiny:
        emulated = {"one-kernel": name, "tf32": "emulated-tf32"}
        return emulated.get(name, "emulated-cudnn" if name in CONVOLUTIONS else "emulated")
    return SETTINGS.get(name, f"cupy-{name}")


def device_of(name: str, setting: Setting) -> Device:
    """The GPU with these settings. Raises ValueError where there is none."""
    if setting.tiny:
        from tests.cupy import emulated

        emulated.register(backends.registry._BACKENDS)
    else:
        for each, fused in FUSED.items():
            backends.registry._BACKENDS.setdefault(f"cupy-{each}", partial(_either_way, fused))
    return backends.backend(backend_name(name, setting)).on_device.device  # type: ignore[attr-defined]


def _either_way(fused: bool) -> CupyBackend:
    return CupyBackend(backends.backend("cupy").on_device.device, fused)  # type: ignore[attr-defined]


def facts(setting: Setting) -> dict[str, str]:
    """The machine as text by heading. Raises NoGpuError, which says what is missing, where no GPU can be used."""
    try:
        device_of("float32", setting)
    except ValueError as error:
        raise NoGpuError(str(error)) from error
    if setting.tiny:
        return {"gpu": "emulated by the processor: no figure means anything"}
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": f"{properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB",
        "cuda": f"runtime {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}, CuPy {cupy.__version__}",
    }


def convolver(device: Device) -> str:
    """Who does convolutions, as text."""
    return f"convolutions by {device.convolutions or 'kernels of this package'}"


def on_host(device: Device, array: Any) -> np.ndarray:
    """A copy of an array of the device."""
    result = np.empty(array.shape, array.dtype)
    device.assign(result, array)
    return result


def relative(found: Any, wanted: Any) -> float:
    """The largest error, relative to the largest number or to 1; infinite where one is not finite."""
    error = float(np.max(np.abs(np.asarray(found, np.float64) - wanted), initial=0.0))
    return error / max(1.0, float(np.max(np.abs(wanted), initial=0.0))) if np.isfinite(error) else np.inf


def near(found: Any, wanted: Any, tolerance: float) -> float:
    """The error of an array, as `relative` computes it. Raises AssertionError where it exceeds `tolerance`."""
    error = relative(found, wanted)
    if not error <= tolerance:
        raise AssertionError(f"an error of {error:.3g}, where {tolerance:.3g} is allowed: {found!r} instead of {wanted!r}")
    return error
