"""A loop as one launch: each block takes samples through all of its steps, with common arrays in shared memory.

It serves recurrent networks that do not fit into one kernel as a whole. Products for all steps together, before and after the
loop, are the library's, and arrays with an entry for each step are in the GPU's memory. Weights that the steps
read are copied into each block's shared memory once; states stay there from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chains.backends.cupy.fused import tiling_policy as policy
from chains.backends.cupy.fused.block import THREADS, Block, Repetition, Unit, barriers, phase_lines, phases
from chains.backends.cupy.fused.block_operations import ready, supported, take
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Launch, Pointers, Source, indented
from chains.backends.cupy.source.maps import ELEMENTWISE, run_at
from chains.program.loop import Filled, Loop
from chains.program.operations import Copy, MatMul, Operation
from chains.program.program import Program
from chains.program.scratch import Lifetime, plan_scratch
from chains.program.view import Batch, Buffer, View

VECTOR = 16  # bytes that a thread reads in one instruction at most


@dataclass(frozen=True)
class LoopShare:
    """The share of a block in a loop: its `samples`, and its `room` in bytes of shared memory.

    `forced`: wherever possible, not only where it is expected to take less time than a graph.
    """

    samples: int
    room: int
    forced: bool = False


def has_loops(program: Program) -> bool:
    """Whether a program has any loops."""
    return any(isinstance(operation, Loop) for operation in program.operations)


def suits(operation: Loop) -> bool:
    """Whether a block can take samples through the whole loop, which may compute only numbers of samples."""
    if operation.depth or operation.zeros or not supported(operation):
        return False
    return all(view.batched for view in operation.outs)


class LoopKernel:
    """The kernel of a loop that `suits`. Its blocks take their samples in tiles as large as fit next to the weights.

    `elsewhere` says whether a buffer is used before or after the loop; `like` makes scratch shaped like a view.
    """

    def __init__(
        self, operation: Loop, share: LoopShare, elsewhere: Callable[[Buffer], bool], like: Callable[[View], View]
    ) -> None:
        self._loop, self._share = operation, share
        body = [one for each in operation.body for one in ready(each, like)]
        self._launches = sum(1 for _ in _commands(body))
        self._body = body
        self._states = self._of_samples(elsewhere)
        self._weights = self._of_all()
        self._lay_out(share.samples)
        while self.nbytes > share.room and self.tile > 1:
            self._lay_out(policy.even(self.tile // 2))
        while self.nbytes > share.room and self._weights:  # the largest are read in place
            self._weights.popitem()
            self._lay_out(1)

    @property
    def possible(self) -> bool:
        return self.nbytes <= self._share.room

    @property
    def barriers(self) -> int:
        """The number of barriers that a block comes to."""
        return -(-self._share.samples // self.tile) * barriers([[self._repetition]])

    @property
    def is_worth(self) -> bool:
        """Whether it is expected to take less time than the operations of each step one by one."""
        products = [each for each in self._body if isinstance(each, MatMul)]
        work = sum(self._turns(each) for each in products)
        tiles, steps, samples = -(-self._share.samples // self.tile), self._loop.steps, self._share.samples
        library = sum(each.flops(samples) for each in products) / policy.LIBRARY_OPERATIONS_PER_BARRIER
        alone = policy.BARRIERS_PER_LAUNCH * self._launches + library
        return policy.BARRIERS_PER_LAUNCH + self.barriers + tiles * steps * work <= steps * alone

    def _turns(self, product: MatMul) -> float:
        """The time of a product for a tile, as a number of barriers: the block must multiply, and read the weights."""
        weights = [view for view in product.ins if not view.batched]
        rates = [policy.SHARED_BYTES_PER_BARRIER if v in self._weights else policy.GLOBAL_BYTES_PER_BARRIER for v in weights]
        reading = sum(view.sample_size * view.dtype.itemsize / rate for view, rate in zip(weights, rates, strict=True))
        return max(product.flops(self.tile) / policy.OPERATIONS_PER_BARRIER, reading)

    # The contents of shared memory

    def _of_samples(self, elsewhere: Callable[[Buffer], bool]) -> dict[Buffer, Buffer]:
        """The place of each buffer of samples that has no entry for each step; a separate one if it is not used elsewhere."""
        found: dict[Buffer, Buffer] = {}
        for buffer, views in _by_buffer(self._body).items():
            if buffer.batched and not any(view.loop_strides for view in views):
                shared = Buffer(f"{buffer.name} of a tile", "scratch", buffer.dtype, buffer.shape)
                found[buffer] = shared if elsewhere(buffer) else buffer
        return found

    def _of_all(self) -> dict[View, View]:
        """The place of each view that all samples share, the smallest first."""
        views = [view for each in self._body for view in each.ins if not view.batched]
        found = {view: _copied(view, self._loop) for view in dict.fromkeys(views)}
        return dict(sorted(found.items(), key=lambda pair: pair[1].buffer.size))

    def _shared(self, view: View) -> View:
        """The view, in shared memory if it has a place there."""
        if view in self._weights:
            return self._weights[view]
        return replace(view, buffer=self._states.get(view.buffer, view.buffer))

    def _lay_out(self, tile: int) -> None:
        """The units of the kernel for such tiles: those that come before all tiles, those for each, and those of a step."""
        self.tile, depth, steps = tile, self._loop.depth, self._loop.steps
        shared = dict.fromkeys([*self._states.values(), *(view.buffer for view in self._weights.values())])
        body = [each.on(self._shared) for each in self._body]
        before = [Copy((to.over(depth, steps),), (view.over(depth, steps),)) for view, to in self._weights.items()]
        loaded, kept = self._exchanged()
        operations = [*body, *before, *loaded, *kept]
        self._names: dict[Buffer, str] = {}
        in_global, work = _by_buffer(operations).keys() - shared.keys(), list[Buffer]()

        def units(operations: Sequence[Operation]) -> list[Unit]:
            block = Block(tile, shared, self._names, work, global_=in_global)
            take(block, operations, lambda operations: lambda buffer: True)
            return block.units

        self._before, self._loaded, self._kept, step = (units(each) for each in (before, loaded, kept, body))
        self._repetition = Repetition.of(step, steps, depth)
        groups = phases(step)
        lives = [Lifetime(each, each.nbytes * (tile if each.batched else 1), False, 0, len(groups)) for each in shared]
        for each in work:  # parts of sums are of no use to other units
            used = [number for number, group in enumerate(groups) if any(each in unit.buffers for unit in group)]
            lives.append(Lifetime(each, each.nbytes, False, used[0], used[-1]))
        plan = plan_scratch(lives)
        self._offsets, self.nbytes = plan.fixed, plan.fixed_bytes

    def _exchanged(self) -> tuple[list[Operation], list[Operation]]:
        """The copies to the places of samples before the first step, and those back after the last."""
        read, written, filled = {view.buffer for view in self._loop.ins}, _written(self._body), Filled()
        filled.add(view for each in self._body for view in each.writes)
        loaded: list[Operation] = []
        kept: list[Operation] = []
        for buffer, shared in self._states.items():
            if shared is not buffer:
                here, there = (View(each, (Batch(), buffer.size), (buffer.size, 1)) for each in (shared, buffer))
                loaded += [Copy((here,), (there,))] if buffer in read or not filled.covers(there) else []
                kept += [Copy((there,), (here,))] if buffer in written else []
        return loaded, kept

    # The kernel

    def launch(self, source: Source) -> Launch:
        """The launch of the kernel, which is put into `source`."""
        pointers, each = Pointers(), self._share.samples
        fixed, moving = self._pointers(pointers)
        units = [*self._loaded, self._repetition, *self._kept]
        lines = [
            "SHARED_MEMORY;",
            "const Index all = batch;",
            *fixed,
            *phase_lines(phases(self._before)),
            f"const Index start = blockIdx.x * (Index){each}, stop = start + {each} < all ? start + {each} : all;",
            f"for (Index first = start; first < stop; first += {self.tile}) {{",
            f"    const Index batch = stop - first < {self.tile} ? stop - first : {self.tile};",
            *indented([*moving, *phase_lines(phases(units))]),
            "}",
        ]
        return pointers.launch(
            source, "loop", lines, lambda batch: (-(-batch // each), 1), block=(THREADS, 1),
            label=self._loop.label, shared=self.nbytes, apart=False,
        )  # fmt: skip

    def _pointers(self, pointers: Pointers) -> tuple[list[str], list[str]]:
        """The places of the buffers: those that are the same for every tile, and those of a tile."""
        fixed, moving = [], []
        written = {view.buffer for unit in (self._repetition, *self._kept) for view in unit.writes}
        for buffer, name in self._names.items():
            kind = ctype(buffer.dtype)
            if buffer in self._offsets:
                fixed.append(f"{kind}* const {name} = ({kind}*)(shared_memory + {self._offsets[buffer]});")
                continue
            outer = pointers.named(buffer, f"global_{name}", write=buffer in written)
            if buffer.batched:
                moving.append(f"{kind}* const {name} = {outer} + first * {buffer.size};")
            else:
                fixed.append(f"{kind}* const {name} = {outer};")
        return fixed, moving


def _copied(view: View, loop: Loop) -> View:
    """A place for a view that all samples share: the axes in the same order in memory, without gaps except one.

    Rows of matrices are an odd number of vectors apart, so threads that read vectors of neighbouring rows at the same time find
    them in different banks.
    """
    whole, width = view.over(loop.depth, loop.steps), VECTOR // view.dtype.itemsize
    strides, size = [0] * whole.ndim, 1
    for rank, axis in enumerate(sorted(range(whole.ndim), key=lambda k: whole.strides[k])):
        strides[axis] = size
        size *= int(whole.sample_shape[axis])
        if rank == 0 and whole.ndim > 1:
            size = (-(-size // width) | 1) * width
    shared = Buffer(f"{view} of all", "scratch", view.dtype, (size,))
    move = view.loop_stride(loop.depth)
    if not move:
        return View(shared, view.shape, tuple(strides))
    by = strides[0] if move > 0 else -strides[0]
    return View(shared, view.shape, tuple(strides[1:]), max(0, -by) * (loop.steps - 1)).advancing(loop.depth, by)


def _commands(operations: Sequence[Operation]) -> Iterator[Operation]:
    """The first operation of each kernel that does them one by one."""
    at = 0
    while at < len(operations):
        yield operations[at]
        at = run_at(operations, at)[2] if type(operations[at]) in ELEMENTWISE else at + 1


def _by_buffer(operations: Sequence[Operation]) -> dict[Buffer, list[View]]:
    found: dict[Buffer, list[View]] = {}
    for view in (view for each in operations for view in each.views):
        found.setdefault(view.buffer, []).append(view)
    return found


def _written(operations: Sequence[Operation]) -> set[Buffer]:
    return {view.buffer for each in operations for view in each.writes}
