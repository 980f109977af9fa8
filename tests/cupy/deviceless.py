"""cuDNN's own plans for a GPU that is not there: ``python -m tests.cupy.deviceless`` prints those of some networks as JSON.

The front end builds plans from a description of a device alone ("deviceless AoT compilation" in its documentation). The
library wants the driver's at hand, of which it calls nothing meanwhile: where there is none, an empty one is put in its place.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

import chains
from chains import Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, relu
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.cudnn import Cudnn, usable_cudnn
from chains.backends.cupy.kernels.library_convolutions import Convolved
from chains.backends.cupy_settings import Cupy
from chains.layers.base import Layer
from tests.cupy import emulated

H100 = {
    "deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 12090, "cudaDeviceId": 0, "pciDeviceId": 0,
    "multiProcessorCount": 132, "smCountOrigin": 0, "smClockRateKHz": 1980000, "warpSize": 32, "isTccDriver": 0,
    "supportCoopLaunch": 1, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0, "l2CacheSize": 52428800, "totalGlobalMem": 85017493504, "memoryBusWidth": 5120,
    "memClockRateKHz": 2619000,
}  # fmt: skip
DRIVER = ("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload")
DRIVER += ("cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled")

Images = tuple[tuple[Layer, ...], tuple[int, ...], int]
NETWORKS: dict[str, Images] = {
    "lenet5": (
        (Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 5, relu), MaxPool(2), Flatten(), Dense(256, 10)), (1, 28, 28), 2048
    ),
    "wide": (
        (Conv(3, 50, 3, relu, padding=1), Conv(50, 100, 3, relu, padding=1), Flatten(), Dense(102400, 10)), (3, 32, 32), 64
    ),
    "settings": (
        (
            Conv(4, 8, (3, 2), stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2)), Conv(8, 8, 3, groups=4),
            chains.ConvTranspose(8, 6, 3, stride=2, padding=1), Flatten(), Dense(1950, 3),
        ), (4, 17, 16), 7,
    ),
    "signal": ((Conv(8, 16, (5,), padding=2), Flatten(), Dense(1600, 3)), (8, 100), 5),
}  # fmt: skip


class Deviceless(Cudnn):
    """Plans for a device that is only described."""

    def _open(self) -> dict[str, Any]:
        return {"device_property": self._module.create_device_properties(json.dumps(H100))}


def driver() -> None:
    """Make sure that the driver's library, or an empty one of its name, is loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        text = "\n".join(f"int {name}(void) {{ return 100; }}" for name in DRIVER)
        ctypes.CDLL(str(emulated.built("libcuda", text, linked=["-Wl,-soname,libcuda.so.1"])), mode=ctypes.RTLD_GLOBAL)


def plans(cudnn: Cudnn, name: str, dtype: Any) -> list[list[Any]]:
    """What computes each convolution of a network's gradient: result, shape of the kernels, plan and workspace, or None."""
    layers, shape, batch = NETWORKS[name]
    program = Chain(*layers, input_shape=shape).program(CrossEntropyLoss(), dtype=dtype, target_shape=())
    rows: list[list[Any]] = []
    compiled = Compiled(program, convolutions=cudnn)
    compiled.scratch_plan(batch)
    for step, _ in compiled.at(batch):
        if isinstance(step, Convolved):
            plan = cudnn._plan(step.convolution)
            assert plan is not None
            result, kernels = "xwy"[step.convolution.result], step.convolution.shapes[1]
            rows.append([result, kernels, plan.graph.get_plan_name_at_index(plan.index), plan.workspace])
    assert len(rows) == sum(operation.name.startswith("convolve") for operation in program.operations)
    return rows


def main() -> None:
    driver()
    module = usable_cudnn()
    report = {"cuDNN": module.backend_version(), "front end": module.__version__, "plans": {}}
    for settings, dtype in ((Cupy(), np.float32), (Cupy("tf32"), np.float32), (Cupy(), np.float64)):
        for name in NETWORKS:
            rows = [plans(Deviceless(emulated.EmulatedDevice(), module, settings), name, dtype) for _ in range(2)]
            assert rows[0] == rows[1], "other plans the second time"
            report["plans"][f"{name}, {np.dtype(dtype)}, {settings.precision}"] = rows[0]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
