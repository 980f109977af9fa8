"""A network as a table: a line a layer."""

from __future__ import annotations

from collections.abc import Iterable

from chains.params import Slice
from chains.record import Network

LONGEST_NAME = 60  # of a layer; of longer ones, such as blocks of many layers, the beginning is shown


def summary(network: Network) -> str:
    """The layers with their output shapes, numbers of parameters, what is frozen, and the size of the state if any."""
    top = network.declaration
    rows = [("layer", "output", "parameters", "state")]
    digits = len(str(len(top.children) - 1))
    for child in top.children:
        own = [entry for entry in network.layout if entry.name.split(".")[0] == child.name]
        row = (
            f"{child.name:>{digits}}  {_shortened(repr(child.layer))}",
            str(child.output_shape),
            _parameters(own, network.frozen),
        )
        rows.append((*row, f"{child.n_state:,}" if child.n_state else ""))
    rows.append(("in all", f"from {top.input}", _parameters(network.layout, network.frozen), f"{top.n_state:,}"))
    columns = range(4 if top.n_state else 3)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    lines = [
        "  ".join(f"{row[column]:{'<' if column < 2 else '>'}{widths[column]}}" for column in columns).rstrip() for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 4]} ..."


def _parameters(slices: Iterable[Slice], frozen: frozenset[str]) -> str:
    """How many numbers the slices hold, and how many of them are frozen."""
    sizes = {entry.name: entry.stop - entry.start for entry in slices}
    still = sum(size for name, size in sizes.items() if name in frozen)
    return f"{sum(sizes.values()):,}" + (f" ({still:,} frozen)" if still else "")
