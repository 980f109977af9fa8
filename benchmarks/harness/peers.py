"""Who takes part.

A peer is a module `peers/NAME_dense.py` with `step_rows`, `gradient_rows`, `epoch_rows` or `call_rows`, as far as it can, for
chains of dense layers, and perhaps a module `peers/NAME_networks.py` with `network_rows`, for the networks of
`problems/networks.py`. JAX and PyTorch have a module for each of some other problems, such as `peers/jax_ensemble.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.harness.timing import Absent, Contestant

PEERS = {
    "chains": "chains",
    "by_hand": "NumPy by hand",
    "per_sample": "NumPy per sample",
    "torch": "PyTorch",
    "jax": "JAX",
    "sklearn": "scikit-learn",
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    quick: bool = False
    dtype: str = "float32"
    peers: Sequence[str] = tuple(PEERS)
    backends: Sequence[str] | None = None  # of chains; None: all there are
    seeds: Sequence[int] | None = None  # of the runs that show accuracy; None: as many as were promised
    epochs: int | None = None  # of these runs; None: as many as were promised


def rows(kind: str, problem: Any, options: Options, family: str = "dense") -> list[Contestant | Absent]:
    """All contestants for work of this kind: "step", "gradient", "epoch" (one shuffled pass in batches) or "call"."""
    found: list[Contestant | Absent] = []
    for name in options.peers:
        module_name = f"benchmarks.peers.{name}_{family}"
        if find_spec(module_name) is None:
            continue
        try:
            module = import_module(module_name)
        except ImportError as error:
            found.append(Absent(PEERS[name], f"not installed ({error})"))
            continue
        make = getattr(module, f"{kind}_rows", None)
        if make is not None:
            found += make(problem, options)
    return found


def network_rows(problem: Any, options: Options) -> list[Contestant | Absent]:
    """All contestants for passes through the samples of a `networks.Problem`."""
    return rows("network", problem, options, "networks")


def libraries(problem: str, options: Options) -> tuple[list[Contestant | Absent], dict[str, Any]]:
    """Of JAX and PyTorch, if they take part: rows of those that are not installed, modules of those that are."""
    names = [name for name in ("jax", "torch") if name in options.peers]
    absent: list[Contestant | Absent] = [Absent(PEERS[name], "not installed") for name in names if find_spec(name) is None]
    return absent, {PEERS[n]: import_module(f"benchmarks.peers.{n}_{problem}") for n in names if find_spec(n) is not None}
