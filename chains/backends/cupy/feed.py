"""Training on a GPU: the data, their order and the losses stay there, and a step is one graph.

Before the program, a kernel gathers the step's batch by the numbers in `order`; after it, another one stores the loss and
counts the step. Everything that changes from step to step is in the GPU's memory, so that one graph does every step.
For an ensemble, one launch does the steps of all members: each block trains one member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from chains.backends.base import Arrays, Feed, MemberFeed, UnsupportedOperationError, updated
from chains.backends.cupy.binding import DeviceBinding, HostBinding, as_graph, device_arrays, launch
from chains.backends.cupy.compiler import MIN_WIDE_ELEMENTS
from chains.backends.cupy.device.interface import Device, Work
from chains.backends.cupy.fused_program import FusedProgram, moved, outside
from chains.backends.cupy.source.c_source import ctype, readable
from chains.backends.cupy.source.commands import Launch, Pointers, Source, blocks, each_element
from chains.program.view import Buffer


def fetch(source: Source, data: Mapping[str, Any], binding: DeviceBinding) -> Launch:
    """Gather the samples of a step: row i of each input is the sample with the number order[cursor * batch + i]."""
    pointers, lines, begin = Pointers(), [], 0
    cursor, order = pointers(outside("cursor", np.int64)), pointers(outside("order", np.int64))
    for name, array in data.items():
        target = binding.program.buffers[name]
        into, samples, width = pointers(target, write=True), pointers(outside(f"all {name}", array.dtype)), target.size
        lines += [
            f"{'else ' if begin else ''}if (i < batch * {begin + width}) {{",
            f"    const Index e = i - batch * {begin};",
            f"    const int64 sample = {order}[{cursor}[0] * batch + e / {width}];",
            f"    {into}[e] = ({ctype(target.dtype)}){samples}[sample * {width} + e % {width}];",
            "}",
        ]
        begin += width
    body = each_element(f"batch * {begin}", lines)
    return pointers.launch(source, "fetch", body, lambda batch: (blocks(batch * begin), 1))


def count(source: Source, binding: DeviceBinding, cycle: int | None) -> Launch:
    """Store the loss of a step, and count the step. After `cycle` steps, if given, counting begins again."""
    buffers, pointers = binding.program.buffers, Pointers()
    loss = pointers(buffers["value"])
    losses, cursor = pointers(outside("losses", np.float64), write=True), pointers(outside("cursor", np.int64), write=True)
    lines = [f"{losses}[{cursor}[0]] = {loss}[0];", f"{cursor}[0] += 1;"]
    if cycle is not None:
        lines.append(f"if ({cursor}[0] == {cycle}) {cursor}[0] = 0;")
    if "random" in buffers:
        lines.append(f"{pointers(buffers['random'], write=True)}[1] += 1;")
    return pointers.launch(source, "count", lines, lambda batch: (1, 1), block=(1, 1))


MIN_LOSSES = 1 << 13  # steps of a call on the same batch that there is room for: graphs know the place of the losses


class DeviceFeed(Feed):
    """Many steps of a bound program on data in the GPU's memory. Only the order and the losses are transferred.

    If one block does a whole step, one launch does all steps of a call. Otherwise each step is a launch of the graph; a call
    then does all its steps, even after a loss that is not finite. After `cycle` steps, if given, the device counts from 0
    again.
    """

    def __init__(
        self, binding: DeviceBinding, sources: Mapping[str, Any], order: np.ndarray, *, cycle: int | None = None
    ) -> None:
        device, batch = binding.device, binding.batch
        self._binding, self._cycle = binding, cycle
        self._device = device
        self._order = order
        self._sources = {name: on_device(device, data, binding.program.buffers[name].dtype) for name, data in sources.items()}
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
    """The source of kernels on these arrays, or with indices up to `most`, and the type of indices."""
    wide = max(most, *(array.size for array in arrays)) >= MIN_WIDE_ELEMENTS
    return source.text(wide), np.int64 if wide else np.int32


def on_device(device: Device, data: Any, wanted: np.dtype[Any]) -> Any:
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


ALIGNMENT = 256  # bytes that a member's scratch begins at a multiple of


class DeviceMemberFeed(MemberFeed):
    """All members in one launch of the program of a single block: a member has the bits that it would have alone.

    Every array that a step writes has a row for each member; so has scratch that does not fit into shared memory.
    """

    def __init__(
        self,
        device: Device,
        compiled: FusedProgram,
        batch: int,
        arrays: Arrays,
        sources: Arrays,
        orders: np.ndarray,
        own: Collection[str],
    ) -> None:
        self._device, self._batch, self._orders = device, batch, orders
        self._own = {*own} & {*arrays, *sources}
        self._members = len(next(array for name, array in {**arrays, **sources}.items() if name in self._own))
        first = {name: array[0, ...] if name in self._own else array for name, array in arrays.items()}
        self._arrays: dict[str, Any] = {
            **device_arrays(device, compiled.program, batch, first),
            **arrays,
            **{f"all {name}": on_device(device, data, compiled.program.buffers[name].dtype) for name, data in sources.items()},
            "members": device.empty((self._members,), np.int64),
        }
        self._sampled = bool(sources)
        source, rows = Source(), {name if name in arrays else f"all {name}" for name in self._own}
        if len(orders) > 1:
            rows.add("order")
        self._step = compiled.training(
            source, {name: self._arrays[f"all {name}"].dtype for name in sources}, rows, self._members
        )
        self._source, self._rows = source, moved(self._step.buffers, self._step.writes, rows)
        scratch = compiled.scratch_plan(batch)
        self._scratch_row = -(-scratch.nbytes(batch) // ALIGNMENT) * ALIGNMENT
        self._offsets = {b: scratch.offset(b, batch) for b in self._step.buffers if b.role == "scratch"}
        self._scratch = device.empty((self._members * self._scratch_row if self._offsets else 0,), np.uint8)
        for buffer in self._rows:  # outputs that were not given
            if buffer.role == "output" and buffer.name not in arrays:
                self._arrays[buffer.name] = device.empty((self._members, buffer.size), buffer.dtype)
        self._steps = 0

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        device, arrays, count = self._device, self._arrays, values.shape[1]
        if count > self._steps:
            self._make_room(count)
        if self._sampled:
            part = np.ascontiguousarray(self._orders[:, first * self._batch : (first + count) * self._batch])
            device.assign(arrays["order"][: part.size], part.reshape(-1))
        device.assign(arrays["members"][: len(members)], members)
        strides = [self._stride(buffer, count) for buffer in self._rows]
        step = replace(self._step, grid=lambda batch: (len(members), 1))
        work = launch(device, step, self._functions, self._batch, self._index, self._address, (0, count, *strides))
        assert work is not None
        work()
        losses = np.empty((self._members, count))
        device.assign(losses, arrays["losses"][: losses.size])
        values[members] = losses[members]
        finite = np.isfinite(values[members])
        return np.where(finite.all(axis=1), count, finite.argmin(axis=1) + 1)

    def _make_room(self, count: int) -> None:
        """For this many steps a call."""
        device, self._steps = self._device, count
        self._arrays["order"] = device.empty((max(1, len(self._orders) * count * self._batch * self._sampled),), np.int64)
        self._arrays["losses"] = device.empty((self._members * count,), np.float64)
        text, self._index = sized(self._source, [*self._arrays.values(), self._scratch])
        self._functions = device.compile(text, list(self._source.kernels.values()))

    def _stride(self, buffer: Buffer, count: int) -> int:
        """The number of elements from a member's row to the next one."""
        if buffer.role == "scratch":
            return self._scratch_row // buffer.dtype.itemsize
        counted = {"losses": count, "order": count * self._batch}
        return counted.get(buffer.name, self._arrays[buffer.name].size // self._members)

    def _address(self, buffer: Buffer) -> int:
        if buffer.role == "scratch":
            return self._device.address(self._scratch) + self._offsets[buffer]
        return self._device.address(self._arrays[buffer.name])


class HostMemberFeed(MemberFeed):
    """A feed on the GPU for parameters in host memory, which every call brings up to date.

    `otherwise` makes another feed, for a device that refuses the kernels.
    """

    def __init__(
        self, device: Device, compiled: FusedProgram, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray,
        own: Collection[str], otherwise: Callable[[], MemberFeed],
    ) -> None:  # fmt: skip
        self._device, self._arrays, self._otherwise = device, arrays, otherwise
        self._there = {name: device.array(array) for name, array in arrays.items()}
        self._updated = updated(compiled.program, {*own} & {*arrays})
        self._feed: MemberFeed = DeviceMemberFeed(device, compiled, batch, self._there, sources, orders, own)

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        for name, array in self._there.items():
            self._device.assign(array, self._arrays[name])
        try:
            done = self._feed(first, values, members)
        except UnsupportedOperationError:  # before anything has changed
            self._feed, self._there, self._updated = self._otherwise(), {}, []
            return self._feed(first, values, members)
        for name in self._updated:
            self._device.assign(self._arrays[name], self._there[name])
        return done
