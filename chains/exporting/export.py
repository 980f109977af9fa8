"""`export`: a network as a file for programs in other languages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.exporting.c_source import CSource
from chains.exporting.header import fortran_text, header_text
from chains.exporting.interface import DERIVATIVES, Interface, Request, interface_of
from chains.exporting.names import check_file_name, check_lengths
from chains.losses import Loss
from chains.network.checks import check_numeric
from chains.network.network import check_net, network_of
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.support import arguments
from chains.support.checks import check_c_name, check_flags, check_path, check_word, with_hints
from chains.support.messages import shown

SUFFIXES = (".o", ".a", ".so", ".wasm", ".c")


@with_hints
def export(
    net: Chain,
    path: str | os.PathLike[str],
    p: Any = None,
    *,
    state: Any = None,
    name: str = "model",
    dtype: Any = None,
    loss: Loss | None = None,
    target_shape: tuple[int, ...] | None = None,
    penalty: Penalty | None = None,
    optimizer: Optimizer | None = None,
    gradient: str | None = "both",
    derivatives: Sequence[str] = (),
    target: str | Sequence[str] = "native",
    header: bool = True,
    fortran: bool = True,
) -> list[Path]:
    """Write a network as an object file, a library or C source, which needs no Python and no runtime.

    Its functions are ``model_forward(n, x, p, y)`` and ``model_vjp(n, x, p, dy, g, dx)``; with a `loss`
    ``model_loss(n, x, p, t, g, dx)``, which returns the loss; with an `optimizer` also ``model_step``, a training step;
    networks with recurrent layers or causal convolutions have ``model_stream(n, x, p, carried, y, new_carried)``, one step of a
    sequence. All but the training step are in the mode "eval". They allocate nothing and may be called from many threads. See
    docs/export.md.

    Parameters
    ----------
    net : Chain
        The network.
    path : path
        The file to write. Its suffix decides: ".o", ".a" (a static library), ".c" (C99 source), and if there is a linker ".so"
        and ".wasm". The header and the Fortran module are written to the same folder.
    p, state : array, optional
        Parameters, shape (n_params,), and the state, shape (n_state,), which become part of the code. By default they are
        arguments.
    name : str
        The prefix of the names of all functions.
    dtype : "float32" or "float64", optional
        The type of all arrays. By default that of `p`, or float32 if `p` is not given.
    loss, target_shape, penalty, optimizer
        As for `net.program`.
    gradient : "parameters", "inputs", "both" or None
        The gradients that the functions fill.
    derivatives : sequence of "jvp", "jacobian" and "hessian"
        Functions of derivatives with respect to the inputs: ``model_jvp(n, x, p, dx, dy)``, those of the outputs along dx;
        ``model_jacobian(n, x, p, J)``, with J of shape (n, outputs, inputs); ``model_hessian(n, x, p, v, H)``, the second
        derivatives of the sum of v times the outputs, with H of shape (n, inputs, inputs). With "jacobian", networks
        with ``model_stream`` have ``model_stream_jacobian(n, x, p, carried, J)`` too, of one step.
    target : str or list of str
        The processor and system: "native", or names such as "x86-64-v3" and "aarch64" (`chains.exporting.targets`), several in
        a list or separated by commas. Levels of x86-64 share a file, which chooses the level at run time; any other target has
        a separate file, named after it. C source takes none: its compiler decides.
    header, fortran : bool
        Whether to write the C header and the Fortran module.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, before anything is written, and if a linker is needed but missing.
    UnsupportedOperationError
        If an operation of a custom layer has no code.
    NotImplementedError
        If a layer has no rule for the `derivatives`; the message names it.
    """
    path = check_output("path", path)
    check_flags(header=header, fortran=fortran)
    interface = interface_for(
        net, p, state, name=name, dtype=dtype, loss=loss, target_shape=target_shape, penalty=penalty, optimizer=optimizer,
        gradient=gradient, derivatives=derivatives,
    )  # fmt: skip
    return list(write(interface, path, target, header, fortran).contents)


def check_output(name: str, path: Any) -> Path:
    """The file to write. Raises TypeError or ValueError for anything but a path with one of the `SUFFIXES`."""
    file = check_path(name, path, "model.o")
    if file.suffix not in SUFFIXES:
        raise ValueError(f"`{name}` (={str(path)!r}) must end with one of {', '.join(SUFFIXES)}")
    check_file_name(name, file)
    return file


def interface_for(
    net: Chain, p: Any = None, state: Any = None, *, name: str = "model", dtype: Any = None, loss: Loss | None = None,
    target_shape: tuple[int, ...] | None = None, penalty: Penalty | None = None, optimizer: Optimizer | None = None,
    gradient: str | None = "both", derivatives: Sequence[str] = (),
) -> Interface:  # fmt: skip
    """The functions of a network with these settings of `export`, which are checked here."""
    check_net(net)
    check_c_name("name", name)
    if gradient is not None:
        check_word("gradient", gradient, "parameters", "inputs", "both")
    if dtype is None:
        dtype = np.float32 if p is None else arguments.check_params(p, net.n_params).dtype
    kind = arguments.check_dtype(dtype)
    criterion = _criterion(net, kind, loss, target_shape, penalty, optimizer)
    baked = _baked(net, kind, p, state, optimizer)
    request = Request(net, kind, gradient, criterion, optimizer, _derivatives(net, derivatives))
    return interface_of(request, name, baked)


@dataclass(frozen=True)
class Written:
    """The result of an export: the functions as callers see them, the names of the targets, and the contents of each file."""

    interface: Interface
    built_for: str
    contents: dict[Path, bytes]
    forward_seconds: Callable[[Sequence[int]], list[float]] | None = None  # for some numbers of samples, if it runs here


def write(interface: Interface, path: Path, target: str | Sequence[str], header: bool, fortran: bool) -> Written:
    """Write the files of an interface."""
    if path.suffix == ".c":
        if target != "native":
            raise ValueError(f"`target` (={target!r}) is for machine code: leave it out for C source, whose compiler decides")
        source = CSource(interface)
        interface, built_for, forward_seconds = source.interface, "compilers of C99", None
        contents = {path: source.text(path.with_suffix(".h").name if header else None).encode()}
    else:
        from chains.exporting.objects import compiled_files  # which loads LLVM

        interface, built_for, contents, forward_seconds = compiled_files(interface, path, target)
    if header:
        contents[path.with_suffix(".h")] = header_text(interface, built_for).encode()
    if fortran:
        contents[path.with_suffix(".f90")] = fortran_text(interface).encode()
    check_lengths("path", contents)
    for place, content in contents.items():
        place.write_bytes(content)
    return Written(interface, built_for, contents, forward_seconds)


def _criterion(
    net: Chain,
    dtype: np.dtype,
    loss: Loss | None,
    target_shape: tuple[int, ...] | None,
    penalty: Penalty | None,
    optimizer: Optimizer | None,
) -> Criterion | None:
    """The criterion of `model_loss`. Raises TypeError or ValueError for arguments that do not fit."""
    net.program(loss, optimizer, penalty=penalty, target_shape=target_shape, dtype=dtype)  # which checks them
    if loss is None:
        return None
    return Criterion(loss, net.output_shape if target_shape is None else tuple(target_shape), None, penalty)


def _derivatives(net: Chain, derivatives: Sequence[str]) -> tuple[str, ...]:
    """The checked names of derivatives, in the order of `DERIVATIVES`."""
    if isinstance(derivatives, str) or not isinstance(derivatives, Sequence):
        raise TypeError(f"`derivatives` (={shown(derivatives)}) must be a tuple of names, such as ('jacobian', 'hessian')")
    for each in derivatives:
        check_word("derivatives", each, *DERIVATIVES)
    if derivatives:
        check_numeric(network_of(net), ": leave `derivatives` out")
    return tuple(each for each in DERIVATIVES if each in derivatives)


def _baked(net: Chain, dtype: np.dtype, p: Any, state: Any, optimizer: Optimizer | None) -> dict[str, np.ndarray]:
    """The vectors that become part of the code, by name."""
    baked = {}
    if p is not None:
        if optimizer is not None:
            raise ValueError("`p` is part of the code where it is given, but an `optimizer` updates it: leave one of them out")
        baked["p"] = np.ascontiguousarray(arguments.check_params(p, net.n_params), dtype)
        arguments.check_finite(dtype, p=baked["p"])
    if state is not None:
        if optimizer is not None:
            raise ValueError(
                "`state` is part of the code where it is given, but an `optimizer` updates it: leave one of them out"
            )
        baked["state"] = np.ascontiguousarray(arguments.check_state(state, net.n_state, None, False, {}), dtype)
    return baked
