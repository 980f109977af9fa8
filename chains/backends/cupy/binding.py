"""A program bound to a GPU's memory: a list of work, which becomes one CUDA graph."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from chains.backends.base import Arrays, Binding, caller_arrays, check_arrays
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.interface import Device, Gemm, Uncaptured, Work
from chains.backends.cupy.kernels.library_convolutions import Convolved
from chains.backends.cupy.source.commands import Command, Launch, Product, Summed
from chains.program.operations import COMMUNICATOR, COMMUNICATOR_WORDS
from chains.program.program import Program
from chains.program.view import Buffer, View, concrete
from chains.support.memory import Array


class DeviceBinding(Binding):
    """A program and its arrays as a list of `work`, which becomes one CUDA graph when it runs again."""

    def __init__(self, device: Device, compiled: Compiled, batch: int, arrays: Arrays, scratch: Any = None) -> None:
        self.program = compiled.program
        self.compiled = compiled
        self.batch = batch
        self.device = device
        self.arrays = device_arrays(device, self.program, batch, arrays)
        self._plan = compiled.scratch_plan(batch)
        nbytes = max(1, self._plan.nbytes(batch))
        self.scratch = device.empty((nbytes,), np.uint8) if scratch is None or scratch.nbytes < nbytes else scratch
        self._base = device.address(self.scratch)
        self.index: type[np.generic] = np.int64 if "long long Index" in compiled.text(batch) else np.int32
        kernels = list(compiled.source.kernels.values())
        functions = device.compile(compiled.text(batch), kernels)
        self._steps: tuple[int, ...] = ()  # the current step of each loop around the command
        self.work: list[Work] = []
        for step, self._steps in compiled.at(batch):
            self.work += self._bound(step, functions)
        self._graph: Work | None = None
        self._runs = 0

    def run(self) -> None:
        if self._graph is not None:
            self._graph()
            return
        self._runs += 1
        if self._runs == 2 and self.work:  # the first run loads kernels, which a capture cannot do
            self._graph = as_graph(self.device, self.work)
            self._graph()
            return
        for each in self.work:
            each()

    def __call__(self) -> None:
        with self.device.running():
            self.run()

    def _bound(self, step: Command, functions: dict[str, Any]) -> list[Work]:
        """The work of a command."""
        if isinstance(step, Launch):
            work = launch(self.device, step, functions, self.batch, self.index, self.address)
            return [] if work is None else [work]
        if isinstance(step, Product):
            return [self.device.product(self._gemm(step))]
        if isinstance(step, Convolved):
            library = self.device.convolutions
            assert library is not None
            return [library.work(step.convolution, tuple(map(self._place, step.views)), self.address(step.workspace))]
        assert isinstance(step, Summed)
        words, count = self.arrays[step.words.name], step.out.sample_size
        return [self.device.all_reduce(words, step.out.dtype, count, self._place(step.a), self._place(step.out))]

    def _gemm(self, step: Product) -> Gemm:
        rows, columns, inner = step.sizes(self.batch)
        leading = (
            max(step.leading, columns),
            max(step.a.leading, rows if step.a.transposed else inner),
            max(step.b.leading, inner if step.b.transposed else columns),
        )
        return Gemm(
            step.out.dtype, (rows, columns, inner), self._addresses(step.out, step.a.view, step.b.view), leading,
            (step.a.transposed, step.b.transposed), step.accumulate,
        )  # fmt: skip

    def _addresses(self, *views: View) -> tuple[int, int, int]:
        first, second, third = map(self._place, views)
        return first, second, third

    def _place(self, view: View) -> int:
        return self.address(view.buffer) + view.offset * view.dtype.itemsize

    def address(self, buffer: Buffer) -> int:
        """The address of a buffer; of a stand-in for a buffer in a loop, the address of the part for the current step."""
        if buffer in self.compiled.advances:
            whole, moves = self.compiled.advances[buffer]
            offset = sum(step * move for step, move in zip(self._steps, moves, strict=False))
            return self.address(whole) + offset * whole.dtype.itemsize
        if buffer.role == "scratch":
            return self._base + self._plan.offset(buffer, self.batch)
        return self.device.address(self.arrays[buffer.name])


def as_graph(device: Device, work: Sequence[Work]) -> Work:
    """The work as one graph, or as one before and one after each part that must not be captured."""
    groups = [(alone, list(group)) for alone, group in groupby(work, lambda each: isinstance(each, Uncaptured))]
    parts = [each for alone, group in groups for each in (group if alone else [_captured(device, group)])]
    return parts[0] if len(parts) == 1 else _one_by_one(parts)


def _captured(device: Device, work: Sequence[Work]) -> Work:
    """The work as one graph. If it cannot be captured, a RuntimeWarning says why, and each part is started alone."""
    try:
        return device.capture(work)
    except Exception:  # any error of a library: the work can be done without a graph
        text = f"{len(work)} commands cannot be captured as a CUDA graph, and are started one by one, which takes longer"
        warnings.warn(f"{text}:\n{traceback.format_exc()}", RuntimeWarning, stacklevel=2)
    device.refused["graph"] += 1
    return _one_by_one(work)


def _one_by_one(work: Sequence[Work]) -> Work:
    def one_by_one() -> None:
        for each in work:
            each()

    return one_by_one


def launch(
    device: Device,
    step: Launch,
    functions: dict[str, Any],
    batch: int,
    number: Callable[[int], np.generic],
    address: Callable[[Buffer], int],
    more: Sequence[int] = (),
) -> Work | None:
    """The work of a launch at a batch size, or None. `number` converts the arguments, `more` are the last ones."""
    grid = step.grid(batch)
    if grid is None:
        return None
    addresses = [np.uint64(address(buffer)) for buffer in step.buffers]
    arguments = [number(batch), *addresses, *(number(n) for n in (*step.numbers(batch), *more))]
    return device.launch(functions[step.kernel.name], grid, step.block, arguments, step.shared)


def device_arrays(device: Device, program: Program, batch: int, arrays: Arrays) -> dict[str, Array]:
    """The caller's arrays and the constants by name. Missing arrays are made: 1 / batch, and uninitialised ones.

    The communicator stays on the host; without it there are no other processes. Raises ValueError for an array that does not
    fit its buffer: kernels would read and write out of bounds.
    """
    for name, array in arrays.items():
        if not device.owns(array) and name != COMMUNICATOR:
            raise ValueError(f"`{name}` must be an array in the memory of the GPU, got a {type(array).__name__}")
    check_arrays(program, batch, arrays)
    result = dict(arrays)
    for name, buffer in program.buffers.items():
        if name in arrays and buffer.role != "constant":
            continue
        if buffer.data is not None:
            result[name] = device.array(buffer.data)
        elif name == "inverse_batch":
            result[name] = device.array(np.array(1.0 / batch, program.dtype))
        elif name == COMMUNICATOR:
            result[name] = np.zeros(COMMUNICATOR_WORDS, buffer.dtype)
        else:
            result[name] = device.empty(concrete(buffer.shape, batch), buffer.dtype)
    return result


class HostBinding(Binding):
    """A binding for NumPy arrays, around one on the GPU: it copies arrays there before a run, and back after it."""

    def __init__(self, inner: DeviceBinding, arrays: Arrays) -> None:
        self.inner = inner
        self.program, self.batch = program, batch = inner.program, inner.batch
        self._device = inner.device
        self.arrays = caller_arrays(program, batch, arrays)
        roles = {name: program.buffers[name].role for name in self.arrays}
        known = {"inverse_batch"} - arrays.keys()
        self._ins = [name for name, role in roles.items() if role in ("input", "state") and name not in known]
        self._outs = [name for name, role in roles.items() if role in ("output", "state")]

    def run(self) -> None:
        self.upload()
        self.inner.run()
        self.download()

    def __call__(self) -> None:
        with self._device.running():
            self.run()

    def upload(self, names: Sequence[str] | None = None) -> None:
        """Copy inputs and states to the GPU: all of them, or those that `names` lists."""
        for name in self._ins if names is None else names:
            self._device.assign(self.inner.arrays[name], self.arrays[name])

    def download(self, names: Sequence[str] | None = None) -> None:
        """Copy outputs and states from the GPU: all of them, or those that `names` lists."""
        for name in self._outs if names is None else names:
            self._device.assign(self.arrays[name], self.inner.arrays[name])
