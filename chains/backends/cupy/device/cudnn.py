"""Convolutions by cuDNN, through NVIDIA's front end `cudnn` (the package nvidia-cudnn-frontend).

An operation graph holds one convolution. It is built once for each shape, and the plan chosen for it is kept. Its workspace is
part of a program's scratch. Convolutions without a plan are left to the backend's own kernels and products.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chains.backends.cupy.device.cublas import load_for_cudnn
from chains.backends.cupy.device.interface import Convolution, Device, Sizes, Work
from chains.backends.cupy.device.packages import extra
from chains.backends.cupy_settings import Cupy

VERSIONS = ((1, 26), (1, 29))  # of the front end: from the first on, below the second
OLDEST = 90000  # version of cuDNN itself
NEEDS = "`convolutions` (='cudnn') needs"
WORKSPACE_BYTES = 256 << 20  # plans that need more are left out: an estimate, not measured on a GPU
ALIGNMENT = 16  # bytes: the alignment of every tensor in the front end

TYPES = {np.dtype(np.float32): "FLOAT", np.dtype(np.float64): "DOUBLE"}
# Notes of plans with fewer bits than float32, by precision, and of plans that may give other bits the next time.
LEFT_OUT = {
    "float32": ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC"),
    "tf32": ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC"),
}


@dataclass(frozen=True)
class Planned:
    """A plan of a graph, by its number, and the bytes of workspace it needs."""

    graph: Any
    index: int
    workspace: int


class Cudnn:
    """The plans of a device's convolutions: the first of cuDNN's ranking, or the fastest with the setting `tune`.

    If the settings name cuDNN, it warns about convolutions that it leaves to other kernels.
    """

    def __init__(self, device: Device, module: Any, settings: Cupy) -> None:
        self._device, self._module, self._settings = device, module, settings
        self._plans: dict[Convolution, Planned | None] = {}
        self._lock = threading.RLock()  # two threads must not use a handle at the same time
        self._target = self._open()

    def __str__(self) -> str:
        return f"cuDNN {self._module.backend_version()} through nvidia-cudnn-frontend {self._module.__version__}"

    def workspace(self, convolution: Convolution) -> int | None:
        """The bytes of workspace for the convolution; None if cuDNN does not do it."""
        plan = self._plan(convolution)
        return None if plan is None else plan.workspace

    def work(self, convolution: Convolution, addresses: tuple[int, ...], workspace: int) -> Work:
        """The work that starts the convolution of x, w and y at these addresses."""
        plan = self._plan(convolution)
        assert plan is not None
        return partial(self._start, plan, dict(enumerate(addresses, 1)), workspace)

    def _open(self) -> dict[str, Any]:
        """The handle of the current device, for which graphs are built."""
        return {"handle": self._module.create_handle()}

    def _start(self, plan: Planned, pointers: dict[int, int], workspace: int) -> None:
        handle = self._target["handle"]
        with self._lock:
            self._module.set_stream(handle=handle, stream=self._device.current_stream())
            plan.graph.execute_plan_at_index(pointers, workspace, plan.index, handle)

    def _plan(self, convolution: Convolution) -> Planned | None:
        with self._lock:
            if convolution not in self._plans:
                self._plans[convolution] = self._chosen(convolution)
            return self._plans[convolution]

    def _chosen(self, convolution: Convolution) -> Planned | None:
        if convolution.dtype not in TYPES:
            return None
        try:
            plans = self._built(self._graph(convolution))
            plan = self._fastest(convolution, list(plans)) if self._settings.tune else next(plans, None)
            reason = "no plan is left of those it has"
        except (self._module.cudnnGraphNotSupportedError, RuntimeError) as error:
            plan, reason = None, str(error)
        if plan is None and self._settings.convolutions == "cudnn":
            shapes = " ".join(map(str, convolution.shapes))
            warnings.warn(f"cuDNN does not do the convolution of {shapes}, other kernels do: {reason}", stacklevel=2)
        return plan

    def _graph(self, convolution: Convolution) -> Any:
        """The graph of the convolution, with cuDNN's ranking of plans."""
        module, window = self._module, convolution.window
        kind = getattr(module.data_type, TYPES[convolution.dtype])
        graph = module.pygraph(io_data_type=kind, intermediate_data_type=kind, compute_data_type=kind, **self._target)
        shapes, strides = ([list(sizes) for sizes in each] for each in (convolution.shapes, convolution.strides))
        x, w, y = (
            None
            if k == convolution.result
            else graph.tensor(dim=shapes[k], stride=strides[k], data_type=kind, name="xwy"[k], uid=k + 1)
            for k in range(3)
        )
        settings = {
            "pre_padding": [before for before, _ in window.padding],
            "post_padding": [after for _, after in window.padding],
            "stride": list(window.stride),
            "dilation": list(window.dilation),
            "compute_data_type": kind,
        }
        if convolution.result == 2:
            out = graph.conv_fprop(image=x, weight=w, **settings)
        elif convolution.result == 0:
            out = graph.conv_dgrad(loss=y, filter=w, **settings)
        else:
            out = graph.conv_wgrad(image=x, loss=y, **settings)
        out.set_output(True).set_data_type(kind).set_uid(convolution.result + 1)
        out.set_dim(shapes[convolution.result]).set_stride(strides[convolution.result])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        notes = LEFT_OUT[self._settings.precision]
        graph.deselect_numeric_notes([getattr(module.numerical_note, note) for note in notes])
        return graph

    def _built(self, graph: Any) -> Iterator[Planned]:
        """The plans that are allowed and can be built, the best first. Building one that was deselected fails."""
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except (self._module.cudnnGraphNotSupportedError, RuntimeError, ValueError):
                continue
            nbytes = graph.get_workspace_size_plan_at_index(index)
            if nbytes <= WORKSPACE_BYTES:
                yield Planned(graph, index, nbytes)

    def _fastest(self, convolution: Convolution, plans: list[Planned]) -> Planned | None:
        """The plan that takes the least time on arrays of zeros."""
        sizes = [
            _span(*each) * convolution.dtype.itemsize for each in zip(convolution.shapes, convolution.strides, strict=True)
        ]
        sizes.append(max([1, *(plan.workspace for plan in plans)]))
        memory = [self._device.array(np.zeros(size, np.uint8)) for size in sizes]
        *addresses, workspace = map(self._device.address, memory)
        pointers = dict(enumerate(addresses, 1))

        def seconds(plan: Planned) -> float:
            try:
                return self._device.seconds(partial(self._start, plan, pointers, workspace))
            except (self._module.cudnnGraphNotSupportedError, RuntimeError):
                return np.inf

        times = [seconds(plan) for plan in plans]
        return plans[times.index(min(times))] if times and min(times) < np.inf else None


