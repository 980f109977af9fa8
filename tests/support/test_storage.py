"""Files that are written whole: moving them where somebody reads the one before, as on Windows."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from chains.support import storage


@pytest.fixture
def refusals(monkeypatch):
    """How often files were moved in vain, of the number that the test asks for."""
    asked, move = {"left": 0, "seen": 0}, os.replace

    def replace(source, target):
        if asked["left"]:
            asked["left"] -= 1
            asked["seen"] += 1
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(storage, "WAITS", (0.0, 0.001, 0.002))
    return asked


@pytest.mark.parametrize(("system", "most"), [("win32", 3), ("linux", 0)])
def test_a_file_that_is_read_is_replaced_later_on_windows(system, most, refusals, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    path, arrays = tmp_path / "a.safetensors", [{"a": np.full(3, k)} for k in range(3)]
    storage.write(path, arrays[0], {})
    refusals["left"] = most
    storage.write(path, arrays[1], {})
    assert refusals["seen"] == most
    assert storage.read(path)[0]["a"].tolist() == [1, 1, 1]
    refusals["left"] = most + 1
    with pytest.raises(PermissionError):
        storage.write(path, arrays[2], {})
    assert storage.read(path)[0]["a"].tolist() == [1, 1, 1]
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]
