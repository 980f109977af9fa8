"""Every tutorial of the site runs as a script in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="tutorials draw")
ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").rglob("*.py"))
OPTIONAL = {"jax", "onnx", "onnxruntime", "optuna", "scipy", "sklearn", "torch"}


@pytest.mark.few(3)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path, tmp_path):
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg"}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    missing = re.search(r"^ModuleNotFoundError: No module named '(\w+)", done.stderr, re.MULTILINE)
    if missing and missing[1] in OPTIONAL:
        pytest.skip(f"needs {missing[1]}")
    assert done.returncode == 0, done.stderr