def _span(shape: Sizes, strides: Sizes) -> int:
    """Elements from the first to the last, both included."""
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1


# Whether there is one


def chosen(device: Device, settings: Cupy) -> Cudnn | None:
    """cuDNN for a device; None if it was not chosen, or is optional and cannot be used.

    Without trials, kernels of this package do convolutions: the first plan of cuDNN's ranking took up to ten times as long on
    an H200. If cuDNN was chosen and cannot be used, raises ValueError with the missing part.
    """
    if settings.convolutions == "own" or (settings.convolutions == "auto" and not settings.tune):
        return None
    try:
        module = usable_cudnn()
        try:
            return Cudnn(device, module, settings)
        except RuntimeError as error:
            raise ValueError(f"{NEEDS} cuDNN, which cannot start: {error}") from error
    except ValueError:
        if settings.convolutions == "auto":
            return None
        raise


def usable_cudnn() -> Any:
    """The module `cudnn`. If it or cuDNN itself cannot be used, raises ValueError with the missing part."""
    load_for_cudnn()
    try:
        import cudnn
    except (ImportError, OSError, AssertionError) as error:
        raise ValueError(f"{NEEDS} nvidia-cudnn-frontend, which cannot be imported: {error!r}; {extra('cudnn')}") from error
    version = str(getattr(cudnn, "__version__", "of no version"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= numbers < VERSIONS[1]:
        raise ValueError(
            f"{NEEDS} nvidia-cudnn-frontend 1.26, 1.27 or 1.28, but the module `cudnn` is {version}; {extra('cudnn')}"
        )
    try:
        found = cudnn.backend_version()
    except RuntimeError as error:
        raise ValueError(f"{NEEDS} the library cuDNN, which cannot be loaded: {error}; {extra('cudnn')}") from error
    if found < OLDEST:
        raise ValueError(f"{NEEDS} cuDNN 9, but {found} was found; {extra('cudnn')}")
    return cudnn
