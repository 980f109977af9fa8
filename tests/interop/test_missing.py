"""A bridge whose library is missing says which one, in its sentence and in the name of the error."""

from __future__ import annotations

import sys

import pytest

from chains import Chain, Dense, tanh
from chains.callbacks import TensorBoard
from chains.interop import as_jax, as_torch, from_onnx, from_torch, to_casadi, to_onnx, to_pyomo, to_torch

NET = Chain(Dense(2, 3, tanh), Dense(3, 1))
CALLS = {
    "as_jax": ("jax", lambda: as_jax(NET)),
    "as_torch": ("torch", lambda: as_torch(NET, NET.init())),
    "from_onnx": ("onnx", lambda: from_onnx("model.onnx")),
    "from_torch": ("torch", lambda: from_torch(None)),
    "to_casadi": ("casadi", lambda: to_casadi(NET, NET.init())),
    "to_onnx": ("onnx", lambda: to_onnx(NET, NET.init())),
    "to_pyomo": ("pyomo", lambda: to_pyomo(NET, NET.init())),
    "to_torch": ("torch", lambda: to_torch(NET, NET.init())),
    "TensorBoard": ("tensorboardX", lambda: TensorBoard("logs").on_train_begin([])),
}


@pytest.mark.parametrize(("package", "call"), CALLS.values(), ids=CALLS)
def test_the_missing_package_is_named(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"needs {package}: pip install {package} \(") as caught:
        call()
    assert caught.value.name == package
