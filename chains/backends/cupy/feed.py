"""Training on a GPU: the data, their order and the losses stay there, and a step is one graph.

Before the program, a kernel gathers the step's batch by the numbers in `order`; after it, another one stores the loss and
counts the step (`step_kernels`). Everything that changes from step to step is in the GPU's memory, so that one graph does
every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from chains.backends.base import Feed
from chains.backends.cupy.binding import DeviceBinding, HostBinding, as_graph, launch
from chains.backends.cupy.compiler import MIN_WIDE_ELEMENTS
from chains.backends.cupy.device.interface import Device, Work
from chains.backends.cupy.fused_program import FusedProgram
from chains.backends.cupy.source.c_source import readable
from chains.backends.cupy.source.commands import Launch, Source
from chains.backends.cupy.step_kernels import count, fetch
from chains.program.view import Buffer

MIN_LOSSES = 1 << 13  # steps of a call on the same batch that there is room for: graphs know the place of the losses


class DeviceFeed(Feed):
    """Many steps of a bound program on data in the GPU's memory. Only the order and the losses are transferred.

    Where one block does a whole step, one launch does all steps of a call. Otherwise each step is a launch of the graph; a
    call then does all its steps, even after a loss that is not finite. After `cycle` steps, if given, the device counts from
    0 again.
    """

    def __init__(
        self, binding: DeviceBinding, sources: Mapping[str, Any], order: np.ndarray, *, cycle: int | None = None
    ) -> None:
        device, batch = binding.device, binding.batch
        self._binding, self._cycle = binding, cycle
        self._device = device
        self._order = order
        self._sources = {name: in_place(device, data, binding.program.buffers[name].dtype) for name, data in sources.items()}
        steps = len(order) // batch if sources or cycle else 0
        self.own = {
            "order": device.empty((max(1, steps * batch),), np.int64),
            "cursor": device.empty((1,), np.int64),
            "losses": device.empty((steps or MIN_LOSSES,), np.float64),
        }
        compiled = binding.compiled
        self._whole = compiled if isinstance(compiled, FusedProgram) and compiled.tiling.alone else None
        self._launch: tuple[Launch, dict[str, Any], type[np.generic]] | None = None
        self._step: Work | None = None
        self._ran = False

    def __call__(self, first: int, values: np.ndarray) -> int:
        device, own, batch, steps = self._device, self.own, self._binding.batch, len(values)
        if not self._sources:  # the same batch at every step: losses are counted from the first step of the call
            first = 0
            if own["losses"].size < steps:
                own["losses"], self._step = device.empty((max(2 * steps, MIN_LOSSES),), np.float64), None
        else:
            part = slice(first * batch, (first + steps) * batch)
            device.assign(own["order"][part], self._order[part])
        if self._whole is not None:
            self._in_one_launch(self._whole, first, steps)
        else:
            device.assign(own["cursor"], np.array([first]))
            for _ in range(steps):
                self.one()
        device.assign(values, own["losses"][first : first + steps])
        finite = np.isfinite(values)
        return steps if finite.all() else int(np.argmin(finite)) + 1

    def _in_one_launch(self, program: FusedProgram, first: int, count: int) -> None:
        """Do `count` steps by one launch."""
        binding, arrays = self._binding, self._arrays()
        if self._launch is None:
            source = Source()
            step = program.training(source, {name: data.dtype for name, data in self._sources.items()})
            text, number = sized(source, arrays.values())
            self._launch = step, self._device.compile(text, list(source.kernels.values())), number
        step, functions, number = self._launch
        address = partial(self._address, arrays)
        work = launch(self._device, step, functions, binding.batch, number, address, (first, count))
        assert work is not None
        work()

    def _arrays(self) -> dict[str, Any]:
        """Everything that kernels read or write, by name."""
        return {**self._binding.arrays, **self.own} | {f"all {name}": array for name, array in self._sources.items()}

    def _address(self, arrays: Mapping[str, Any], buffer: Buffer) -> int:
        return self._binding.address(buffer) if buffer.role == "scratch" else self._device.address(arrays[buffer.name])

    def one(self) -> None:
        """Do a step: the first time launch by launch, later as one graph."""
        if self._step is None:
            work = self._work()
            if self._ran:
                self._step = as_graph(self._device, work)
            else:
                for each in work:
                    each()
                self._ran = True
                return
        self._step()

    def _work(self) -> list[Work]:
        """The work of a step."""
        binding, arrays = self._binding, self._arrays()
        source = Source()
        before = [fetch(source, self._sources, binding)] if self._sources else []
        after = count(source, binding, self._cycle)
        most = sum(binding.program.buffers[name].size for name in self._sources) * binding.batch
        text, number = sized(source, arrays.values(), MIN_WIDE_ELEMENTS if binding.index is np.int64 else most)
        functions = self._device.compile(text, list(source.kernels.values()))
        address = partial(self._address, arrays)

        def bound(step: Launch) -> Work:
            work = launch(self._device, step, functions, binding.batch, number, address)
            assert work is not None
            return work

        return [*map(bound, before), *binding.work, bound(after)]


def sized(source: Source, arrays: Iterable[Any], most: int = 0) -> tuple[str, type[np.generic]]:
    """The source of kernels on these arrays, or that count as far as `most`, and the type of its indices."""
    wide = max(most, *(array.size for array in arrays)) >= MIN_WIDE_ELEMENTS
    return source.text(wide), np.int64 if wide else np.int32


def in_place(device: Device, data: Any, wanted: np.dtype[Any]) -> Any:
    """The data in the GPU's memory: unchanged if kernels can read them, else converted to the type `wanted`."""
    if not device.owns(data) and not readable(data.dtype):
        data = data.astype(wanted)
    return device.contiguous(data)


class HostFeed(Feed):
    """A feed on the GPU for parameters in host memory, which every call brings up to date."""

    def __init__(self, binding: HostBinding, feed: Feed, sources: Iterable[str]) -> None:
        self._binding = binding
        self._feed = feed
        self._given, self._changing = exchanged(binding, sources)

    def __call__(self, first: int, values: np.ndarray) -> int:
        binding = self._binding
        binding.upload([*self._given, *self._changing])
        done = self._feed(first, values)
        binding.download([*self._changing, "value"])
        return done

    def forget(self) -> None:
        self._feed.forget()


def exchanged(binding: HostBinding, sources: Iterable[str]) -> tuple[list[str], list[str]]:
    """The names of the arrays other than samples that the host gives to steps, and of the arrays that steps change."""
    roles = {name: binding.program.buffers[name].role for name in binding.arrays}
    changing = [name for name, role in roles.items() if role == "state" or name == "random"]
    known = {*sources, *changing, "inverse_batch"}
    return [name for name, role in roles.items() if role == "input" and name not in known], changing
