"""Convolutions by cuDNN, through NVIDIA's front end `cudnn` (the package nvidia-cudnn-frontend).

An operation graph holds one convolution, with a bias and relu behind it where they go along. It is built once for each shape,
and the plan chosen for it is kept. Its workspace is part of a program's scratch. What cuDNN has no plan for is left to the
backend's own kernels and products. cuDNN says nothing about NaN in relu, so that each plan with relu is tried with one.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from chains.backends.cupy.device.interface import Convolution, Device, Sizes, Work
from chains.backends.cupy.device.libraries import load_for_cudnn
from chains.backends.cupy.source.c_source import BFLOAT16, FLOAT16, half_name

VERSIONS = ((1, 26), (1, 29))  # of the front end: from the first on, below the second
OLDEST = 90000  # version of cuDNN itself
INSTALL = "pip install 'nvidia-cudnn-frontend>=1.26,<1.29' nvidia-cudnn-cu12 (nvidia-cudnn-cu13 beside cupy-cuda13x)"
WORKSPACE_BYTES = 256 << 20  # plans that need more are left out: an estimate, not measured on a GPU
ALIGNMENT = 16  # bytes: where the front end expects every tensor to begin
TIMED = ("timed", "cudnn-timed", "cudnn-fastest")  # choices that try plans out
OPTIONAL = ("auto", "timed")  # choices that go on without cuDNN

BIAS = 4  # the number of a bias among a graph's tensors; x, w and y have 1, 2 and 3

TYPES = {np.dtype(np.float32): "FLOAT", np.dtype(np.float64): "DOUBLE", FLOAT16: "HALF", BFLOAT16: "BFLOAT16"}
INEXACT = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")  # notes of plans with fewer bits than float32
LEFT_OUT = {"float32": INEXACT, "tf32": INEXACT[1:], "f16": INEXACT, "bf16-activations": INEXACT}  # by precision
HALF_LEFT_OUT = INEXACT[1:]  # for types of 16 bits, which tensor cores take as they are; they take float32 as TF32


@dataclass(frozen=True)
class Planned:
    """A plan of a graph, by its number, and the bytes of workspace it needs."""

    graph: Any
    index: int
    workspace: int


class Cudnn:
    """The plans of a device's convolutions. `choice` says how one is taken for each:

    "auto" and "cudnn": the first of cuDNN's own ranking; "timed" and "cudnn-timed": the fastest when tried out;
    "cudnn-fastest": that, also among plans that may give other bits the next time. Those that name cuDNN warn of what they
    leave to other kernels.
    """

    def __init__(self, device: Device, module: Any, precision: str = "float32", choice: str = "auto") -> None:
        self._device, self._module, self._choice = device, module, choice
        self.tries = choice in TIMED
        self._tensor_cores = "TENSOR_CORE" not in LEFT_OUT[precision]
        self._quicker: dict[Convolution, bool] = {}
        self._inexact = LEFT_OUT[precision]
        self._unstable = [] if choice == "cudnn-fastest" else ["NONDETERMINISTIC"]
        self._plans: dict[Convolution, Planned | None] = {}
        self._lock = threading.RLock()  # one handle must not be used by two threads at once
        self._target = self._open()

    def __str__(self) -> str:
        return f"cuDNN {self._module.backend_version()} through nvidia-cudnn-frontend {self._module.__version__}"

    def workspace(self, convolution: Convolution) -> int | None:
        """Bytes of workspace that the convolution needs, None where cuDNN does not do it."""
        plan = self._plan(convolution)
        return None if plan is None else plan.workspace

    def wants_last(self, dtype: np.dtype[Any]) -> bool:
        """Whether images and kernels of this type are best stored with the channels innermost: those for tensor cores."""
        return bool(half_name(dtype)) or (self._tensor_cores and dtype == np.float32)

    def quicker(self, convolution: Convolution, work: Work, plain: Sequence[Work]) -> bool:
        """Whether the work of a convolution takes no longer than other work for the same, as tried out the first time."""
        with self._lock:
            if convolution not in self._quicker:
                seconds = self._device.seconds
                self._quicker[convolution] = seconds(work) <= seconds(partial(_one_by_one, plain))
            return self._quicker[convolution]

    def work(self, convolution: Convolution, addresses: tuple[int, ...], workspace: int) -> Work:
        """What starts the convolution of x, w and y at these addresses, and of the bias where one goes along."""
        plan = self._plan(convolution)
        assert plan is not None
        return partial(self._start, plan, dict(enumerate(addresses, 1)), workspace)

    def _open(self) -> dict[str, Any]:
        """What graphs are built for: the current device, by a handle."""
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
            if convolution.after.startswith("relu"):
                plans = (plan for plan in plans if self._keeps_nan(convolution, plan))
            plan = self._fastest(convolution, list(plans)) if self.tries else next(plans, None)
            reason = "no plan is left of those it has"
        except (self._module.cudnnGraphNotSupportedError, RuntimeError) as error:
            plan, reason = None, str(error)
        if plan is None and self._choice not in OPTIONAL and not convolution.after:
            shapes = " ".join(map(str, convolution.shapes))
            warnings.warn(f"cuDNN does not do the convolution of {shapes}, other kernels do: {reason}", stacklevel=2)
        return plan

    def _graph(self, convolution: Convolution) -> Any:
        """The graph of the convolution, with cuDNN's ranking of plans."""
        module, window = self._module, convolution.window
        kind, compute = self._types(convolution)
        graph = module.pygraph(io_data_type=kind, intermediate_data_type=compute, compute_data_type=compute, **self._target)
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
            "compute_data_type": compute,
        }
        if convolution.result == 2:
            out = self._followed(graph, convolution, graph.conv_fprop(image=x, weight=w, **settings))
        elif convolution.result == 0:
            out = graph.conv_dgrad(loss=y, filter=w, **settings)
        else:
            out = graph.conv_wgrad(image=x, loss=y, **settings)
        out.set_output(True).set_data_type(kind).set_uid(convolution.result + 1)
        out.set_dim(shapes[convolution.result]).set_stride(strides[convolution.result])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        notes = [*(HALF_LEFT_OUT if half_name(convolution.dtype) else self._inexact), *self._unstable]
        graph.deselect_numeric_notes([getattr(module.numerical_note, note) for note in notes])
        return graph

    def _followed(self, graph: Any, convolution: Convolution, y: Any) -> Any:
        """What follows the convolution's result in the graph."""
        if not convolution.after:
            return y
        (kind, compute), channels = self._types(convolution), convolution.shapes[2][1]
        shape, strides = [1, channels, 1, 1], [channels, 1, 1, 1]
        bias = graph.tensor(dim=shape, stride=strides, data_type=kind, name="bias", uid=BIAS)
        y = graph.bias(input=y, bias=bias, compute_data_type=compute)
        return graph.relu(input=y, compute_data_type=compute) if convolution.after == "relu_bias" else y

    def _types(self, convolution: Convolution) -> tuple[Any, Any]:
        """The front end's types of arrays, and of what is computed with them."""
        kinds = self._module.data_type
        kind = getattr(kinds, TYPES[convolution.dtype])
        return kind, kinds.FLOAT if half_name(convolution.dtype) else kind

    def _built(self, graph: Any) -> Iterator[Planned]:
        """The plans that the choice allows and that can be built, the best first. Building one that was deselected fails."""
        for index in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(index)
            except (self._module.cudnnGraphNotSupportedError, RuntimeError, ValueError):
                continue
            nbytes = graph.get_workspace_size_plan_at_index(index)
            if nbytes <= WORKSPACE_BYTES:
                yield Planned(graph, index, nbytes)

    def _keeps_nan(self, convolution: Convolution, plan: Planned) -> bool:
        """Whether relu lets NaN through, as it does in all other kernels: zeros are convolved, and the bias is NaN."""
        memory, pointers = self._zeros(convolution, [plan])
        self._device.assign(memory[BIAS - 1], _nans(convolution.shapes[2][1], convolution.dtype))
        try:
            self._device.seconds(partial(self._start, plan, pointers, self._device.address(memory[-1])), 0)
        except (self._module.cudnnGraphNotSupportedError, RuntimeError):
            return False
        found = np.empty(memory[2].size, np.uint8)
        self._device.assign(found, memory[2])
        is_bfloat16 = convolution.dtype == BFLOAT16
        numbers = found.view(np.uint16).astype(np.uint32) << 16 if is_bfloat16 else found
        real = numbers.view(np.float32 if is_bfloat16 else convolution.dtype)
        strides = [stride * real.itemsize for stride in convolution.strides[2]]
        return bool(np.isnan(as_strided(real, convolution.shapes[2], strides)).all())

    def _zeros(self, convolution: Convolution, plans: Sequence[Planned]) -> tuple[list[Any], dict[int, int]]:
        """Memory of zeros for a convolution's arrays, the bias and the workspace of any of these plans, and the pointers."""
        itemsize = convolution.dtype.itemsize
        sizes = [_span(*each) * itemsize for each in zip(convolution.shapes, convolution.strides, strict=True)]
        sizes += [convolution.shapes[2][1] * itemsize] if convolution.after else []
        sizes.append(max([1, *(plan.workspace for plan in plans)]))
        memory = [self._device.array(np.zeros(size, np.uint8)) for size in sizes]
        return memory, dict(enumerate(map(self._device.address, memory[:-1]), 1))

    def _fastest(self, convolution: Convolution, plans: list[Planned]) -> Planned | None:
        """The plan that takes the least time on arrays of zeros."""
        memory, pointers = self._zeros(convolution, plans)
        workspace = self._device.address(memory[-1])

        def seconds(plan: Planned) -> float:
            try:
                return self._device.seconds(partial(self._start, plan, pointers, workspace))
            except (self._module.cudnnGraphNotSupportedError, RuntimeError):
                return np.inf

        times = [seconds(plan) for plan in plans]
        return plans[times.index(min(times))] if times and min(times) < np.inf else None


