"""Which row needs what, and an environment for each: made when it is first asked for, and kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """A row: its title, its module in `cnn/` and perhaps `rnn/`, its distribution, what is installed, and its variables."""

    title: str
    module: str
    distribution: str
    requirements: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    published: str = ""  # the row of the published table that it continues
    note: str = ""


KERAS, TORCH, JAX = "keras==3.15.1", "torch==2.13.0", "jax==0.10.2"
TENSORFLOW = ("tensorflow-cpu==2.21.0", KERAS)
OLD_NUMPY = "numpy==1.23.5"

ROWS = {
    "chains": Row("chains", "chains_row", "chains-nn", (str(ROOT),)),
    "torch": Row("PyTorch", "torch_row", "torch", (TORCH, "numpy"), published="PyTorch"),
    "tensorflow": Row("TensorFlow", "tensorflow_row", "tensorflow-cpu", TENSORFLOW, published="TensorFlow"),
    "keras-tensorflow": Row(
        "Keras (TensorFlow)", "keras_row", "keras", TENSORFLOW, {"KERAS_BACKEND": "tensorflow"}, "Keras (TensorFlow)"
    ),
    "keras-torch": Row("Keras (PyTorch)", "keras_row", "keras", (TORCH, KERAS), {"KERAS_BACKEND": "torch"}),
    "keras-jax": Row("Keras (JAX)", "keras_row", "keras", (JAX, KERAS), {"KERAS_BACKEND": "jax"}),
    "flax": Row("JAX with Flax", "flax_row", "flax", (JAX, "flax==0.12.8", "optax")),
    "equinox": Row("JAX with Equinox", "equinox_row", "equinox", (JAX, "equinox==0.13.8", "optax")),
    "paddle": Row("PaddlePaddle", "paddle_row", "paddlepaddle", ("paddlepaddle==3.3.1", "numpy")),
    "tinygrad": Row("tinygrad", "tinygrad_row", "tinygrad", ("tinygrad==0.14.0", "numpy"), {"DEV": "CPU"}, note="needs clang"),
    "mlx": Row("MLX", "mlx_row", "mlx", ("mlx[cpu]==0.32.4", "numpy")),
    "mxnet": Row("MXNet (Gluon)", "mxnet_row", "mxnet", ("mxnet==1.9.1", OLD_NUMPY), published="MXNet (Gluon)", note="museum"),
    "chainer": Row(
        "Chainer", "chainer_row", "chainer", ("setuptools==65.7.0", "wheel", OLD_NUMPY, "chainer==7.8.1"),
        published="Chainer", note="museum",
    ),
}  # fmt: skip


def rows(kind: str) -> list[str]:
    """The names of the rows of a problem, "cnn" or "rnn"."""
    return [name for name, row in ROWS.items() if (ROOT / "rosetta" / kind / f"{row.module}.py").exists()]


def cache() -> Path:
    """The folder of the environments: `ROSETTA_CACHE`, or one in the user's cache."""
    return Path(os.environ.get("ROSETTA_CACHE", Path.home() / ".cache" / "chains" / "rosetta"))


def interpreter(row: Row) -> str:
    """The Python of a row's environment, which is made where there is none. Raises RuntimeError with pip's last words."""
    name = hashlib.sha256("\n".join((sys.version, *row.requirements)).encode()).hexdigest()[:16]
    folder = cache() / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return str(python)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if row.note == "museum":  # sources of old distributions build with the tools of their time, one after the other
        for requirement in row.requirements:
            isolation = [] if requirement.startswith(("setuptools", "wheel", "numpy")) else ["--no-build-isolation"]
            _run([*pip, *isolation, requirement])
    else:
        _run([*pip, *row.requirements])
    (folder / "ready").write_text("\n".join(row.requirements))
    return str(python)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise RuntimeError(words[-1])
