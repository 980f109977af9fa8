"""An operation has one home: each is in every table that code goes by, or a sentence here says why not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection

import pytest

from chains.backends.array_api import lowerings as array_api
from chains.backends.numpy import lowerings as numpy
from chains.exporting import c_operations
from chains.jets.jet import RULES
from chains.program.loop import Loop
from chains.program.operations import Operation
from chains.program.places import Part
from chains.program.rows import UpdateRows
from tests.house.test_house import operations
from tests.program.test_effects import SAMPLES

KINDS = operations("chains.program") - {Part}  # which is in no program
SOMETIMES_LINEAR = {type(each) for each in SAMPLES if each.linear_in is not None}


def with_transpose() -> set[type]:
    return {kind for kind in KINDS if kind.transpose is not Operation.transpose}


def native() -> Collection[type]:
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    return importlib.import_module("chains.backends.native.operations").LOWERED


def cupy() -> Collection[type]:
    compiler = importlib.import_module("chains.backends.cupy.compiler")
    return compiler.LOWERINGS.keys() | importlib.import_module("chains.backends.cupy.source.maps").ELEMENTWISE.keys()


TABLES: dict[str, Callable[[], Collection[type]]] = {
    "numpy": lambda: numpy.LOWERINGS,
    "array_api": lambda: array_api.VALUES.keys() | array_api.CALLS.keys(),
    "native": native,
    "cupy": cupy,
    "C": lambda: c_operations.WRITERS,
    "series": lambda: RULES.keys() | SOMETIMES_LINEAR,
    "transpose": with_transpose,
}
WITHOUT = {
    "C": {
        "AllReduce": "an exported network runs in one process",
        "UpdateRows": "it is exported in parts (`in_parts`)",
    },
    "series": {"UpdateRows": "only steps of optimisers have it, which have no derivatives"},
    "transpose": {
        "AllReduce": "layers that sum over processes have pullbacks written by hand",
        "Loop": "`LoopTransposer` reverses it, with the operations around it",
        "UpdateRows": "only steps of optimisers have it, which have no pullback",
    },
}


def lacking(table: str) -> set[str]:
    """The operations that are not in a table."""
    return {kind.__name__ for kind in KINDS if kind not in TABLES[table]()}


@pytest.mark.parametrize("table", TABLES)
def test_every_operation_is_in_every_table(table):
    assert len(KINDS) == len({kind.__name__ for kind in KINDS}) > 15
    assert lacking(table) == set(WITHOUT.get(table, {})), f"add a record of the operation for {table}, or a sentence why not"


def test_every_operation_has_a_sample():
    assert {type(each) for each in SAMPLES} == KINDS - {UpdateRows}  # whose tests are in `tests/optimizers`


def test_an_operation_without_a_record_is_found(monkeypatch):
    monkeypatch.setitem(TABLES, "numpy", lambda: {kind for kind in KINDS if kind is not Loop})
    assert lacking("numpy") == {"Loop"}
