"""What the tests of the native backend share."""

from __future__ import annotations

import itertools

import pytest


@pytest.fixture
def eager(monkeypatch):
    """Threads are used for any amount of work."""
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)


@pytest.fixture
def many(monkeypatch):
    """As if there were four processors, and any amount of work were worth them."""
    native = "chains.backends.native"
    monkeypatch.setattr(f"{native}.binding.processors", lambda: 4)
    monkeypatch.setattr(f"{native}.memory_plan.MIN_THREAD_OPERATIONS", 1)
    monkeypatch.setattr(f"{native}.backend.MIN_PART_OPERATIONS", 1)
    monkeypatch.setattr(f"{native}.feed.MIN_TEAM_STEPS", 1)
    monkeypatch.setattr(f"{native}.feed.PATIENCE_PAUSES", 1 << 30)


@pytest.fixture
def changed_compiler(monkeypatch):
    """To call where a test changes how programs are compiled.

    Programs are known by what they say and by the compiler's sources: one compiled before would be taken, and one compiled
    now would be found by other tests, in this run and in later ones.
    """
    numbers = itertools.count()

    def change():
        name = f"compiler {next(numbers)} of a test"
        monkeypatch.setattr("chains.backends.native.compiled.compiler_version", lambda: name)

    monkeypatch.setenv("CHAINS_CACHE", "off")
    change()
    return change
