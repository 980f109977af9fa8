"""What the tests of the native backend share."""

from __future__ import annotations

import pytest


@pytest.fixture
def eager(monkeypatch):
    """Threads are used for any amount of work."""
    monkeypatch.setattr("chains.backends.native.binding.THREADED_WORK", 1)
