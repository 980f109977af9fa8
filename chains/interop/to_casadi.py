"""Networks as functions of CasADi: machine code in a shared library, with exact first and second derivatives."""

from __future__ import annotations

import math
import os
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.interop.parts import needed
from chains.layers.stepwise import joined
from chains.network.checks import check_numeric
from chains.network.network import check_net, network_of
from chains.network.stepping import Stepping
from chains.support import arguments
from chains.support.checks import check_c_name, check_count, check_flags, check_path

_numbers = count()


def to_casadi(
    net: Chain,
    p: Any = None,
    state: Any = None,
    *,
    name: str = "F",
    given: int = 0,
    step: bool = False,
    samples: int = 1,
    path: str | os.PathLike[str] | None = None,
    target: str = "native",
) -> Any:
    """A function of CasADi that computes a network, with exact first and second derivatives, in machine code.

    CasADi's solvers call it without Python. It can be mapped over a horizon (`F.map`), and code that CasADi generates from it
    links the library at `path`. Several solvers and threads may call it simultaneously.

    Parameters
    ----------
    net : Chain
        The network. Its inputs are numbers; several axes are flattened in C's order.
    p : array, shape (n_params,), optional
        Its parameters, which become part of the code. None: they are an argument of the function, with exact first derivatives
        but without second ones; a solver that asks for these gets an error.
    state : array, shape (n_state,), optional
        Its state, for networks that have one; part of the code.
    name : str
        The function's name, and that of the symbol in the library.
    given : int
        The number of last features of a sample that are a separate argument, `given`, such as parameters of a plant.
    step : bool
        Whether the function is one step of a network along time, as `net.step`, rather than the whole sequence.
    samples : int
        The number of samples of a call, as columns. Derivatives are sparse, since samples do not depend on each other.
    path : path, optional
        Where to write the library, a file ".so"; its header is written to the same folder. None: a temporary file, which
        is removed when Python ends.
    target : str
        The processor, as for `export`: "native", or levels of x86-64 with commas between.

    Returns
    -------
    casadi.Function
        ``F(x)``, ``F(x, given)``, ``F(x, p)`` or ``F(x, given, p)``, where x has shape (features, samples) and the result
        (outputs, samples), in float64 and in the mode "eval". With `step`, ``F(x, carried)`` or ``F(x, carried, p)`` gives
        the outputs of the step and the new carried states, (n_carried, samples). These begin as zeros, or as the entries of `p`
        for ``initial_state="parameter"``.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and if no linker is found.
    NotImplementedError
        For a layer without a rule for derivatives with respect to the inputs; the message names it.
    ImportError
        If CasADi is missing.
    """
    casadi = needed("casadi")
    check_net(net)
    check_c_name("name", name)
    check_numeric(network_of(net))
    check_count("samples", samples, 1)
    check_count("given", given, 0)
    check_flags(step=step)
    if step:
        if given:
            raise ValueError(f"`given` (={given}) must be left out with `step`: divide x, an expression of CasADi")
        stepping = Stepping(network_of(net))
        one, given = stepping.network, stepping.n_carried
        net = Chain(joined(one.declaration.layer, one.input_shape), input_shape=(math.prod(one.input_shape) + given,))
    features = math.prod(net.input_shape)
    if given >= features:
        raise ValueError(f"`given` (={given}) must be less than the number of the network's features, {features}")
    place = _temporary(name) if path is None else check_path("path", path, "F.so")
    if place.suffix != ".so":
        raise ValueError(f"`path` (={str(place)!r}) must end with .so: CasADi loads shared libraries")
    baked = _baked(net, p, state)
    from chains.exporting.casadi import casadi_library  # which loads LLVM

    code, header = casadi_library(net, baked, name, samples, given, target)
    place.write_bytes(code)
    place.with_suffix(".h").write_text(header)
    found = casadi.external(name, str(place.resolve()))
    return _split(casadi, found, given) if step else found


def _split(casadi: Any, F: Any, n_carried: int) -> Any:
    """The function of a step, whose outputs and new carried states are two results."""
    names = ["x", "carried", *(F.name_in(k) for k in range(2, F.n_in()))]
    arguments = [casadi.MX.sym(each, F.sparsity_in(k)) for k, each in enumerate(names)]
    parts = casadi.vertsplit(F(*arguments), [0, F.size1_out(0) - n_carried, F.size1_out(0)])
    return casadi.Function(F.name(), arguments, parts, names, ["y", "new_carried"])


def _baked(net: Chain, p: Any, state: Any) -> dict[str, np.ndarray]:
    """The vectors that become part of the code."""
    baked = {}
    if p is not None or not net.n_params:
        p = np.empty(0) if p is None else p
        baked["p"] = np.ascontiguousarray(arguments.check_params(p, net.n_params), np.float64)
        arguments.check_finite(baked["p"].dtype, p=baked["p"])
    if net.n_state:
        if state is None:
            raise ValueError(f"`state` is missing: this network has one ({net.state_layout[0].name}, ...)")
        baked["state"] = np.ascontiguousarray(arguments.check_state(state, net.n_state, None, False, {}), np.float64)
    elif state is not None:
        raise ValueError("`state` is given, but this network has none")
    return baked


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder that is removed when Python ends."""
    return TemporaryDirectory(prefix="chains-casadi-")


def _temporary(name: str) -> Path:
    """A new path for each library, since the system does not load a path twice."""
    return Path(_folder().name, f"{name}{next(_numbers)}.so")
