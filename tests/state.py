"""The state of the process that all tests share, which a test must leave as it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends import registry
from chains.support import threads

# Variables that pytest sets, and JAX, PyTorch and scikit-learn when their modules are imported.
UNWATCHED = {
    os.environ.encodekey(name)  # type: ignore[attr-defined]
    for name in (
        "PYTEST_CURRENT_TEST",
        "TF_CPP_MIN_LOG_LEVEL",
        "TPU_SKIP_MDS_QUERY",
        "TORCHINDUCTOR_CACHE_DIR",
        "KMP_INIT_AT_FORK",
    )
}


BACKEND = {"backend": None, "backend_fallback": None}  # of matplotlib, found when it is first needed, and spelt in two ways


def _torch(torch: Any) -> object:
    return torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()


def _variables() -> dict[object, object]:
    """The environment, as the system writes it: to read its texts takes longer than all else here."""
    return {name: text for name, text in os.environ._data.items() if name not in UNWATCHED}  # type: ignore[attr-defined]


# Modules that may be loaded, and their state.
MODULES: dict[str, Callable[[Any], object]] = {
    "torch": _torch,
    "jax": lambda jax: jax.config.jax_enable_x64,
    "matplotlib": lambda matplotlib: dict(dict.items(matplotlib.rcParams)) | BACKEND,
}


def of_process() -> dict[str, Any]:
    """The state, by what it belongs to; of another library only if it is loaded."""
    found = {
        "os.environ": _variables(),
        "os.getcwd()": os.getcwd(),
        "sys.path": list(sys.path),
        "np.geterr()": np.geterr(),
        "the handler of SIGINT": signal.getsignal(signal.SIGINT),
        "subnormal numbers": 5e-324 * float(len(threads._number.blocks) + 1) > 0.0,
        "the number of threads": (threads._number.chosen, len(threads._number.blocks)),
        "the names of backends": sorted(registry._BACKENDS),
    }
    return found | {name: state(sys.modules[name]) for name, state in MODULES.items() if name in sys.modules}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs, a line each. What was loaded in between has changed nothing."""
    pairs = [(name, before[name], after[name]) for name in before if name in after and before[name] != after[name]]
    return [f"{name}: {_difference(old, new)}" for name, old, new in pairs]


def _difference(old: Any, new: Any) -> str:
    if not isinstance(old, dict):
        return f"{old!r} -> {new!r}"
    names = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    names += sorted(old.keys() ^ new.keys())
    return ", ".join(f"{name}: {old.get(name)!r} -> {new.get(name)!r}" for name in names)
