"""The settings of the GPU backend, and which rooms of it import which."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import chains.backends.cupy
from chains import Chain, Dense, backends
from chains.backends import Cupy, backend
from chains.network.network import network_of
from tests.cupy import fake_cupy
from tests.cupy.support import needs_compiler

HERE = Path(chains.backends.cupy.__file__).parent
ABOVE = {  # by folder: those of this backend that it must not import, and files of no folder
    "source": {"device", "kernels", "fused", "."},
    "device": {"kernels", "fused", "."},
    "kernels": {"fused", "."},
    "fused": {"device", "."},
}


def imported(folder: str) -> set[str]:
    """The folders of this backend that files of one import; "." for files of no folder."""
    found = set()
    for path in (HERE / folder).glob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = [node.module.split(".")[3:] for node in nodes if f"{node.module}.".startswith("chains.backends.cupy.")]
        found |= {name[0] if (HERE / name[0]).is_dir() else "." for name in names}
    return found


@pytest.mark.parametrize("folder", ABOVE)
def test_no_room_imports_one_above(folder):
    assert not imported(folder) & ABOVE[folder]
    assert folder == "source" or imported(folder)


def test_settings_are_compared_and_printed():
    assert Cupy() == Cupy("float32", "auto", False) != Cupy(tune=True)
    assert hash(Cupy("tf32")) == hash(Cupy(precision="tf32"))
    assert repr(Cupy()) == "Cupy()"
    assert repr(Cupy("tf32", "cudnn", tune=True)) == "Cupy(precision='tf32', convolutions='cudnn', tune=True)"
    assert eval(repr(Cupy("tf32"))) == Cupy("tf32")


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"precision": "bf16"}, ValueError, r"`precision` \(='bf16'\) must be one of 'float32', 'tf32'"),
        ({"convolutions": None}, ValueError, r"`convolutions` \(=None\) must be one of 'auto', 'cudnn', 'own'"),
        ({"tune": 1}, TypeError, r"`tune` \(=1\) must be True or False"),
        ({"tune": True, "convolutions": "own"}, ValueError, "`tune` .* but `convolutions` is 'own'"),
    ],
)
def test_bad_settings(settings, error, sentence):
    with pytest.raises(error, match=sentence):
        Cupy(**settings)


def test_there_is_one_name():
    assert [name for name in backends.registry._BACKENDS if name.startswith("cupy") and "kernel" not in name] == ["cupy"]
    for name in ("cupy-tf32", "cupy-bf16-activations-timed", "cupy-serial", Cupy):
        with pytest.raises(ValueError, match=r"unknown `backend` .* such as backend=chains.backends.Cupy\(precision='tf32'\)"):
            Chain(Dense(3, 2), backend=name)


@needs_compiler
def test_networks_keep_their_settings(monkeypatch):
    """Equal settings are one backend; pickled networks have theirs again; defaults are those of the name."""
    fake_cupy.install(monkeypatch)
    assert backend(Cupy()) is backend("cupy")
    assert backend(Cupy("tf32")) is backend(Cupy("tf32")) is not backend("cupy")
    net = Chain(Dense(3, 2), backend=Cupy("tf32"))
    again = pickle.loads(pickle.dumps(net))
    assert again.backend == Cupy("tf32")
    assert network_of(again).backend is network_of(net).backend
    assert network_of(net).backend.on_device.device._cublas._precision == "tf32"
