"""A network as a table with a line for each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chains.layers.base import Declaration
from chains.network.record import Network
from chains.params import Slice

MOST_LAYER_CHARACTERS = 60  # longer descriptions of composite layers are shown part by part


def summary(network: Network) -> str:
    """The layers with their output shapes, numbers of parameters, what is frozen, and the size of the state if any."""
    top = network.declaration
    rows = [("layer", "output", "parameters", "state"), *_rows(network, top)]
    rows.append(("in all", f"from {top.input}", _parameters(network.layout, network.frozen), f"{top.n_state:,}"))
    columns = range(4 if top.n_state else 3)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    lines = [
        "  ".join(f"{row[column]:{'<' if column < 2 else '>'}{widths[column]}}" for column in columns).rstrip() for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _rows(network: Network, parent: Declaration, indent: str = "") -> Iterator[tuple[str, str, str, str]]:
    """A row for each part of a layer. If a part is too long for one row, the rows of its parts follow."""
    digits = max((len(_short(child)) for child in parent.children), default=0)
    for child in parent.children:
        text = child.layer.brief()
        parted = len(text) > MOST_LAYER_CHARACTERS and bool(child.children)
        name = f"{indent}{_short(child):>{digits}}  {type(child.layer).__name__ if parted else text}"
        if parted:
            own = _parameters(child.slices.values(), network.frozen) if child.slices else ""
            yield name, str(child.output_shape), own, ""
            yield from _rows(network, child, indent + "    ")
        else:
            entries = [entry for entry in network.layout if entry.name.startswith(f"{child.name}.")]
            state = f"{child.n_state:,}" if child.n_state else ""
            yield name, str(child.output_shape), _parameters(entries, network.frozen), state


def _short(declaration: Declaration) -> str:
    """The name of a part within its parent."""
    return declaration.name.rpartition(".")[2]


def _parameters(slices: Iterable[Slice], frozen: frozenset[str]) -> str:
    """The number of parameters in the slices, and how many of them are frozen."""
    sizes = {entry.name: entry.stop - entry.start for entry in slices}
    still = sum(size for name, size in sizes.items() if name in frozen)
    return f"{sum(sizes.values()):,}" + (f" ({still:,} frozen)" if still else "")
