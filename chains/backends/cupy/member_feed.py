"""Training steps of the members of an ensemble on a GPU: a block of threads does a member's whole run of steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from chains.backends.base import Arrays, MemberFeed, updated
from chains.backends.cupy.binding import device_arrays, launch
from chains.backends.cupy.device.interface import Device
from chains.backends.cupy.feed import in_place, sized
from chains.backends.cupy.fused_program import FusedProgram, moved
from chains.backends.cupy.source.commands import Source
from chains.program.view import Buffer

ALIGNMENT = 256  # bytes that a member's scratch begins at a multiple of


class DeviceMemberFeed(MemberFeed):
    """All members in one launch, by the program that one block does alone: a member has the bits that it would have alone.

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
            **{f"all {name}": in_place(device, data, compiled.program.buffers[name].dtype) for name, data in sources.items()},
            "members": device.empty((self._members,), np.int64),
        }
        self._sampled = bool(sources)
        source, rows = Source(), {name if name in arrays else f"all {name}" for name in self._own}
        if len(orders) > 1:
            rows.add("order")
        self._step = compiled.training(source, {name: self._arrays[f"all {name}"].dtype for name in sources}, rows)
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
    """A feed on the GPU for parameters in host memory, which every call brings up to date."""

    def __init__(
        self, device: Device, compiled: FusedProgram, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray,
        own: Collection[str]
    ) -> None:  # fmt: skip
        self._device, self._arrays = device, arrays
        self._there = {name: device.array(array) for name, array in arrays.items()}
        self._updated = updated(compiled.program, {*own} & {*arrays})
        self._feed = DeviceMemberFeed(device, compiled, batch, self._there, sources, orders, own)

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        for name, array in self._there.items():
            self._device.assign(array, self._arrays[name])
        done = self._feed(first, values, members)
        for name in self._updated:
            self._device.assign(self._arrays[name], self._there[name])
        return done
