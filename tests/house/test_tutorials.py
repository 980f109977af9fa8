"""Every tutorial of the site runs as a script in an empty folder."""

from __future__ import annotations

import runpy
from functools import partialmethod
from pathlib import Path

import pytest

from chains import MultipleShooting

matplotlib = pytest.importorskip("matplotlib", reason="tutorials draw")
ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").rglob("*.py"))
OPTIONAL = {"casadi", "jax", "onnx", "onnxruntime", "optuna", "scipy", "sklearn", "torch"}


def test_tutorials_end_with_suggestions():
    """The last paragraph of each is text that begins so."""
    last = {path.stem: path.read_text().rsplit("# %%\n", 1)[1] for path in TUTORIALS}
    assert [name for name, text in last.items() if not text.startswith("# To try next: ") or "\n\n" in text] == []


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # of the packages that tutorials use
def test_tutorials_run(path, tmp_path, monkeypatch):
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITERATIONS", "20")  # of equations/burgers.py and its neighbours
    monkeypatch.setattr(MultipleShooting, "fit", partialmethod(MultipleShooting.fit, maxiter=5))
    matplotlib.use("agg")
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"needs {error.name}")
    finally:
        pyplot.close("all")
