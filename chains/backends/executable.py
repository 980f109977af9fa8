"""Programs that are called with arrays. Bindings are kept and reused; small arrays are copied to and from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from chains.backends.base import Arrays, Backend, Binding
from chains.program.program import Program

KEPT_BINDINGS = 8  # the most batch sizes of a program, and the most bindings (one a thread) of each size


class Executable:
    """A program that can be called with arrays, from any number of threads. Bindings are kept and reused."""

    def __init__(self, backend: Backend, program: Program) -> None:
        self.backend = backend.choose(program)
        self.program = program
        self.settings: dict[str, np.ndarray] = {}  # arrays for inputs that callers do not give
        self.chunks: dict[int, int] = {}  # by batch size: steps in a twentieth of a second, as last measured
        # Idle bindings by batch size. Threads pop from these lists and append to them, which is atomic.
        self._idle: dict[int, list[_KeptBinding]] = {}
        self._large: list[_KeptBinding] = []  # the last binding to the caller's arrays
        self._of_members: dict[Hashable, MemberExecutable] = {}

    def tuned(self, numbers: Sequence[float]) -> Executable:
        """The same program with other settings; bindings are shared."""
        if not numbers:
            return self
        twin = copy.copy(self)
        twin._of_members = {}
        twin.settings = {name: self.backend.adopted(array) for name, array in self.program.tuned(numbers).items()}
        return twin

    def __call__(self, batch: int, arrays: Arrays) -> None:
        """Run the program on `arrays`, one for each of the caller's buffers that the program uses."""
        if self.settings:
            arrays = {**arrays, **self.settings}
        idle = self._idle.get(batch)
        if idle is None:
            idle = self._new_size(batch)
        try:
            kept = idle.pop()
        except IndexError:
            if self._is_large(batch):
                self._run_in_place(batch, arrays)
                return
            kept = _KeptBinding(self._bind(batch, {}))
        kept.run(arrays)
        if len(idle) < KEPT_BINDINGS:
            idle.append(kept)

    def function(self, batch: int, ins: Mapping[str, np.dtype[Any]], outs: Sequence[str]) -> Callable[..., Any]:
        """As `Backend.function`, of an idle binding; `decline` where there is no function, or the program needs more arrays."""
        if not self.takes(ins, outs):
            return decline
        idle = self._idle.get(batch, [])
        kept = _pop(idle) or _KeptBinding(self._bind(batch, {}))
        for name, array in self.settings.items():
            kept.binding.arrays[name][...] = array
        found = self.backend.function(kept.binding, ins, outs)
        if found is None and not self._is_large(batch):
            idle.append(kept)
        return found or decline

    def for_members(self, members: int, own: Collection[str]) -> MemberExecutable | None:
        """The program for so many members; None if the backend calls them one after another."""
        if not self.backend.has_member_calls:
            return None
        own = frozenset(name for name in own if name in self.program.buffers)
        found = self._of_members.get((members, own))
        if found is None:
            for oldest in list(self._of_members)[: max(0, len(self._of_members) - KEPT_BINDINGS + 1)]:
                self._of_members.pop(oldest, None)
            found = self._of_members.setdefault((members, own), MemberExecutable(self, members, own))
        return found

    def takes(self, ins: Collection[str], outs: Sequence[str], known: Collection[str] = ()) -> bool:
        """Whether the program uses all these arrays, and no others of the caller's but the `known` ones."""
        needed = {name for name, buffer in self.program.buffers.items() if buffer.data is None}
        return {*ins, *outs} <= needed <= {*ins, *outs, *known, "inverse_batch", "value"}

    def _new_size(self, batch: int) -> list[_KeptBinding]:
        for oldest in list(self._idle)[: max(0, len(self._idle) - KEPT_BINDINGS + 1)]:  # other threads may do the same
            self._idle.pop(oldest, None)
        return self._idle.setdefault(batch, [])

    def _is_large(self, batch: int) -> bool:
        fixed, per_sample = self.program._largest
        return max(fixed, batch * per_sample) > self.backend.copied_bytes

    def _run_in_place(self, batch: int, arrays: Arrays) -> None:
        """Run on the caller's arrays themselves. Arrays of another type, or with gaps, are copied."""
        fitting = {name: array for name, array in arrays.items() if self._fits(name, array)}
        kept = _pop(self._large)
        if kept is None or not kept.run_at(batch, arrays, fitting):
            block = self._block(batch, None if kept is None else kept.block)
            kept = _KeptBinding(self._bind(batch, fitting, block), fitting, block)
            kept.run(arrays)
        self._large[:] = [kept]

    def _bind(self, batch: int, arrays: Arrays, block: np.ndarray | None = None) -> Binding:
        return self.backend.bind(self.program, batch, arrays, block)

    def _block(self, batch: int, before: np.ndarray | None) -> np.ndarray | None:
        """Scratch memory to bind with: that from before, if it has about the right size."""
        nbytes = self.backend.scratch_bytes(self.program, batch)
        return before if before is not None and nbytes <= before.nbytes <= 2 * nbytes else self.backend.allocate(nbytes)

    def _fits(self, name: str, array: np.ndarray) -> bool:
        buffer = self.program.buffers.get(name)
        return buffer is not None and array.flags.c_contiguous and array.dtype == buffer.dtype


