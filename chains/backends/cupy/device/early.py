"""Kernels that begin while the one before them ends: CUDA's programmatic dependent launch, from sm_90 on, in graphs.

A kernel that is launched so may have its blocks placed as soon as all blocks of the kernel before it have said so
(`griddepcontrol.launch_dependents`), and waits itself (`griddepcontrol.wait`) until that kernel is over and its results can be
seen. All kernels of `Source` wait before they touch memory, in every thread: so a kernel that is over has waited for the one
before it, and with that for all earlier ones. Only then do they let the next one begin.

CUDA promises this for a kernel behind a kernel. So the driver is asked for it within a graph alone, and there alone between two
kernels of this backend: products, convolutions and copies are waited for as before, and wait as before. CuPy's launches have no
attributes, so `cuLaunchKernelEx` is called directly. Three small kernels are tried first, against NumPy.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, "griddepcontrol".
"""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from chains.backends.cupy.source.commands import Pointers, Source, each_element
from chains.program.view import Buffer

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
LEAST_CAPABILITY = 9
LEAST_DRIVER = 12030  # whose graphs have edges of this kind
DEFINED = "#define EARLY\n"  # what makes kernels wait, in front of their text
TRIED = 1024  # elements of the kernels that are tried
ROUNDS = 2000  # that the first one is busy for


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint64 * 8)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"), *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


@cache
def driver() -> Any:
    """The driver's library, which CuPy has loaded. Raises OSError where there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class EarlyLaunch:
    """A launch of a kernel, by its handle, that may begin before the kernel in front of it is over."""

    def __init__(
        self, function: int, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic], shared: int
    ) -> None:
        self._function = ctypes.c_void_p(function)
        self._values = [np.array(argument) for argument in arguments]
        self._arguments = (ctypes.c_void_p * len(self._values))(*(value.ctypes.data for value in self._values))
        self._attribute = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION)
        self._attribute.value[0] = 1  # programmaticStreamSerializationAllowed, an int, with zeros behind it
        self._config = Config(*grid, 1, *block, 1, shared, None, ctypes.pointer(self._attribute), 1)

    def start(self, stream: int) -> None:
        """Launch it on a stream of the current context. Raises RuntimeError where the driver refuses."""
        self._config.stream = stream
        status = driver().cuLaunchKernelEx(ctypes.byref(self._config), self._function, self._arguments, None)
        if status:
            raise RuntimeError(f"cuLaunchKernelEx failed with the status {status}")


class EarlyLaunches:
    """Whether a device launches kernels so. It is found out once, by a trial, where it is `wanted`."""

    def __init__(self, device: Any, wanted: bool) -> None:
        self._device, self._wanted = device, wanted
        self._lock = threading.Lock()
        self._works: bool | None = None

    @property
    def work(self) -> bool:
        with self._lock:
            if self._works is None:
                self._works = self._wanted and self._possible() and self._tried()
            return self._works

    def give_up(self, why: str) -> None:
        """Launch no more so, and say why."""
        with self._lock:
            self._works = False
        _warn(why)

    def _possible(self) -> bool:
        cuda = self._device.cupy.cuda
        capable = int(cuda.Device().attributes["ComputeCapabilityMajor"]) >= LEAST_CAPABILITY
        return capable and int(cuda.runtime.driverGetVersion()) >= LEAST_DRIVER

    def _tried(self) -> bool:
        try:
            right = self._trial()
        except Exception:  # whatever the driver, CuPy or the compiler raise: kernels can wait for each other
            _warn(traceback.format_exc())
            return False
        if not right:
            _warn("three kernels that were tried gave wrong numbers")
        return right

    def _trial(self) -> bool:
        """Whether a graph of three kernels, of which each needs the one before it, gives what it must, again and again.

        The first changes x after some time, the second reads it in another order, the third overwrites it.
        """
        device, whole = self._device, np.dtype(np.uint32)
        x, y = (device.array(np.arange(TRIED, dtype=whole)) for _ in range(2))
        one, other = (Buffer(name, "state", whole, (TRIED,)) for name in "xy")
        busy = [
            "unsigned state = (unsigned)i;",
            f"for (int k = 0; k < {ROUNDS}; ++k) state = state * 1664525u + 1013904223u;",
            "{x}[i] = {x}[i] * 3u + (state & 1u);",
        ]
        bodies = busy, [f"{{y}}[i] = {{x}}[{TRIED - 1} - i] + 7u;"], [f"{{x}}[i] = {{y}}[(i + {TRIED // 2}) % {TRIED}] * 5u;"]
        source, launches = Source(), []
        for number, body in enumerate(bodies):
            pointers = Pointers()
            names = {"x": pointers(one, write=number != 1), "y": pointers(other, write=number == 1)}
            lines = each_element(str(TRIED), [line.format(**names) for line in body])
            launches.append(pointers.launch(source, "tried", lines, lambda batch: (TRIED // 256, 1)))
        functions = device.loaded(DEFINED + source.text(False), list(source.kernels.values()))
        addresses = {one: np.uint64(device.address(x)), other: np.uint64(device.address(y))}
        work = [
            device.launched(
                functions[launch.kernel.name], (TRIED // 256, 1), launch.block,
                [np.int32(1), *(addresses[buffer] for buffer in launch.buffers)], early=True,
            )
            for launch in launches
        ]  # fmt: skip
        replays = 3
        with device.running():
            for each in work:  # the first run loads the kernels
                each()
            graph = device.captured(work, early=True)
            for _ in range(replays):
                graph()
        found = np.empty(TRIED, whole)
        device.assign(found, x)
        return bool((found == _tried_result(1 + replays)).all())


def _tried_result(times: int) -> np.ndarray:
    """What x must be when the three kernels have run so many times."""
    x = state = np.arange(TRIED, dtype=np.uint32)
    for _ in range(ROUNDS):
        state = state * np.uint32(1664525) + np.uint32(1013904223)
    for _ in range(times):
        y = (x * np.uint32(3) + (state & np.uint32(1)))[::-1] + np.uint32(7)
        x = np.roll(y, -(TRIED // 2)) * np.uint32(5)
    return x


def _warn(why: str) -> None:
    text = "kernels cannot begin while the one before them ends; each waits until that is over, which takes longer"
    warnings.warn(f"{text}:\n{why}", RuntimeWarning, stacklevel=2)
