"""Training on data in host memory: batches are copied to the GPU while it computes.

The host gathers a batch in pinned memory; a separate queue copies it; the main queue computes. Each batch uses one of two slots
in pinned memory and on the GPU, and events mark when a slot may be filled again. So at most two batches are in progress, and a
step in steady state allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from chains.backends.base import Arrays, BatchStream, Feed
from chains.backends.cupy.binding import DeviceBinding, HostBinding
from chains.backends.cupy.device.interface import Device
from chains.backends.cupy.feed import DeviceFeed, exchanged
from chains.backends.cupy.source.c_source import readable
from chains.support.memory import Array

SLOTS = 2  # of batches: one is copied while the other is used
MAX_UNREAD = 4  # the most steps whose losses have not been read
CYCLE_STEPS = 8  # steps after which the GPU counts from 0 again: a multiple of `SLOTS`, more than `MAX_UNREAD`
MEMORY_SHARE = 0.5  # of the GPU's free memory: larger data sets are not copied there whole


def fit(device: Device, data: Arrays) -> bool:
    """Whether data sets in host memory are small enough to be copied to the GPU whole."""
    return sum(array.nbytes for array in data.values() if not device.owns(array)) <= MEMORY_SHARE * device.room()


class HostToDevice:
    """A stream of batches, arrays by name with fixed shapes and types, copied to the GPU through pinned memory.

    ``places`` are the arrays on the GPU, `SLOTS` used in turn. For each batch: fill the arrays of `room`; call `send`; call
    `wait` before work on the batch is queued, and `release` after it.
    """

    def __init__(self, device: Device, kinds: Mapping[str, tuple[tuple[int, ...], Any]]) -> None:
        self._device = device
        self._pinned = [{name: device.pinned(*kind) for name, kind in kinds.items()} for _ in range(SLOTS)]
        # All slots of a name form one block, so that a kernel can address them by number.
        self.blocks = {name: device.empty((SLOTS * shape[0], *shape[1:]), dtype) for name, (shape, dtype) in kinds.items()}
        self.places = [
            {name: block[k * len(block) // SLOTS : (k + 1) * len(block) // SLOTS] for name, block in self.blocks.items()}
            for k in range(SLOTS)
        ]
        self._copied, self._free = ([device.event() for _ in range(SLOTS)] for _ in range(2))
        for event in self._free:  # this memory may have been used for something else before
            device.main.record(event)
        self.sent = self.done = 0

    def room(self) -> dict[str, np.ndarray]:
        """Pinned arrays to fill. Waits until the last copy from them has ended."""
        place = self.sent % SLOTS
        self._copied[place].wait()
        return self._pinned[place]

    def send(self) -> None:
        """Start to copy the filled arrays, as soon as the GPU no longer needs the previous batch in that slot."""
        place, queue = self.sent % SLOTS, self._device.to_device
        queue.wait(self._free[place])
        for name, array in self._pinned[place].items():
            queue.copy(self.places[place][name], array)
        queue.record(self._copied[place])
        self.sent += 1

    def wait(self) -> dict[str, Array]:
        """Make the main queue wait for the oldest batch sent."""
        place = self.done % SLOTS
        self._device.main.wait(self._copied[place])
        return self.places[place]

    def release(self) -> None:
        """Declare that all work on this batch is in the main queue."""
        self._device.main.record(self._free[self.done % SLOTS])
        self.done += 1

    def forget(self) -> None:
        """Drop the batches that were sent and not used."""
        self.sent = self.done

    def finish(self) -> None:
        """Wait until neither the pinned memory nor the GPU's is in use."""
        for event in (*self._copied, *self._free):
            event.wait()


