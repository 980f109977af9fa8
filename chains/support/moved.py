"""Pickles of earlier versions name modules that have moved: with this module, which the package imports, they are found."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {  # by the earlier names of version 0.2.0; only modules whose objects are part of pickles
    "chains.data.augment": "chains.data.batches",
    "chains.expr.replay": "chains.expr.formulas",
    "chains.layers.append": "chains.layers.shape",
    "chains.layers.batch_norm": "chains.layers.norm",
    "chains.layers.causal_conv": "chains.layers.conv",
    "chains.layers.cells": "chains.layers.rnn",
    "chains.layers.resample": "chains.layers.shape",
    "chains.layers.select": "chains.layers.shape",
    "chains.network.objective": "chains.objectives.objective",
    "chains.optimizers.rmsprop": "chains.optimizers.adagrad",
    "chains.program.window": "chains.program.operations",
    "chains.residuals.tracing": "chains.residuals.loss",
    "chains.samplers": "chains.sampling.samplers",
    "chains.tape": "chains.support.call_graph",
}
REMEDY = (
    "another version of chains wrote the pickle: make the object again, or load the pickle with that version and keep the "
    "network by chains.save(path, net, p)"
)


class _Loader:
    """Gives a module under its earlier name the contents of the present one."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # an ordinary, empty one

    def exec_module(self, module: ModuleType) -> None:
        now = vars(import_module(MOVED[module.__name__]))
        kept = {name: thing for name, thing in now.items() if name == "__doc__" or not name.startswith("__")}
        vars(module).update(kept)


class Finder:
    """Finds moved modules; the error for others names pickles as a possible cause. Python asks it after all other finders."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in MOVED:
            return ModuleSpec(name, _Loader())  # type: ignore[arg-type]
        if name.startswith("chains."):
            raise ModuleNotFoundError(f"No module named {name!r}. If a pickle asks for it, {REMEDY}", name=name)
        return None


if not any(isinstance(finder, Finder) for finder in sys.meta_path):
    sys.meta_path.append(Finder())