def _nans(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """The bytes of so many NaN."""
    bits = np.full(count, 0x7FC0, np.uint16) if dtype == BFLOAT16 else np.full(count, np.nan, dtype)
    return bits.view(np.uint8)


def _one_by_one(work: Sequence[Work]) -> None:
    for each in work:
        each()


def _span(shape: Sizes, strides: Sizes) -> int:
    """Elements from the first to the last, both included."""
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1


# Whether there is one


def chosen(device: Device, precision: str, choice: str) -> Cudnn | None:
    """cuDNN for a device, None where convolutions are done without it: by choice, or where it is optional and cannot be used.

    Raises ValueError, saying what is missing, for the other choices.
    """
    if choice == "products" or (choice in OPTIONAL and precision not in LEFT_OUT):
        return None
    try:
        module = usable_cudnn()
        try:
            return Cudnn(device, module, precision, choice)
        except RuntimeError as error:
            raise ValueError(f"`backend` (='cupy-cudnn') cannot start cuDNN: {error}") from error
    except ValueError:
        if choice in OPTIONAL:
            return None
        raise


def usable_cudnn() -> Any:
    """The module `cudnn`. Raises ValueError, saying what is missing, where it or the library behind it cannot be used."""
    needs = "`backend` (='cupy-cudnn') needs"
    load_for_cudnn()
    try:
        import cudnn
    except (ImportError, OSError, AssertionError) as error:
        raise ValueError(f"{needs} nvidia-cudnn-frontend, which cannot be imported: {error!r}; {INSTALL}") from error
    version = str(getattr(cudnn, "__version__", "of no version"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= numbers < VERSIONS[1]:
        raise ValueError(f"{needs} nvidia-cudnn-frontend 1.26, 1.27 or 1.28, but the module `cudnn` is {version}; {INSTALL}")
    try:
        found = cudnn.backend_version()
    except RuntimeError as error:
        raise ValueError(f"{needs} the library cuDNN, which cannot be loaded: {error}; {INSTALL}") from error
    if found < OLDEST:
        raise ValueError(f"{needs} cuDNN 9, but {found} was found; {INSTALL}")
    return cudnn
