"""Every tutorial of the site runs; some a day, in an empty folder."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.rglob("*.py"))
OPTIONAL = {"jax", "matplotlib", "onnx", "onnxruntime", "optuna", "scipy", "sklearn", "torch"}


@pytest.mark.by_day(few=4)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path, tmp_path, monkeypatch, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # of the packages that tutorials use
        try:
            runpy.run_path(str(path))
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            pytest.skip(f"needs {error.name}")
        finally:
            pyplot.close("all")
    assert capsys.readouterr().err == ""
