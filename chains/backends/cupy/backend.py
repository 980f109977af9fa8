"""Programs bound to a GPU's memory and run there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, Feed, Intake, caller_arrays
from chains.backends.cupy.bfloat16 import LARGE
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.cudnn import ALIGNMENT, Convolved, convolved
from chains.backends.cupy.device import Array, Device, Epilogue, Gemm, Work
from chains.backends.cupy.kernels import Fused, Launch, Product, Step
from chains.backends.cupy.one_kernel import OneKernel, one_kernel
from chains.backends.cupy.shares import Share, share_of, suits
from chains.backends.cupy.text import BFLOAT16, readable
from chains.program import Program
from chains.view import Buffer, View, concrete


class DeviceBackend(Backend):
    """Runs programs on arrays in a GPU's memory.

    `one_kernel`: whether to run a program as one kernel over tiles of samples; None does so where its parameters fit into a
    block's shared memory, True wherever that is possible, False nowhere.
    """

    name = "cupy"
    copied_bytes = 1 << 28

    def __init__(self, device: Device, one_kernel: bool | None = None) -> None:
        self.device = device
        self.one_kernel = one_kernel
        self._tiled: WeakKeyDictionary[Program, dict[Share, OneKernel | None] | None] = WeakKeyDictionary()
        self._compiled: WeakKeyDictionary[Program, dict[tuple[bool, bool], Compiled]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> DeviceBinding:
        device, names = self.device, convolved(program) & arrays.keys()
        aligned = all(device.address(arrays[name]) % ALIGNMENT == 0 for name in names if device.owns(arrays[name]))
        return DeviceBinding(device, self.steps(program, batch, aligned), batch, arrays, scratch)

    def prepare(self, program: Program) -> None:
        self.compile(program)

    def compile(self, program: Program, batch: int = 1, aligned: bool = True) -> Compiled:
        """The steps of a program and the text of its kernels, made the first time.

        Other ones for large batches where these get bfloat16 factors, and without cuDNN for arrays that it cannot take.
        """
        library = self.device.convolutions if aligned else None
        half = self.device.precision == "bf16" and batch >= LARGE
        key = library is None, half
        with self._lock:
            known = self._compiled.setdefault(program, {})
            if key not in known:
                known[key] = Compiled(program, None, library, epilogues=self.device.epilogues, half=half)
            return known[key]

    def steps(self, program: Program, batch: int, aligned: bool = True) -> Compiled:
        """The steps to run at a batch size: few kernels that do everything, or those of `compile`."""
        compiled = self.compile(program, batch, aligned)
        if self.one_kernel is False:
            return compiled
        with self._lock:
            if program not in self._tiled:
                self._tiled[program] = {} if suits(program) else None
            kept = self._tiled[program]
            if kept is None:
                return compiled
            share = share_of(program, batch)
            if share not in kept:
                kept[share] = one_kernel(program, share, self.device.shared_bytes, forced=self.one_kernel is True)
            return kept[share] or compiled

    def listing(self, program: Program) -> str:
        """The program, then its kernels in CUDA C."""
        return f"{program}\n\n{self.compile(program).text(1)}"

    def scratch_bytes(self, program: Program, batch: int) -> int:
        return self.steps(program, batch).plan(batch).nbytes(batch)

    def adopted(self, array: np.ndarray) -> Array:
        return self.device.contiguous(array)

    def allocate(self, nbytes: int) -> Array:
        return self.device.empty((nbytes,), np.uint8)

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        """Data sets of the host are streamed."""
        from chains.backends.cupy.feed import DeviceFeed
        from chains.backends.cupy.streaming import StreamedFeed

        assert isinstance(binding, DeviceBinding)
        streamed = not all(self.device.owns(array) for array in sources.values())
        return StreamedFeed(binding, sources, order) if streamed else DeviceFeed(binding, sources, order)

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        """Data sets on the GPU, if they fit there with room to spare, else where they are."""
        from chains.backends.cupy.streaming import fit

        if fit(self.device, data):
            kinds = {name: None if readable(array.dtype) else np.float32 for name, array in data.items()}
            try:
                return {name: self.device.contiguous(array, kinds[name]) for name, array in data.items()}
            except MemoryError:
                pass
        return {name: array if self.device.owns(array) else np.ascontiguousarray(array) for name, array in data.items()}

    def intake(self, binding: Binding, like: Arrays) -> Intake:
        from chains.backends.cupy.streaming import DeviceIntake

        assert isinstance(binding, DeviceBinding)
        return DeviceIntake(binding, like)

    def in_pieces(self, program: Program, batch: int, arrays: Arrays) -> bool:
        from chains.backends.cupy.pieces import in_pieces

        return in_pieces(self, program, batch, arrays)

    def running(self) -> AbstractContextManager[object]:
        return self.device.running()


class DeviceBinding(Binding):
    """A program with the arrays it works on: a list of `work` to start, which becomes one graph when it is run again."""

    def __init__(self, device: Device, compiled: Compiled, batch: int, arrays: Arrays, scratch: Any = None) -> None:
        self.program = compiled.program
        self.compiled = compiled
        self.batch = batch
        self.device = device
        self.arrays = device_arrays(device, self.program, batch, arrays)
        self._plan = compiled.plan(batch)
        nbytes = max(1, self._plan.nbytes(batch))
        self.scratch = device.empty((nbytes,), np.uint8) if scratch is None or scratch.nbytes < nbytes else scratch
        self._base = device.address(self.scratch)
        self._index: type[np.generic] = np.int64 if "long long Index" in compiled.text(batch) else np.int32
        kernels = list(compiled.source.kernels.values())
        functions = device.compile(compiled.text(batch), kernels)
        self._masks: set[Buffer] = set()  # those that a product fills
        self.work: list[Work] = [work for step in compiled.at(batch) for work in self._bound(step, functions)]
        self._graph: Work | None = None
        self._runs = 0

    def run(self) -> None:
        if self._graph is not None:
            self._graph()
            return
        self._runs += 1
        if self._runs == 2 and self.work:  # the first time, kernels are loaded, which a graph cannot wait for
            self._graph = self.device.capture(self.work)
            self._graph()
            return
        for each in self.work:
            each()

    def __call__(self) -> None:
        with self.device.running():
            self.run()

    def _bound(self, step: Step, functions: dict[str, Any]) -> list[Work]:
        """What does a step."""
        if isinstance(step, Launch):
            work = launch(self.device, step, functions, self.batch, self._index, self.address)
            return [] if work is None else [work]
        if isinstance(step, Product):
            return [self.device.product(self._gemm(step))]
        if isinstance(step, Convolved):
            return [self._convolution(step)]
        assert isinstance(step, Fused)
        work = self._fused(step)
        if work is not None:
            return [work]
        self.device.refused[step.kind] += 1
        return [each for plain in step.plain for each in self._bound(plain, functions)]

    def _fused(self, step: Fused) -> Work | None:
        """A product with its epilogue, None where the device refuses it, or that with the mask it needs."""
        mask = step.mask
        if mask is not None and mask.buffer in step.reads and mask.buffer not in self._masks:
            return None
        vector, bits = (None if view is None else self._place(view) for view in (step.vector, mask))
        leading = 0 if mask is None else 8 * mask.strides[0]
        work = self.device.fused(self._gemm(step.product), Epilogue(step.kind, vector, bits, leading))
        if work is not None and mask is not None:
            self._masks.add(mask.buffer)
        return work

    def _gemm(self, step: Product) -> Gemm:
        rows, columns, inner = step.sizes(self.batch)
        leading = (
            max(step.leading, columns),
            max(step.a.leading, rows if step.a.transposed else inner),
            max(step.b.leading, inner if step.b.transposed else columns),
        )
        return Gemm(
            step.out.dtype, (rows, columns, inner), self._addresses(step.out, step.a.view, step.b.view), leading,
            (step.a.transposed, step.b.transposed), step.accumulate, step.a.view.dtype == BFLOAT16,
        )  # fmt: skip

    def _convolution(self, step: Convolved) -> Work:
        assert self.device.convolutions is not None
        return self.device.convolutions.work(step.convolution, self._addresses(*step.views), self.address(step.workspace))

    def _addresses(self, *views: View) -> tuple[int, int, int]:
        first, second, third = map(self._place, views)
        return first, second, third

    def _place(self, view: View) -> int:
        return self.address(view.buffer) + view.offset * view.dtype.itemsize

    def address(self, buffer: Buffer) -> int:
        """Where a buffer of the program begins."""
        if buffer.role == "scratch":
            return self._base + self._plan.offset(buffer, self.batch)
        return self.device.address(self.arrays[buffer.name])


def launch(
    device: Device,
    step: Launch,
    functions: dict[str, Any],
    batch: int,
    number: Callable[[int], np.generic],
    address: Callable[[Buffer], int],
    more: Sequence[int] = (),
) -> Work | None:
    """What does a step at a batch size, None where it is left out; `number` makes the kernels' numbers, with `more` last."""
    grid = step.grid(batch)
    if grid is None:
        return None
    addresses = [np.uint64(address(buffer)) for buffer in step.buffers]
    arguments = [number(batch), *addresses, *(number(n) for n in (*step.numbers(batch), *more))]
    return device.launch(functions[step.kernel.name], grid, step.block, arguments, step.shared)


