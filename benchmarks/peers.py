"""Who takes part.

A peer is a module `NAME_peer` with `step_rows`, `gradient_rows`, `epoch_rows` or `call_rows`, as far as it can, for chains of
dense layers, and perhaps a module `NAME_network` with `network_rows`, for the networks of `networks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.timing import Absent, Contestant

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


def rows(kind: str, problem: Any, options: Options, family: str = "peer") -> list[Contestant | Absent]:
    """All contestants for work of this kind: "step", "gradient", "epoch" (one shuffled pass in batches) or "call"."""
    found: list[Contestant | Absent] = []
    for name in options.peers:
        module_name = f"benchmarks.{name}_{family}"
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
    return rows("network", problem, options, "network")
