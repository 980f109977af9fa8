"""A loop as one launch: each block takes samples through all of its steps, with what they share in shared memory.

So recurrent networks go that do not fit into one kernel as a whole. What is done for all steps at once, before and behind the
loop, remains products of the library, and arrays with an entry for each step lie in the GPU's memory. Weights that the steps
read are copied into each block's shared memory once; states stay there from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chains.backends.cupy.fused import tiling_policy as policy
from chains.backends.cupy.fused.block import THREADS, Block, Repetition, Unit, meetings, phase_lines, phases
from chains.backends.cupy.fused.block_operations import ready, supported, take
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Launch, Pointers, Source, indented
from chains.backends.cupy.source.fusion import ELEMENTWISE, run_at
from chains.program.filled import Filled
from chains.program.loop import Loop
from chains.program.operations import Copy, MatMul, Operation
from chains.program.program import Program
from chains.program.scratch import Lifetime, plan_scratch
from chains.program.view import Batch, Buffer, View

VECTOR = 16  # bytes that a thread reads at once at most


@dataclass(frozen=True)
class LoopShare:
    """How loops are done: a block takes so many `samples`, and has so much `room` in bytes of shared memory.

    `forced`: wherever possible, rather than where it is expected to take less time than a graph.
    """

    samples: int
    room: int
    forced: bool = False


def has_loops(program: Program) -> bool:
    """Whether a program has any loops."""
    return any(isinstance(operation, Loop) for operation in program.operations)


def suits(operation: Loop) -> bool:
    """Whether a block can take samples through the whole loop, which must compute nothing but numbers of samples."""
    if operation.depth or operation.zeros or not supported(operation):
        return False
    return all(view.batched for view in operation.outs)


class LoopKernel:
    """The kernel of a loop that `suits`. Its blocks go through their samples in tiles as large as fit beside the weights.

    `elsewhere` tells of which buffers the contents matter before or behind the loop; `like` makes scratch shaped like a view.
    """

    def __init__(
        self, operation: Loop, share: LoopShare, elsewhere: Callable[[Buffer], bool], like: Callable[[View], View]
    ) -> None:
        self._loop, self._share = operation, share
        body = [one for each in operation.body for one in ready(each, like)]
        self._launches = sum(1 for _ in _commands(body))
        self._body = _with_slices(body, operation.depth)
        self._states = self._of_samples(elsewhere)
        self._weights = self._of_all()
        self._lay_out(share.samples)
        while self.nbytes > share.room and self.tile > 1:
            self._lay_out(policy.even(self.tile // 2))
        while self.nbytes > share.room and self._weights:  # the largest are read where they are
            self._weights.popitem()
            self._lay_out(1)

    @property
    def possible(self) -> bool:
        return self.nbytes <= self._share.room

    @property
    def meetings(self) -> int:
        """How often the threads of a block meet."""
        return -(-self._share.samples // self.tile) * meetings([[self._repetition]])

    @property
    def is_worth(self) -> bool:
        """Whether it is expected to take less time than the operations of each step one by one."""
        products = [each for each in self._body if isinstance(each, MatMul)]
        work = sum(self._turns(each) for each in products)
        tiles, steps, samples = -(-self._share.samples // self.tile), self._loop.steps, self._share.samples
        library = sum(each.flops(samples) for each in products) / policy.LIBRARY_OPERATIONS_PER_MEETING
        alone = policy.MEETINGS_PER_LAUNCH * self._launches + library
        return policy.MEETINGS_PER_LAUNCH + self.meetings + tiles * steps * work <= steps * alone

    def _turns(self, product: MatMul) -> float:
        """In how many times of a meeting a block does a product for a tile: it must multiply, and read the weights."""
        weights = [view for view in product.ins if not view.batched]
        rates = [policy.NEAR_BYTES_PER_MEETING if v in self._weights else policy.FAR_BYTES_PER_MEETING for v in weights]
        reading = sum(view.sample_size * view.dtype.itemsize / rate for view, rate in zip(weights, rates, strict=True))
        return max(product.flops(self.tile) / policy.OPERATIONS_PER_MEETING, reading)

    # What lies in shared memory

    def _of_samples(self, elsewhere: Callable[[Buffer], bool]) -> dict[Buffer, Buffer]:
        """The place of each buffer of samples that has no entry for each step; its own where it is of no use elsewhere."""
        found: dict[Buffer, Buffer] = {}
        for buffer, views in _by_buffer(self._body).items():
            if buffer.batched and not any(view.moves for view in views):
                near = Buffer(f"{buffer.name} of a tile", "scratch", buffer.dtype, buffer.shape)
                found[buffer] = near if elsewhere(buffer) else buffer
        return found

    def _of_all(self) -> dict[View, View]:
        """The place of each view of what all samples share, the smallest first."""
        views = [view for each in self._body for view in each.ins if not view.batched]
        found = {view: _copied(view, self._loop) for view in dict.fromkeys(views)}
        return dict(sorted(found.items(), key=lambda pair: pair[1].buffer.size))

    def _near(self, view: View) -> View:
        """The view, in shared memory where it has a place there."""
        if view in self._weights:
            return self._weights[view]
        return replace(view, buffer=self._states.get(view.buffer, view.buffer))

    def _lay_out(self, tile: int) -> None:
        """The units of the kernel for such tiles: those that come before all tiles, those for each, and those of a step."""
        self.tile, depth, steps = tile, self._loop.depth, self._loop.steps
        near = {*self._states.values(), *(view.buffer for view in self._weights.values())}
        body = [each.on(self._near) for each in self._body]
        before = [Copy((to.over(depth, steps),), (view.over(depth, steps),)) for view, to in self._weights.items()]
        loaded, kept = self._exchanged()
        operations = [*body, *before, *loaded, *kept]
        self._names: dict[Buffer, str] = {}
        far, work = _by_buffer(operations).keys() - near, list[Buffer]()

        def units(operations: Sequence[Operation]) -> list[Unit]:
            block = Block(tile, near, self._names, work, far=far)
            take(block, operations, lambda operations: lambda buffer: True)
            return block.units

        self._before, self._loaded, self._kept, step = (units(each) for each in (before, loaded, kept, body))
        self._repetition = Repetition.of(step, steps, depth)
        groups = phases(step)
        lives = [Lifetime(each, each.nbytes * (tile if each.batched else 1), False, 0, len(groups)) for each in near]
        for each in work:  # parts of sums are of no use to other units
            used = [number for number, group in enumerate(groups) if any(each in unit.buffers for unit in group)]
            lives.append(Lifetime(each, each.nbytes, False, used[0], used[-1]))
        plan = plan_scratch(lives)
        self._offsets, self.nbytes = plan.fixed, plan.fixed_bytes

    def _exchanged(self) -> tuple[list[Operation], list[Operation]]:
        """What is copied to the places of samples before the first step, and back behind the last."""
        read, written, filled = {view.buffer for view in self._loop.ins}, _written(self._body), Filled()
        filled.add(view for each in self._body for view in each.writes)
        loaded: list[Operation] = []
        kept: list[Operation] = []
        for buffer, near in self._states.items():
            if near is not buffer:
                here, there = (View(each, (Batch(), buffer.size), (buffer.size, 1)) for each in (near, buffer))
                loaded += [Copy((here,), (there,))] if buffer in read or not filled.covers(there) else []
                kept += [Copy((there,), (here,))] if buffer in written else []
        return loaded, kept

    # The kernel

    def launch(self, source: Source) -> Launch:
        """The launch of the kernel, which is put into `source`."""
        far, each = Pointers(), self._share.samples
        fixed, moving = self._pointers(far)
        units = [*self._loaded, self._repetition, *self._kept]
        lines = [
            "ON_CHIP;",
            "const Index all = batch;",
            *fixed,
            *phase_lines(phases(self._before)),
            f"const Index start = blockIdx.x * (Index){each}, stop = start + {each} < all ? start + {each} : all;",
            f"for (Index first = start; first < stop; first += {self.tile}) {{",
            f"    const Index batch = stop - first < {self.tile} ? stop - first : {self.tile};",
            *indented([*moving, *phase_lines(phases(units))]),
            "}",
        ]
        return far.launch(
            source, "loop", lines, lambda batch: (-(-batch // each), 1), block=(THREADS, 1),
            label=self._loop.label, shared=self.nbytes, apart=False,
        )  # fmt: skip

    def _pointers(self, far: Pointers) -> tuple[list[str], list[str]]:
        """Where the buffers lie: those that are the same for every tile, and those of a tile."""
        fixed, moving = [], []
        written = {view.buffer for unit in (self._repetition, *self._kept) for view in unit.writes}
        for buffer, name in self._names.items():
            kind = ctype(buffer.dtype)
            if buffer in self._offsets:
                fixed.append(f"{kind}* const {name} = ({kind}*)(chip + {self._offsets[buffer]});")
                continue
            outer = far.named(buffer, f"far_{name}", write=buffer in written)
            if buffer.batched:
                moving.append(f"{kind}* const {name} = {outer} + first * {buffer.size};")
            else:
                fixed.append(f"{kind}* const {name} = {outer};")
        return fixed, moving


def _copied(view: View, loop: Loop) -> View:
    """A place for a view of what all samples share: the axes in the same order in memory, without gaps but for one.

    Rows of matrices lie an odd number of vectors apart, so that threads that read vectors of neighbouring rows at the same time
    find them in different banks.
    """
    whole, width = view.over(loop.depth, loop.steps), VECTOR // view.dtype.itemsize
    strides, size = [0] * whole.ndim, 1
    for rank, axis in enumerate(sorted(range(whole.ndim), key=lambda k: whole.strides[k])):
        strides[axis] = size
        size *= int(whole.sample_shape[axis])
        if rank == 0 and whole.ndim > 1:
            size = (-(-size // width) | 1) * width
    near = Buffer(f"{view} of all", "scratch", view.dtype, (size,))
    move = view.move(loop.depth)
    if not move:
        return View(near, view.shape, tuple(strides))
    by = strides[0] if move > 0 else -strides[0]
    return View(near, view.shape, tuple(strides[1:]), max(0, -by) * (loop.steps - 1)).advancing(loop.depth, by)


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


def _with_slices(body: Sequence[Operation], depth: int) -> list[Operation]:
    """The body, with what a step writes and reads again in scratch of its own, from where it is copied to the step's entry."""
    slices = {buffer: _slice(views) for buffer, views in _by_buffer(body).items() if _reread(buffer, body, depth)}

    def sliced(view: View) -> View:
        found = slices.get(view.buffer)
        if found is None:
            return view
        near, first = found
        strides = tuple(near.size if isinstance(n, Batch) else s for n, s in zip(view.shape, view.strides, strict=True))
        return replace(view, buffer=near, strides=strides, offset=view.offset - first, moves=())

    result: list[Operation] = []
    for each in body:
        result.append(each.on(sliced))
        copied = [view for view in each.writes if slices.get(view.buffer) is not None]
        result += [Copy((view,), (sliced(view),), label=each.label) for view in copied]
    return result


def _reread(buffer: Buffer, body: Sequence[Operation], depth: int) -> bool:
    """Whether steps read what they have written themselves to their entries of a buffer, and nothing else of it."""
    filled, read = Filled(), False
    for each in body:
        ins = [view for view in each.reads if view.buffer is buffer]
        if not all(view.move(depth) and filled.covers(view) for view in ins):
            return False
        read = read or bool(ins)
        filled.add(view for view in each.writes if view.buffer is buffer)
    return read


def _slice(views: Sequence[View]) -> tuple[Buffer, int] | None:
    """Scratch for what one step touches of each sample, and the first element of that; None where samples have no such part."""
    buffer, ends = views[0].buffer, []
    for view in views:
        axes = list(zip(view.shape, view.strides, strict=True))
        if view.moves != views[0].moves or [axis for axis in axes if isinstance(axis[0], Batch)] != [(Batch(), buffer.size)]:
            return None
        ends.append(view.offset + sum((n - 1) * stride for n, stride in axes if isinstance(n, int)))
    first = min(view.offset for view in views)
    return Buffer(f"{buffer.name} now", "scratch", buffer.dtype, (Batch(), max(ends) + 1 - first)), first