def device_arrays(device: Device, program: Program, batch: int, arrays: Arrays) -> dict[str, Array]:
    """The caller's arrays by name, with constants, 1 / batch, and uninitialised arrays for those not given.

    Raises ValueError for an array that is not what its buffer wants: kernels would read and write beside it.
    """
    result = dict(arrays)
    for name, array in arrays.items():
        buffer = program.buffers[name]
        size = buffer.size * (batch if buffer.batched else 1)
        if not device.owns(array):
            raise ValueError(f"`{name}` is a {type(array).__name__}, but an array in the memory of the GPU is wanted")
        if array.size != size or array.dtype != buffer.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"`{name}` must be {size} contiguous {buffer.dtype} numbers, not {array.dtype} of shape {array.shape}"
            )
    for name, buffer in program.buffers.items():
        if buffer.role == "constant" or (buffer.data is not None and name not in result):
            assert buffer.data is not None
            result[name] = device.array(buffer.data)
        elif name == "inverse_batch":
            result[name] = device.array(np.array(1.0 / batch, program.dtype))
        elif name not in result:
            result[name] = device.empty(concrete(buffer.shape, batch), buffer.dtype)
    return result


class CupyBackend(Backend):
    """Runs programs on a GPU for arrays in the computer's memory, which are copied there and back at every run.

    `on_device` is the backend for arrays that already lie there; `one_kernel` as for that.
    """

    name = "cupy"

    def __init__(self, device: Device, one_kernel: bool | None = None) -> None:
        self.on_device = DeviceBackend(device, one_kernel)

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> HostBinding:
        return HostBinding(self.on_device, program, batch, arrays, scratch)

    def prepare(self, program: Program) -> None:
        self.on_device.prepare(program)

    def listing(self, program: Program) -> str:
        return self.on_device.listing(program)

    def scratch_bytes(self, program: Program, batch: int) -> int:
        return self.on_device.scratch_bytes(program, batch)

    def allocate(self, nbytes: int) -> Array:
        return self.on_device.allocate(nbytes)

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        from chains.backends.cupy.feed import HostFeed

        assert isinstance(binding, HostBinding)
        return HostFeed(binding, self.on_device.feed(binding.inner, sources, order), sources)

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        return self.on_device.sources(data)

    def intake(self, binding: Binding, like: Arrays) -> Intake:
        from chains.backends.cupy.streaming import HostIntake

        assert isinstance(binding, HostBinding)
        return HostIntake(binding, like)

    def running(self) -> AbstractContextManager[object]:
        return self.on_device.running()


