"""A program as commands on a GPU: elementwise operations are fused, any other operation is a kernel or a product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from chains.backends.base import UnsupportedOperationError, cannot_run
from chains.backends.cupy.device.interface import Convolutions
from chains.backends.cupy.fused.loops import LoopKernel, LoopShare, suits
from chains.backends.cupy.kernels.convolutions import AnyConvolution, Lowering, is_product
from chains.backends.cupy.kernels.images import convolve, convolve_weight
from chains.backends.cupy.kernels.indexed import gather, random, scatter_add
from chains.backends.cupy.kernels.library_convolutions import lowered, with_operands
from chains.backends.cupy.kernels.pools import PoolInputRun, PoolRun, pool, pool_input, pool_input_run, pool_run, with_pool_runs
from chains.backends.cupy.kernels.products import batch_matmul, prepared, product
from chains.backends.cupy.source.axes import Space, count
from chains.backends.cupy.source.commands import THREADS, Command, Pointers, Repeated, Source, Summed, blocks, unrolled, untiled
from chains.backends.cupy.source.maps import ELEMENTWISE, Run, map_body, run_at, staged
from chains.backends.cupy.source.reduction import Temporary, reduction
from chains.program.loop import Loop
from chains.program.operations import (
    AllReduce,
    BatchMatMul,
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Gather,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.program import Program
from chains.program.rows import UpdateRows
from chains.program.scratch import Lifetime, ScratchPlan, plan_scratch
from chains.program.view import Batch, Buffer, View, c_strides

Stored = Callable[[Buffer], bool]  # whether a buffer's numbers are written to memory

MIN_WIDE_ELEMENTS = 1 << 30  # from this array size on, kernels use 64-bit indices


class Compiled:
    """The commands of a program, the source of their kernels, and their scratch memory, for any batch size.

    `convolutions` is a library for convolutions, if it can do them. `aligned`: whether all arrays begin at multiples of 16
    bytes. `loops`: the share of a block in a loop as one launch, if allowed.
    """

    def __init__(
        self,
        program: Program,
        source: Source | None = None,
        convolutions: Convolutions | None = None,
        *,
        aligned: bool = True,
        loops: LoopShare | None = None,
    ) -> None:
        self.program = program
        self.barriers = 0  # of a block's threads, in kernels of loops
        self._share = loops
        self.source = source or Source()
        self._library = convolutions
        self.commands: list[Command] = []
        self.origins: list[tuple[Command, Sequence[Operation]]] = []  # commands, with the operations that they belong to
        self._sizes: dict[Buffer, Callable[[int], int]] = {}  # elements of this backend's own scratch buffers
        self._aligned = aligned
        self._advancing: dict[tuple[Buffer, tuple[int, ...]], Buffer] = {}
        self.advances: dict[Buffer, tuple[Buffer, tuple[int, ...]]] = {}  # by stand-in: the buffer, and its advances
        operations = with_pool_runs(self._ready(program.operations))
        self._last: dict[Buffer, int] = {}  # the last operation that touches a buffer
        for position, operation in enumerate(operations):
            self._last |= {view.buffer: position for view in operation.views}
        self._touches = Counter(buffer for each in operations for buffer in {view.buffer for view in each.views})
        self.commands = self._lower(operations, self._needed)

    def scratch_plan(self, batch: int) -> ScratchPlan[Buffer]:
        """The offsets of the scratch buffers at a batch size. Buffers that live in registers only have none."""
        used: dict[Buffer, tuple[int, int]] = {}
        for position, command in enumerate(self.commands):
            for buffer in (*command.reads, *command.writes):
                if buffer.role == "scratch":
                    used[buffer] = (used.get(buffer, (position, position))[0], position)
        return plan_scratch(Lifetime(b, self.elements(b, batch) * b.dtype.itemsize, False, *life) for b, life in used.items())

    def at(self, batch: int) -> Iterator[tuple[Command, tuple[int, ...]]]:
        """The launches and products at a batch size, each with the current steps of the enclosing loops."""
        return unrolled(untiled(self.commands, batch))

    def elements(self, buffer: Buffer, batch: int) -> int:
        """The number of elements of a buffer at a batch size."""
        if buffer in self._sizes:
            return self._sizes[buffer](batch)
        return buffer.size * batch if buffer.batched else buffer.size

    def text(self, batch: int) -> str:
        """The source of all kernels; at large batch sizes with 64-bit indices."""
        buffers = {buffer for command in self.commands for buffer in (*command.reads, *command.writes)}
        return self.source.text(max((self.elements(buffer, batch) for buffer in buffers), default=0) >= MIN_WIDE_ELEMENTS)

    # Scratch of this backend

    def _like(self, view: View) -> View:
        """Scratch shaped like a view, the batch outermost in memory."""
        if view.batched and not isinstance(view.shape[0], Batch):
            return self._like(view.T).T
        return View(Buffer(f"{view} staged", "scratch", view.dtype, view.shape), view.shape, c_strides(view.shape))

    def _temporary(self, name: str, dtype: np.dtype[Any], elements: Callable[[int], int]) -> Buffer:
        buffer = Buffer(name, "scratch", dtype, ())
        self._sizes[buffer] = elements
        return buffer

    # Lowering

    def _ready(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations, rewritten so that each has a kernel. Those that only write arrays of no elements are left out."""
        given = [each for each in operations if any(0 not in view.shape for view in each.outs)]
        if self._library is not None:
            given = with_operands(given, self._like)
        return [each for operation in given for each in self._prepared(operation)]

    def _loop(self, operation: Loop) -> list[Command]:
        """The steps of a loop, in one launch if that pays.

        Otherwise, all views of a buffer in its body that advance by the same steps become views of one stand-in buffer. All
        steps are done, even those that may be left out: a graph's launches are known before its first step.
        """
        if self._share is not None and suits(operation):
            made = LoopKernel(operation, self._share, self._outlasts, self._like)
            if made.possible and (self._share.forced or made.is_worth):
                self.barriers += made.barriers
                return [made.launch(self.source)]
        zeros = self._body(operation.zeros)
        moves: dict[Buffer, set[tuple[int, ...]]] = {}
        for view in (view for each in operation.body for view in each.views):
            moves.setdefault(view.buffer, set()).add(view.loop_strides)
        written = {view.buffer for each in operation.body for view in each.writes}
        if any(len(moves[buffer]) > 1 for buffer in written):  # whether two such views overlap depends on the step
            return [*zeros, *(step for number in range(operation.steps) for step in self._body(operation.at(number)))]
        body = self._body([each.on(self._standing) for each in operation.body])
        reads, writes = (
            tuple(dict.fromkeys(self.real(b) for step in body for b in each(step)))
            for each in map(attrgetter, ("reads", "writes"))
        )
        return [*zeros, Repeated(tuple(body), operation.steps, reads, writes, operation.label)]

    def _outlasts(self, buffer: Buffer) -> bool:
        """Whether the contents of a buffer are used before or after the one operation that touches it."""
        return buffer.role != "scratch" or self._touches[buffer] > 1

    def _body(self, operations: Sequence[Operation]) -> list[Command]:
        return self._lower(self._ready(operations), lambda positions: lambda buffer: True)

    def _standing(self, view: View) -> View:
        if not view.loop_strides:
            return view
        key = view.buffer, view.loop_strides
        if key not in self._advancing:
            place = replace(view.buffer, name=f"{view.buffer.name} advancing")
            self._advancing[key], self.advances[place] = place, key
        return replace(view, buffer=self._advancing[key], loop_strides=())

    def real(self, buffer: Buffer) -> Buffer:
        """The buffer itself; for a stand-in, the buffer that it replaces."""
        return self.advances[buffer][0] if buffer in self.advances else buffer

    def _prepared(self, operation: Operation) -> list[Operation]:
        """One operation, rewritten as operations that have a kernel."""
        first = [operation]
        if isinstance(operation, MatMul):
            first = prepared(operation, self._like)
        return [ready for each in first for ready in staged(each, self._like)]

    def _lower(self, operations: Sequence[Operation], stored: Callable[[range], Stored]) -> list[Command]:
        commands: list[Command] = []
        start = 0
        while start < len(operations):
            operation, stop, known = operations[start], start + 1, len(commands)
            if type(operation) not in ELEMENTWISE:
                commands += self._alone(operation)
            else:
                run, after, stop = run_at(operations, start)
                if after is not None:
                    commands += reduction(self.source, after, run, stored(range(start, stop)), self._temporary)
                else:
                    commands.append(self._elementwise(run, stored(range(start, stop))))
            done = operations[start:stop]
            self.origins += [(command, done) for command in commands[known:]]
            start = stop
        return commands

    def _needed(self, positions: range) -> Stored:
        """Whether a buffer is needed after the operations at these positions."""
        return lambda buffer: buffer.role != "scratch" or self._last[buffer] >= positions.stop

    def _elementwise(self, run: Run, stored: Stored) -> Command:
        pointers, space = Pointers(), Space(run.shape, [*run.outs, *run.ins])
        width, body = map_body(run, space, self._begins, pointers, stored)
        labels = dict.fromkeys(operation.label for operation in run.operations)
        grid = lambda batch: (blocks(count(space.kept, batch)), 1)  # noqa: E731
        return pointers.launch(self.source, "map", body, grid, block=(THREADS // width, 1), label=", ".join(labels))

    def _begins(self, view: View, multiple: int) -> bool:
        """Whether a view begins, at every step of the enclosing loops, at a multiple of elements from an aligned address."""
        moves = self.advances[view.buffer][1] if view.buffer in self.advances else ()
        return self._aligned and not any(each % multiple for each in (view.offset, *moves))

    def _alone(self, operation: Operation) -> list[Command]:
        try:
            lower = LOWERINGS[type(operation)]
        except KeyError:
            raise UnsupportedOperationError(cannot_run("cupy", operation)) from None
        return lower(self, operation)

    def _update_rows(self, operation: UpdateRows) -> list[Command]:
        """Update all rows: a GPU's memory is fast, and a search for single rows would serialise the steps."""
        return self._body(operation.in_parts())

    def _reduce(self, operation: Reduce) -> list[Command]:
        return reduction(self.source, operation, None, lambda buffer: True, self._temporary)

    def _convolve(self, operation: AnyConvolution) -> list[Command]:
        """The convolution by the device's library, if there is one."""
        own = partial(self._convolution, operation)
        if self._library is None:
            return own(self._temporary)
        return lowered(operation, self._library, self._temporary, own)

    def _convolution(self, operation: AnyConvolution, temporary: Temporary) -> list[Command]:
        """The convolution by kernels of this backend and cuBLAS."""
        if is_product(operation):
            return Lowering(self.source, operation, temporary, self._begins).commands()
        if isinstance(operation, ConvolveWeight):
            return convolve_weight(self.source, operation, temporary)
        return convolve(self.source, operation)


def _all_reduce(compiled: Compiled, operation: AllReduce) -> list[Command]:
    (out,), (a, words) = operation.outs, operation.ins
    return [Summed(out, a, words.buffer, operation.label)]


def _of_operation(kernel: Callable[..., list[Command]]) -> Callable[..., list[Command]]:
    """A lowering that needs only the operation."""
    return lambda compiled, operation: kernel(compiled.source, operation)


LOWERINGS: dict[type[Operation], Callable[..., list[Command]]] = {
    MatMul: lambda compiled, operation: [product(operation)],
    BatchMatMul: _of_operation(batch_matmul),
    Reduce: Compiled._reduce,
    Convolve: Compiled._convolve,
    ConvolveInput: Compiled._convolve,
    ConvolveWeight: Compiled._convolve,
    Pool: _of_operation(pool),
    PoolInput: _of_operation(pool_input),
    PoolRun: _of_operation(pool_run),
    PoolInputRun: lambda compiled, operation: pool_input_run(compiled.source, operation, compiled._temporary),
    Gather: _of_operation(gather),
    ScatterAdd: _of_operation(scatter_add),
    UpdateRows: Compiled._update_rows,
    Random: _of_operation(random),
    Loop: Compiled._loop,
    AllReduce: _all_reduce,
}
