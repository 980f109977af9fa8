"""Who takes part. A peer is a module with `step_rows`, `gradient_rows`, `epoch_rows` or `call_rows`, as far as it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.timing import Absent, Contestant

PEERS = {
    "chains": ("chains_peer", "chains"),
    "by_hand": ("by_hand_peer", "NumPy by hand"),
    "per_sample": ("per_sample_peer", "NumPy per sample"),
    "torch": ("torch_peer", "PyTorch"),
    "jax": ("jax_peer", "JAX"),
    "sklearn": ("sklearn_peer", "scikit-learn"),
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    quick: bool = False
    dtype: str = "float32"
    peers: Sequence[str] = tuple(PEERS)
    backends: Sequence[str] | None = None  # of chains; None: all there are


def rows(kind: str, problem: Any, options: Options) -> list[Contestant | Absent]:
    """All contestants for work of this kind: "step", "gradient", "epoch" (one shuffled pass in batches) or "call"."""
    found: list[Contestant | Absent] = []
    for name in options.peers:
        module_name, title = PEERS[name]
        try:
            module = import_module(f"benchmarks.{module_name}")
        except ImportError as error:
            found.append(Absent(title, f"not installed ({error})"))
            continue
        make = getattr(module, f"{kind}_rows", None)
        if make is not None:
            found += make(problem, options)
    return found