class HostBinding(Binding):
    """A binding on the GPU with NumPy arrays before it: copied there before a run, and back after it."""

    def __init__(self, backend: DeviceBackend, program: Program, batch: int, arrays: Arrays, scratch: Any) -> None:
        self.program = program
        self.batch = batch
        self._device = device = backend.device
        if scratch is not None and not device.owns(scratch):
            scratch = device.array(scratch)
        self.inner = backend.bind(program, batch, {}, scratch)
        self.arrays = caller_arrays(program, batch, arrays)
        roles = {name: program.buffers[name].role for name in self.arrays}
        self._ins = [name for name, role in roles.items() if role in ("input", "state") and name != "inverse_batch"]
        self._outs = [name for name, role in roles.items() if role in ("output", "state")]

    def run(self) -> None:
        self.upload()
        self.inner.run()
        self.download()

    def __call__(self) -> None:
        with self._device.running():
            self.run()

    def upload(self, names: Sequence[str] | None = None) -> None:
        """Copy inputs and states, or those of these names, to the GPU."""
        for name in self._ins if names is None else names:
            self._device.assign(self.inner.arrays[name], self.arrays[name])

    def download(self, names: Sequence[str] | None = None) -> None:
        """Copy outputs and states, or those of these names, from the GPU."""
        for name in self._outs if names is None else names:
            self._device.assign(self.arrays[name], self.inner.arrays[name])
