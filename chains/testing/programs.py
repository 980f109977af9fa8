"""Programs on a backend by its name, with scratch memory that a test fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chains.backends import Backend, Cupy, registered
from chains.backends import backend as find_backend
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import concrete
from chains.support.checks import check_count, check_flags, check_is
from chains.support.messages import shown


def usable_backends() -> tuple[str, ...]:
    """The names of the backends that can be used on this computer, registered ones included."""
    return tuple(_usable(("numpy", "native", "cupy", *registered())))


def named_backends(names: Sequence[str] | None, by_default: Sequence[str]) -> tuple[str, ...]:
    """The names of backends; None stands for the defaults that can be used here. Raises TypeError unless they are a list."""
    if names is None:
        return tuple(_usable(by_default))
    if not isinstance(names, (list, tuple)) or not names:
        raise TypeError(f"`backends` (={shown(names)}) must be a list of names, such as ['numpy', 'native']")
    return tuple(names)


def _usable(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        try:
            find_backend(name)
        except ValueError:  # its libraries or its GPU are missing
            continue
        yield name


def run_program(
    program: Program, name: str | Backend, batch: int, arrays: Mapping[str, np.ndarray], fill: int = 0, runs: int = 1
) -> dict[str, np.ndarray]:
    """Run a program on arrays. Outputs hold NaN beforehand.

    Parameters
    ----------
    program : Program
        The program.
    name : str or Backend
        The backend.
    batch : int
        The number of samples.
    arrays : mapping of array
        The inputs and states by name; states are copied.
    fill : int
        The byte that scratch memory holds beforehand.
    runs : int
        The number of runs.

    Returns
    -------
    dict of array
        The arrays that it wrote, by name.
    """
    own = {}
    for buffer in program.buffers.values():
        if buffer.role == "output":
            own[buffer.name] = np.full(concrete(buffer.shape, batch), np.nan, buffer.dtype)
        elif buffer.name in arrays:
            own[buffer.name] = np.array(arrays[buffer.name], buffer.dtype, order="C")
    backend = find_backend(name).choose(program)
    binding = backend.bind(program, batch, own, scratch=filled(backend.scratch_bytes(program, batch), fill))
    with backend.running():
        for _ in range(runs):
            binding.run()
    return {
        buffer.name: binding.arrays[buffer.name] for buffer in program.buffers.values() if buffer.role in ("output", "state")
    }


def filled(nbytes: int, fill: int) -> np.ndarray:
    """Aligned bytes, all `fill`."""
    block = np.full(nbytes + ALIGNMENT, fill, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def listing(program: Program, backend: str | Cupy | Backend = "auto", *, passes: bool = False, batch: int | None = None) -> str:
    """A program as a backend runs it; for "native" the operations, LLVM's code and the machine code.

    Parameters
    ----------
    program : Program
        The result of `Chain.program`.
    backend : str, backends.Cupy or backends.Backend
        As of a `Chain`, such as ``net.backend``.
    passes : bool
        Whether to show the program after each pass of the backend, under the name of the pass. Backends other than
        "native" show one stage.
    batch : int, optional
        The number of samples: for few of them, "native" divides products among threads. None shows the code for any number.

    Returns
    -------
    str
        The listing.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    """
    check_is("program", program, Program, "a program such as net.program()")
    check_flags(passes=passes)
    if batch is not None:
        check_count("batch", batch)
    return find_backend(backend).listing(program, passes=passes, batch=batch)
