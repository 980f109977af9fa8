"""Kernels and the commands of a program on a GPU: launches of kernels, and matrix products.

A kernel is a text and the types of its parameters: the batch size, the addresses of buffers, and a few more numbers.
Fixed lengths and strides are part of the text, so that one kernel serves every batch size. Equal texts are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chains.backends.cupy.source.c_source import ctype, prelude
from chains.program.view import Buffer, View

THREADS = 256  # of a block

Grid = tuple[int, int]


@dataclass(frozen=True)
class Kernel:
    """A kernel's name, the C types of its parameters, and its definition."""

    name: str
    parameters: tuple[str, ...]
    text: str


class Command:
    """One request to the device. `reads` and `writes` are the buffers that must be alive."""

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Launch(Command):
    """One launch of a kernel on `buffers`, with the `numbers` and the grid that belong to a batch size.

    It is left out at batch sizes for which `grid` gives None.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    grid: Callable[[int], Grid | None]
    block: tuple[int, int] = (THREADS, 1)
    numbers: Callable[[int], tuple[int, ...]] = field(default=lambda batch: ())
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    label: str = ""
    shared: int = 0  # bytes of shared memory in addition to those that the text declares


@dataclass(frozen=True)
class Matrix:
    """An operand of a product in memory: rows of `leading` elements, or columns if `transposed`."""

    view: View
    leading: int
    transposed: bool


@dataclass(frozen=True)
class Product(Command):
    """out = a @ b, or out += a @ b, with `leading` elements from a row of `out` to the next."""

    out: View
    a: Matrix
    b: Matrix
    sizes: Callable[[int], tuple[int, int, int]]  # rows, columns, inner
    leading: int
    accumulate: bool = False
    label: str = ""

    @property
    def reads(self) -> tuple[Buffer, ...]:  # type: ignore[override]
        ins = (self.a.view.buffer, self.b.view.buffer)
        return (*ins, self.out.buffer) if self.accumulate else ins

    @property
    def writes(self) -> tuple[Buffer, ...]:  # type: ignore[override]
        return (self.out.buffer,)


@dataclass(frozen=True)
class Summed(Command):
    """out = the sum of a over all processes that `words` name: contiguous views, which may be the same."""

    out: View
    a: View
    words: Buffer
    label: str = ""

    @property
    def reads(self) -> tuple[Buffer, ...]:  # type: ignore[override]
        return (self.a.buffer,)

    @property
    def writes(self) -> tuple[Buffer, ...]:  # type: ignore[override]
        return (self.out.buffer,)


@dataclass(frozen=True)
class Tiled(Command):
    """Commands that are known once the batch size is: the same for one part of the samples after another."""

    commands: Callable[[int], list[Command]]
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Repeated(Command):
    """The commands of a loop: `body`, `times` times."""

    body: tuple[Command, ...]
    times: int
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    label: str = ""


def untiled(commands: Iterable[Command], batch: int) -> Iterator[Command]:
    """The commands at a batch size, with tiled ones replaced by their commands."""
    for command in commands:
        yield from untiled(command.commands(batch), batch) if isinstance(command, Tiled) else (command,)


def unrolled(commands: Iterable[Command], around: tuple[int, ...] = ()) -> Iterator[tuple[Command, tuple[int, ...]]]:
    """The commands, repeated as in their loops, each with the numbers of the steps of these loops, the outermost first."""
    for command in commands:
        if isinstance(command, Repeated):
            for number in range(command.times):
                yield from unrolled(command.body, (*around, number))
        else:
            yield command, around


Definition = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str]  # types, names, body, head


class Source:
    """The kernels of a program: their definitions in one text."""

    def __init__(self) -> None:
        self.kernels: dict[Definition, Kernel] = {}

    def kernel(
        self,
        parameters: Sequence[str],
        names: Sequence[str],
        body: Sequence[str],
        hint: str,
        threads: int = THREADS,
        resident: int = 1,
    ) -> Kernel:
        """The kernel of this body; `parameters` are C types, for the variables `names`.

        A multiprocessor has registers for at least `resident` blocks at a time.
        """
        head = "KERNEL" if threads == THREADS else f"KERNEL_OF({threads}, {resident})"
        key = tuple(parameters), tuple(names), tuple(body), head
        if key not in self.kernels:
            name = f"{hint}_{len(self.kernels)}"
            arguments = ", ".join(f"{kind} {variable}" for kind, variable in zip(parameters, names, strict=True))
            text = f"{head} {name}({arguments})\n{{\n" + "".join(f"    {line}\n" for line in body) + "}\n"
            self.kernels[key] = Kernel(name, tuple(parameters), text)
        return self.kernels[key]

    def text(self, wide: bool) -> str:
        """The text of all kernels; with `wide`, indices have 64 bits, for arrays of very many elements."""
        index = "long long" if wide else "int"
        return "\n".join([prelude(index), *HELPERS, *(kernel.text for kernel in self.kernels.values())])


HELPERS: list[str] = []  # functions that kernels call


class Pointers:
    """The parameters of a kernel that are addresses: `b0`, `b1`, ... one for each buffer, in the order of first use.

    `names` are those of buffers that have one already.
    """

    def __init__(self, names: dict[Buffer, str] | None = None) -> None:
        self.buffers: dict[Buffer, str] = {} if names is None else names
        self.written: set[Buffer] = set()
        self.read: set[Buffer] = set()

    def __call__(self, buffer: Buffer, *, write: bool = False) -> str:
        (self.written if write else self.read).add(buffer)
        return self.buffers.setdefault(buffer, f"b{len(self.buffers)}")

    def named(self, buffer: Buffer, name: str, *, write: bool = False) -> str:
        """A parameter of this name."""
        self.buffers.setdefault(buffer, name)
        return self(buffer, write=write)

    def launch(
        self,
        source: Source,
        hint: str,
        body: Sequence[str],
        grid: Callable[[int], Grid | None],
        *,
        block: tuple[int, int] = (THREADS, 1),
        extra: Sequence[str] = (),
        numbers: Callable[[int], tuple[int, ...]] = lambda batch: (),
        label: str = "",
        shared: int = 0,
        apart: bool = True,
        resident: int = 1,
    ) -> Launch:
        """A launch of the kernel with this body; `extra` names the `numbers`.

        `apart`: whether each array is accessed through one parameter only, and arrays that are read do not change while the
        kernel runs. `resident`: as of `Source.kernel`.
        """
        kinds = [self._parameter(buffer, apart) for buffer in self.buffers]
        types = ["const Index", *kinds, *("const Index" for _ in extra)]
        names = ["batch", *self.buffers.values(), *extra]
        kernel = source.kernel(types, names, body, hint, max(THREADS, block[0] * block[1]), resident)
        buffers = tuple(self.buffers)
        reads, writes = (tuple(b for b in buffers if b in some) for some in (self.read, self.written))
        return Launch(kernel, buffers, grid, block, numbers, reads, writes, label, shared)

    def _parameter(self, buffer: Buffer, apart: bool) -> str:
        """The C type of the parameter for a buffer."""
        kind = ctype(buffer.dtype)
        if not apart:
            return f"{kind}*"
        return f"{kind}* __restrict__" if buffer in self.written else f"const {kind}* __restrict__"


def blocks(elements: int, most: int = 1 << 16) -> int:
    """The number of blocks for this number of elements, one a thread, but no more than `most`: a thread then does several."""
    return max(1, min(-(-elements // THREADS), most))


def each_element(count: str, body: Sequence[str], index: str = "i") -> list[str]:
    """A loop over the numbers below `count`, as C, split among all threads: the variable `index`."""
    first, step = "blockIdx.x * (Index)blockDim.x + threadIdx.x", "gridDim.x * (Index)blockDim.x"
    head = f"for (Index {index} = {first}; {index} < count; {index} += {step}) {{"
    return [f"const Index count = {count};", head, *indented(body), "}"]


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" for line in lines]
