"""Calls on large data in host memory: pieces are copied to the GPU, and results back, while it computes.

Two threads of the host copy to pinned memory and from it: the caller's brings pieces in, another takes results out.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from chains.backends.base import Arrays, Backend
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.device.interface import Device
from chains.backends.cupy.streaming import MEMORY_SHARE, SLOTS, Inlet, sent_as
from chains.backends.places import Array
from chains.program.program import Program

PIECE_BYTES = 32 << 20  # of inputs and outputs


def separable(program: Program) -> bool:
    """Whether the results of a sample depend only on that sample and on arrays that all samples share."""
    whole = {"random", "inverse_batch"} & program.buffers.keys()
    changes = any(buffer.role == "state" for buffer in program.buffers.values())
    return not whole and not changes and not any(operation.sums_over_batch for operation in program.operations)


def piece_size(program: Program, batch: int) -> int:
    """The number of samples in a piece."""
    width = sum(b.nbytes for b in program.buffers.values() if b.batched and b.role in ("input", "output"))
    return max(1, min(batch, PIECE_BYTES // max(1, width)))


def in_pieces(backend: Backend, device: Device, program: Program, batch: int, arrays: Arrays) -> bool:
    """Run a program in pieces if samples on the host are many, or results go there. Returns whether it ran."""
    buffers = program.buffers
    arrays = {name: array for name, array in arrays.items() if name in buffers}
    outwards = any(not device.owns(array) for name, array in arrays.items() if buffers[name].role == "output")
    size = piece_size(program, batch)
    if not separable(program) or (size == batch and not outwards):
        return False
    while size > 1 and backend.scratch_bytes(program, size) > MEMORY_SHARE * device.room():
        size //= 2
    binding = backend.bind(program, size, {name: array for name, array in arrays.items() if not buffers[name].batched})
    assert isinstance(binding, DeviceBinding)
    with device.running():
        _run_in_pieces(binding, batch, {name: array for name, array in arrays.items() if buffers[name].batched})
    return True


def _run_in_pieces(binding: DeviceBinding, batch: int, arrays: Arrays) -> None:
    """Run all samples through a binding for one piece. `arrays` are the batched inputs and outputs, on the host or the GPU.

    If the last piece would be shorter, it begins earlier, and its first samples are computed twice.
    """
    device, size, own = binding.device, binding.batch, binding.arrays
    roles = {name: (binding.program.buffers[name].role, device.owns(array)) for name, array in arrays.items()}
    near_ins, far_ins, near_outs, far_outs = (
        {name: arrays[name] for name, role in roles.items() if role == wanted}
        for wanted in (("input", True), ("input", False), ("output", True), ("output", False))
    )
    inlet = Inlet(device, {name: sent_as(binding, name, array) for name, array in far_ins.items()})
    outlet = Outlet(device, far_outs, size)
    try:
        for start in [*range(0, batch - size, size), batch - size]:
            part = slice(start, start + size)
            for name, pinned in inlet.room().items():
                pinned[...] = far_ins[name][part]
            inlet.send()
            for name, array in {**inlet.take(), **{name: array[part] for name, array in near_ins.items()}}.items():
                device.assign(own[name], array)
            inlet.taken()
            binding.run()
            for name, array in near_outs.items():
                device.assign(array[part], own[name])
            outlet.send(own, start)
    finally:
        inlet.finish()
        outlet.finish()


class Outlet:
    """A stream of arrays of one shape, copied from the GPU into parts of arrays on the host, by a thread of its own."""

    def __init__(self, device: Device, targets: Arrays, size: int) -> None:
        self._device, self._targets, self._size = device, targets, size
        shapes = {name: ((size, *array.shape[1:]), array.dtype) for name, array in targets.items()}
        self._places = [{name: device.empty(*kind) for name, kind in shapes.items()} for _ in range(SLOTS)]
        self._pinned = [{name: device.pinned(*kind) for name, kind in shapes.items()} for _ in range(SLOTS)]
        self._ready, self._copied = ([device.event() for _ in range(SLOTS)] for _ in range(2))
        self._stored: list[Future[None] | None] = [None] * SLOTS  # what waits for a slot's copy, and empties the slot
        self._thread: ThreadPoolExecutor | None = None
        self._sent = 0

    def send(self, results: Mapping[str, Array], start: int) -> None:
        """Start to copy results into the part that begins at `start`, as soon as the slot is empty."""
        if not self._targets:
            return
        device, place = self._device, self._sent % SLOTS
        stored = self._stored[place]
        if stored is not None:
            stored.result()
        device.main.wait(self._copied[place])
        for name, array in self._places[place].items():
            device.assign(array, results[name])
        device.main.record(self._ready[place])
        device.to_host.wait(self._ready[place])
        for name, array in self._places[place].items():
            device.to_host.copy(self._pinned[place][name], array)
        device.to_host.record(self._copied[place])
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "chains-outlet")
        self._stored[place] = self._thread.submit(self._store, place, start)
        self._sent += 1

    def finish(self) -> None:
        """Wait until all results are stored, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for place, stored in enumerate(self._stored):
            self._stored[place] = None
            if stored is not None:
                stored.result()

    def _store(self, place: int, start: int) -> None:
        self._copied[place].wait()
        for name, target in self._targets.items():
            target[start : start + self._size] = self._pinned[place][name]