class MemberExecutable(Executable):
    """A program that is called for all members of an ensemble. The arrays that `own` names have a row for each member."""

    def __init__(self, one: Executable, members: int, own: Collection[str]) -> None:
        super().__init__(one.backend, one.program)
        self.settings, self._members, self._own = one.settings, members, frozenset(own)

    def _is_large(self, batch: int) -> bool:
        return True  # the rows are always used where they are

    def _bind(self, batch: int, arrays: Arrays, block: np.ndarray | None = None) -> Binding:
        return self.backend.bind_members(self.program, batch, self._members, self._own, arrays)

    def _block(self, batch: int, before: np.ndarray | None) -> None:
        return None

    def _fits(self, name: str, array: np.ndarray) -> bool:
        return name in self.program.buffers and super()._fits(name, array[0, ...] if name in self._own else array)


def _pop(bindings: list[_KeptBinding]) -> _KeptBinding | None:
    """One of these bindings; None if there is none, or if other threads have them all."""
    try:
        return bindings.pop()
    except IndexError:
        return None


def decline(*_: object) -> None:
    """The placeholder where no function is available, so that it is not looked for again."""


class _KeptBinding:
    """A binding, with the copies that a call makes: inputs before the run, outputs after it.

    The arrays named by `in_place` are the caller's. The binding releases them after a run, if it can.
    """

    def __init__(self, binding: Binding, in_place: Collection[str] = (), block: np.ndarray | None = None) -> None:
        self.binding = binding
        self.block = block  # its scratch memory, where the caller has given it
        self._in_place = frozenset(in_place)
        self._movable = False
        copied = {name: own for name, own in binding.arrays.items() if name not in self._in_place}
        roles = {name: binding.program.buffers[name].role for name in copied if name in binding.program.buffers}
        self._ins = [(name, copied[name]) for name, role in roles.items() if role in ("input", "state")]
        self._outs = [(name, copied[name]) for name, role in roles.items() if role in ("output", "state")]

    def run(self, arrays: Arrays) -> None:
        """Run on the arrays of the binding."""
        self._copy_in(arrays)
        self.binding()
        self._copy_out(arrays)
        if self._in_place:
            self._movable = self.binding.release(self._in_place)

    def run_at(self, batch: int, arrays: Arrays, in_place: Arrays) -> bool:
        """Run on other arrays of the caller's than the first time. Returns whether that was possible."""
        if not self._movable or batch != self.binding.batch or in_place.keys() != self._in_place:
            return False
        self._copy_in(arrays)
        if not self.binding.run_at(in_place):
            return False
        self._copy_out(arrays)
        return True

    def _copy_in(self, arrays: Arrays) -> None:
        for name, own in self._ins:
            array = arrays.get(name)
            if array is None or array is own:
                continue
            if array.dtype == own.dtype:
                own[...] = array
            else:
                with np.errstate(all="ignore"):
                    own[...] = array

    def _copy_out(self, arrays: Arrays) -> None:
        for name, own in self._outs:
            array = arrays[name]
            if array is not own:
                array[...] = own
