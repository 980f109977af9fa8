"""cuDNN's front end without cuDNN: graphs of one convolution, checked as the documentation states them, done by NumPy.

Behind the forward operation, a bias and then relu may follow.

What it refuses is what cuDNN 9.28 with nvidia-cudnn-frontend 1.26 to 1.28 refuses, and what their documentation forbids.
Each graph has five plans, in this order: one that computes with fewer bits, one that is never the same twice, one that needs
too much workspace, one that cannot be built, and two that are right, of which the second is the quicker one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

TYPES = {"FLOAT": np.float32, "DOUBLE": np.float64}
STREAM = 0x57EA  # the handle of the stream that everything has to go to
NOTES = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "STRICT_NAN_PROP")


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - the front end's name
    """What the front end raises where no plan fits."""


@dataclass(frozen=True)
class Engine:
    """A way to compute: what is noted of it, bytes of workspace for each byte of result, and the seconds it counts as."""

    notes: tuple[str, ...] = ()
    workspace: int = 2
    builds: bool = True
    seconds: float = 1.0


ENGINES = (
    Engine(("TENSOR_CORE",), seconds=2.0),
    Engine(("NONDETERMINISTIC",), seconds=1.0),
    Engine(workspace=1 << 30),
    Engine(builds=False),
    Engine(seconds=4.0),
    Engine(("STRICT_NAN_PROP",), workspace=0, seconds=3.0),
)
RIGHT, QUICKER = 4, 5


@dataclass
class Tensor:
    dim: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    data_type: str = ""
    uid: int = 0
    output: bool = False

    def set_output(self, output: bool) -> Tensor:
        self.output = output
        return self

    def set_data_type(self, data_type: str) -> Tensor:
        self.data_type = data_type
        return self

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def check(self) -> None:
        for numbers in (self.dim, self.stride):
            assert type(numbers) is list
            assert len(numbers) == 4, "images and kernels have four axes, whose lengths and strides must all be set"
            assert all(type(number) is int and number >= 1 for number in numbers)
        assert self.data_type in TYPES
        assert self.uid >= 1

    def at(self, address: int) -> np.ndarray:
        """The array there."""
        assert type(address) is int, "pointers are numbers"
        assert address % 16 == 0, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"
        dtype = np.dtype(TYPES[self.data_type])
        strides = tuple(stride * dtype.itemsize for stride in self.stride)
        span = sum((extent - 1) * stride for extent, stride in zip(self.dim, strides, strict=True)) + dtype.itemsize
        return np.ndarray(tuple(self.dim), dtype, (ctypes.c_char * span).from_address(address), 0, strides)


class Graph:
    """`cudnn.pygraph`; its methods must be called in the documented order."""

    def __init__(self, front: FrontEnd, *, io_data_type: str, intermediate_data_type: str, compute_data_type: str, handle: Any):
        assert io_data_type in TYPES
        assert intermediate_data_type == compute_data_type == io_data_type
        assert handle in front.handles
        self.front, self.compute = front, compute_data_type
        self.tensors: dict[str, Tensor] = {}
        self.barred: set[str] = set()
        self.built: set[int] = set()
        self.stage = "new"
        front.graphs.append(self)

    def tensor(self, *, dim: list[int], stride: list[int], data_type: str, name: str, uid: int) -> Tensor:
        assert all(uid != other.uid for other in self.tensors.values())
        tensor = Tensor(dim, stride, data_type, uid)
        self.tensors[name] = tensor
        return tensor

    def conv_fprop(self, *, image: Tensor, weight: Tensor, **settings: Any) -> Tensor:
        return self._convolution("y", settings, x=image, w=weight)

    def conv_dgrad(self, *, loss: Tensor, filter: Tensor, **settings: Any) -> Tensor:
        return self._convolution("x", settings, y=loss, w=filter)

    def conv_wgrad(self, *, image: Tensor, loss: Tensor, **settings: Any) -> Tensor:
        return self._convolution("w", settings, x=image, y=loss)

    def _convolution(self, result: str, settings: dict[str, Any], **given: Tensor) -> Tensor:
        assert all(self.tensors[name] is tensor for name, tensor in given.items())
        assert settings.pop("compute_data_type") == self.compute
        assert set(settings) == {"pre_padding", "post_padding", "stride", "dilation"}
        for name, numbers in settings.items():
            assert type(numbers) is list
            assert len(numbers) == 2
            assert all(type(number) is int and number >= ("padding" not in name) for number in numbers)
        self.result, self.settings, self.tensors = result, settings, {**given, result: Tensor()}
        return self.tensors[result]

    def _go(self, before: str, after: str) -> None:
        assert self.stage == before, f"{after} does not come after {self.stage}"
        self.stage = after

    def validate(self) -> None:
        self._go("new", "validated")
        out = self.tensors[self.result]
        assert out.output, "a tensor that is no output is virtual, and needs no memory"
        for tensor in self.tensors.values():
            tensor.check()
        assert len({tensor.uid for tensor in self.tensors.values()}) == 3

    def build_operation_graph(self) -> None:
        self._go("validated", "operations")
        x, w, y = (self.tensors[name].dim for name in "xwy")
        if self.front.broken:
            raise RuntimeError("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED")
        before, after, stride, dilation = (self.settings[k] for k in ("pre_padding", "post_padding", "stride", "dilation"))
        for k in range(2):
            span = (w[2 + k] - 1) * dilation[k] + 1
            if y[2 + k] != (x[2 + k] + before[k] + after[k] - span) // stride[k] + 1:
                raise RuntimeError("CUDNN_STATUS_BAD_PARAM: !is_valid_spatial_dim")
        assert x[0] == y[0]
        assert w[0] == y[1]
        assert x[1] % w[1] == 0

    def create_execution_plans(self, modes: list[str]) -> None:
        self._go("operations", "planned")
        assert modes == ["A", "FALLBACK"]
        if self.front.refuses(self):
            raise cudnnGraphNotSupportedError("No valid engine configs")

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self.stage == "planned", "there is nothing to deselect yet"
        self.barred |= set(notes)

    def get_execution_plan_count(self) -> int:
        return len(ENGINES)

    def build_plan_at_index(self, index: int) -> None:
        assert self.stage == "planned"
        if self.barred & set(ENGINES[index].notes):
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        if not ENGINES[index].builds:
            raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        out = self.tensors[self.result]
        return ENGINES[index].workspace * int(np.prod(out.dim)) * np.dtype(TYPES[out.data_type]).itemsize

    def execute_plan_at_index(self, pointers: dict[int, int], workspace: int, index: int, handle: Any) -> None:
        assert index in self.built
        assert self.front.streams[handle] == self.front.stream()
        assert set(pointers) == {tensor.uid for tensor in self.tensors.values()}
        arrays = {name: tensor.at(pointers[tensor.uid]) for name, tensor in self.tensors.items()}
        if nbytes := self.get_workspace_size_plan_at_index(index):
            # Nothing that is still needed may be there.
            room = np.frombuffer((ctypes.c_char * nbytes).from_address(workspace), np.uint8)
            self.front.queue(partial(ctypes.memset, workspace, 0xFF, nbytes), "workspace", [], [room])
        reads = [array for name, array in arrays.items() if name != self.result]
        self.front.queue(partial(self._compute, arrays, index), "a convolution", reads, [arrays[self.result]])

    def _compute(self, arrays: dict[str, np.ndarray], index: int) -> None:
        self.front.executed.append((self.result, index))
        self.front.seconds += ENGINES[index].seconds
        factors = {name: array.astype(np.float64) for name, array in arrays.items() if name != self.result}
        if "TENSOR_CORE" in ENGINES[index].notes and self.tensors[self.result].data_type == "FLOAT":
            factors = {name: array.astype(np.float16).astype(np.float64) for name, array in factors.items()}
        computed = convolution(self.result, arrays[self.result].shape, self.settings, **factors)
        noise = np.random.default_rng().random(computed.shape) if "NONDETERMINISTIC" in ENGINES[index].notes else 0.0
        arrays[self.result][...] = computed + 1e-6 * noise


def convolution(result: str, shape: tuple[int, ...], settings: dict[str, Any], **given: np.ndarray) -> np.ndarray:
    """x, w or y of this shape from the two others, by definition: entry after entry of the window."""
    arrays = {**given, result: np.zeros(shape)}
    x, w, y = (arrays[name] for name in "xwy")
    (top, left), (down, right) = settings["pre_padding"], settings["post_padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, down), (left, right)))
    groups = x.shape[1] // w.shape[1]
    kernels, output = w.reshape(groups, -1, *w.shape[1:]), y.reshape(len(y), groups, -1, *y.shape[2:])
    for row, column in np.ndindex(*w.shape[2:]):
        at = [entry * dilation for entry, dilation in zip((row, column), settings["dilation"], strict=True)]
        rows, columns = (
            slice(start, start + (extent - 1) * stride + 1, stride)
            for start, extent, stride in zip(at, y.shape[2:], settings["stride"], strict=True)
        )
        seen = padded[:, :, rows, columns].reshape(len(x), groups, -1, *y.shape[2:])
        kernel = kernels[..., row, column]  # (groups, outputs, inputs)
        if result == "y":
            output += np.einsum("ngihw,goi->ngohw", seen, kernel)
        elif result == "w":
            kernel += np.einsum("ngihw,ngohw->goi", seen, output)
        else:
            seen = seen + np.einsum("ngohw,goi->ngihw", output, kernel)
            padded[:, :, rows, columns] = seen.reshape(len(x), -1, *y.shape[2:])
    if result == "x":
        return padded[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return arrays[result]


class FrontEnd:
    """The module `cudnn`."""

    __version__ = "1.28.0"
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError  # noqa: N815
    data_type = SimpleNamespace(**{name: name for name in TYPES})
    heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(**{note: note for note in NOTES})

    def __init__(self) -> None:
        self.handles: list[object] = []
        self.streams: dict[object, int] = {}
        self.graphs: list[Graph] = []
        self.queue: Callable[..., object] = lambda work, *touched: work()  # where computations go, and what they touch
        self.stream: Callable[[], int] = lambda: STREAM  # where everything has to go to
        self.executed: list[tuple[str, int]] = []
        self.seconds = 0.0  # of all computations
        self.broken = False
        self.refuses = lambda graph: False

    def backend_version(self) -> int:
        return 92800

    def create_handle(self) -> object:
        self.handles.append(object())
        return self.handles[-1]

    def set_stream(self, *, handle: object, stream: int) -> None:
        assert handle in self.handles
        self.streams[handle] = stream

    def pygraph(self, **settings: Any) -> Graph:
        return Graph(self, **settings)