class StreamedStep:
    """A bound training step on a stream of batches from the host."""

    def __init__(self, binding: DeviceBinding, like: Arrays) -> None:
        device, batch = binding.device, binding.batch
        self._main = device.main
        self._noted = [device.event() for _ in range(CYCLE_STEPS)]
        self.batches = HostToDevice(device, {name: sent_as(binding, name, array) for name, array in like.items()})
        order = np.arange(CYCLE_STEPS)[:, None] % SLOTS * batch + np.arange(batch)
        self._step = DeviceFeed(binding, self.batches.blocks, order.reshape(-1), cycle=CYCLE_STEPS)
        device.assign(self._step.own["order"], order.reshape(-1))
        device.assign(self._step.own["cursor"], np.zeros(1, np.int64))
        self._losses = device.pinned((CYCLE_STEPS,), np.float64)
        ends = (self._losses, self._step.own["losses"])
        self._copies = [tuple(array[k : k + 1] for array in ends) for k in range(CYCLE_STEPS)]
        self.read = 0  # losses

    def start(self) -> None:
        """Start the step on the oldest batch sent, and the copy of its loss to the host."""
        batches, number = self.batches, self.batches.done % CYCLE_STEPS
        batches.wait()
        self._step.one()
        batches.release()
        self._main.copy(*self._copies[number])
        self._main.record(self._noted[number])

    def loss(self) -> float:
        """The first unread loss; waits only for its step."""
        number = self.read % CYCLE_STEPS
        self._noted[number].wait()
        self.read += 1
        return float(self._losses[number])

    def finish(self) -> None:
        """Wait for all steps; drop unread losses, and batches that were sent for later steps."""
        self.batches.forget()
        self.batches.finish()
        for event in self._noted:
            event.wait()
        self.read = self.batches.done

    def __del__(self) -> None:
        with suppress(Exception):  # a step that was not fully made, or Python is shutting down
            self.finish()  # queues may still use the memory that is about to be freed


def sent_as(binding: DeviceBinding, name: str, array: np.ndarray) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type in which data are copied: in their own, perhaps smaller, type if kernels can read it."""
    own = binding.arrays[name]
    return own.shape, array.dtype if readable(array.dtype) else own.dtype


class StreamedFeed(Feed):
    """Steps on data sets in host memory: during a step, the next batch is gathered and copied.

    A few steps are still done after a loss that is not finite.
    """

    def __init__(self, binding: DeviceBinding, sources: Arrays, order: np.ndarray) -> None:
        self._batch, self._sources, self._order = binding.batch, sources, order
        self._steps = StreamedStep(binding, sources)
        self._last = len(order) // binding.batch
        self._next = 0  # the first step whose batch has not been sent

    def __call__(self, first: int, values: np.ndarray) -> int:
        steps, batches = self._steps, self._steps.batches
        if first == 0 or self._next - (batches.sent - batches.done) != first:  # another order
            self.forget()
            self._next = first
        read, count = 0, len(values)
        for done in range(1, count + 1):
            if batches.sent == batches.done:
                self._send()
            steps.start()
            if self._next < self._last:
                self._send()
            while read < done - (MAX_UNREAD if done < count else 0):
                values[read] = loss = steps.loss()
                read += 1
                if not math.isfinite(loss):
                    steps.finish()
                    return read
        if self._next == self._last:
            steps.finish()
        return count

    def forget(self) -> None:
        self._steps.batches.forget()
        self._next = -1

    def _send(self) -> None:
        piece = self._order[self._next * self._batch : (self._next + 1) * self._batch]
        for name, target in self._steps.batches.room().items():
            source = self._sources[name]
            if source.dtype == target.dtype:
                source.take(piece, 0, target, "clip")  # "clip": otherwise NumPy buffers
            else:
                target[...] = source[piece]
        self._steps.batches.send()
        self._next += 1


class DeviceBatchStream(BatchStream):
    """Batches one by one: the GPU does a step while the next batch is made. Arrays on the GPU are copied within it."""

    max_unread = MAX_UNREAD

    def __init__(self, binding: DeviceBinding, like: Arrays) -> None:
        self._device, self._own = binding.device, binding.arrays
        self._on_gpu = [name for name, array in like.items() if self._device.owns(array)]
        self._steps = StreamedStep(binding, {name: array for name, array in like.items() if name not in self._on_gpu})

    def start(self, batch: Arrays) -> None:
        batches = self._steps.batches
        for name, target in batches.room().items():
            target[...] = batch[name].reshape(target.shape)
        batches.send()
        for name in self._on_gpu:
            self._device.assign(self._own[name], batch[name])
        self._steps.start()

    def loss(self) -> float:
        return self._steps.loss()

    def finish(self) -> None:
        self._steps.finish()


class HostBatchStream(BatchStream):
    """Batches for parameters in host memory, which are brought up to date at the end."""

    max_unread = MAX_UNREAD

    def __init__(self, binding: HostBinding, like: Arrays) -> None:
        self._binding, self._inner = binding, DeviceBatchStream(binding.inner, like)
        self._given, self._changing = exchanged(binding, like)
        self._begun = False

    def start(self, batch: Arrays) -> None:
        if not self._begun:
            self._binding.upload([*self._given, *self._changing])
            self._begun = True
        self._inner.start(batch)

    def loss(self) -> float:
        return self._inner.loss()

    def finish(self) -> None:
        self._inner.finish()
        if self._begun:
            self._binding.download(self._changing)
            self._begun = False
