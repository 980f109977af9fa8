"""Everything the package offers has a case in the harness."""

from __future__ import annotations

from types import FunctionType

import pytest

import chains
from chains import initializers, schedules
from chains.activations import ACTIVATIONS, Activation
from tests import harness
from tests.own import Double

MISSING = harness.uncovered()  # empty, or each test below would fail for the same reason


def found() -> list[str]:
    """What is found to have no case, in addition to what has none anyway."""
    return [name for name in harness.uncovered() if name not in MISSING]


def test_everything_has_a_case():
    wanted = ", ".join(f"{name} to `{table}`" for name, table in MISSING.items())
    assert not MISSING, f"tests/harness.py lacks cases: add {wanted}; CONTRIBUTING.md lists what else to add"


def test_case_names_differ():
    names = [case.name for case in harness.CASES]
    assert len(set(names)) == len(names)


class _Settings:
    """Concrete versions of the abstract bases, as a careless author might add them."""

    class UncheckedLayer(chains.Layer):
        declare = Double.declare
        forward = Double.forward
        pullback = Double.pullback

    class UncheckedLoss(chains.Loss):
        def record(self, ops, y, t, w, value, dy): ...

    class UncheckedPenalty(chains.Penalty):
        def record(self, ops, at, p, g, value): ...

    class UncheckedOptimizer(chains.SGD):
        pass


@pytest.mark.parametrize("kind", ["Layer", "Loss", "Penalty", "Optimizer"])
def test_a_class_without_a_case_is_found(kind, monkeypatch):
    name = f"Unchecked{kind}"
    monkeypatch.setattr(chains, name, getattr(_Settings, name), raising=False)
    assert found() == [name]


def test_a_class_that_is_not_exported_is_found_too(monkeypatch):
    monkeypatch.setattr(_Settings.UncheckedLayer, "__module__", "chains.layers.dense")
    monkeypatch.setattr(chains.layers.dense, "UncheckedLayer", _Settings.UncheckedLayer, raising=False)
    assert found() == ["UncheckedLayer"]


def test_an_activation_without_a_case_is_found(monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "unchecked", Activation("unchecked", lambda x: x, lambda y: 1.0))
    assert found() == ["unchecked"]


def test_a_schedule_without_a_case_is_found(monkeypatch):
    unchecked = FunctionType((lambda step: step).__code__, vars(schedules))  # a function of that module
    monkeypatch.setattr(schedules, "unchecked", unchecked, raising=False)
    assert found() == ["unchecked"]


def test_an_initializer_without_a_case_is_found(monkeypatch):
    unchecked = type("Unchecked", (), {"__module__": initializers.__name__})
    monkeypatch.setattr(initializers, "Unchecked", unchecked, raising=False)
    assert found() == ["Unchecked"]


def test_a_case_can_be_taken_away(monkeypatch):
    monkeypatch.setattr(harness, "CASES", [case for case in harness.CASES if case.subject is not chains.Softmax])
    assert found() == ["Softmax"]
