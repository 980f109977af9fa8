"""Summaries of a network: a table with a line for each layer, and its recorded programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from chains.layers.base import Declaration, SampleShape
from chains.losses import Loss
from chains.network import executables, record
from chains.network.network import Network
from chains.optimizers import Optimizer
from chains.params import Layout, Slice
from chains.penalties import Penalty
from chains.program.program import Program
from chains.support import arguments
from chains.support.checks import check_flags, check_is, check_shape
from chains.support.memory import on_host

MAX_LAYER_CHARACTERS = 60  # longer descriptions of composite layers are shown part by part


def program_of(
    network: Network, loss: Loss | None, optimizer: Optimizer | None, penalty: Penalty | None, target_shape: SampleShape | None,
    dtype: Any, mode: str, parallel: bool,
) -> Program:  # fmt: skip
    """The recorded operations of a call; see `Chain.program`."""
    training, dtype = arguments.check_mode(mode), arguments.check_dtype(dtype)
    check_flags(parallel=parallel)
    if loss is None:
        given = {"optimizer": optimizer, "penalty": penalty, "target_shape": target_shape, "parallel": parallel or None}
        for name, value in given.items():
            if value is not None:
                raise TypeError(f"`loss` is missing: `{name}` (={value!r}) is of use with one only")
        return record.forward(network, dtype, training)
    target = network.output_shape if target_shape is None else check_shape("target_shape", target_shape)
    criterion = executables.check_criterion(network, record.Criterion(loss, target, None, penalty))
    loss.check_target(network.output_shape, target)
    if optimizer is None:
        return record.gradient(network, criterion, dtype, training, parallel=parallel)
    check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    return record.training_step(network, criterion, optimizer, dtype, parallel=parallel)


def summary(network: Network, p: Any) -> str:
    """A table of the layers. With the backend "auto", it ends with the reasons why NumPy runs a program, if it does."""
    if network.backend.name == "auto":
        for make in (executables.forward_pass, executables.backward_pass):
            make(network, np.empty(0, np.float32), True)
    p = None if p is None else arguments.check_params(p, network.n_params)
    return "\n".join([table(network, p), *network.programs.fallbacks])


def table(network: Network, p: np.ndarray | None = None) -> str:
    """The layers with output shapes, numbers of parameters, frozen ones, the size of the state if any, and bounds."""
    top = network.declaration
    rows = [("layer", "output", "parameters", "state"), *_rows(network, top)]
    rows.append(("in all", f"from {top.input}", _parameters(network.layout, network.frozen), f"{top.n_state:,}"))
    columns = range(4 if top.n_state else 3)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    lines = [
        "  ".join(f"{row[column]:{'<' if column < 2 else '>'}{widths[column]}}" for column in columns).rstrip() for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *_bounded(network.layout, p)])


def _rows(network: Network, parent: Declaration, indent: str = "") -> Iterator[tuple[str, str, str, str]]:
    """A row for each part of a layer. If a part is too long for one row, the rows of its parts follow."""
    digits = max((len(_short(child)) for child in parent.children), default=0)
    for child in parent.children:
        text = child.layer.short_repr()
        parted = len(text) > MAX_LAYER_CHARACTERS and bool(child.children)
        name = f"{indent}{_short(child):>{digits}}  {type(child.layer).__name__ if parted else text}"
        if parted:
            own = _parameters(child.slices.values(), network.frozen) if child.slices else ""
            yield name, str(child.output_shape), own, ""
            yield from _rows(network, child, indent + "    ")
        else:
            entries = [entry for entry in network.layout if entry.name.startswith(f"{child.name}.")]
            state = f"{child.n_state:,}" if child.n_state else ""
            yield name, str(child.output_shape), _parameters(entries, network.frozen), state


def _bounded(layout: Layout, p: np.ndarray | None) -> Iterator[str]:
    """A line for each parameter with bounds: with parameters `p`, its value and the stored number."""
    for entry in layout:
        if entry.bounds is not None:
            stored = None if p is None else on_host(p)[entry.start : entry.stop]
            now = "" if stored is None else f" {_range(entry.bounds.value(stored))}, stored as {_range(stored)}"
            yield f"{entry.name} is {entry.bounds}{now and ':'}{now}"


def _range(values: np.ndarray) -> str:
    return f"{values.min():.6g}" if values.size == 1 else f"{values.min():.6g} to {values.max():.6g}"


def _short(declaration: Declaration) -> str:
    """The name of a part within its parent."""
    return declaration.name.rpartition(".")[2]


def _parameters(slices: Iterable[Slice], frozen: frozenset[str]) -> str:
    """The number of parameters in the slices, and how many of them are frozen."""
    sizes = {entry.name: entry.stop - entry.start for entry in slices}
    still = sum(size for name, size in sizes.items() if name in frozen)
    return f"{sum(sizes.values()):,}" + (f" ({still:,} frozen)" if still else "")
