"""``python -m chains export``: what it writes, and what it says where it cannot."""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_ssize_t, c_void_p

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Dense, tanh
from chains.__main__ import main

pytest.importorskip("llvmlite", reason="object files need llvmlite")

from chains.backends.native.llvm.jit import Code
from chains.backends.native.llvm.target import ARM, processor


def saved(folder):
    net = Chain(Dense(4, 3, tanh), BatchNorm(3), Dense(3, 2))
    chains.save(folder / "m.safetensors", net, net.init(0), net.init_state())
    return str(folder / "m.safetensors")


def test_files_are_written_for_all_targets(tmp_path, capsys):
    file, output = saved(tmp_path), tmp_path / "model.o"
    assert main(["export", file, str(output), "--target", "x86-64-v3,aarch64"]) == 0
    names = ["model-x86-64.o", "model-aarch64.o", "model.h", "model.f90"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:4]] == [str(tmp_path / name) for name in names]
    assert f"object file, {(tmp_path / names[1]).stat().st_size:,} bytes" in printed[1]
    assert "vectors    29 parameters, 6 state; float32; part of the code: parameters, state" in printed
    assert "function   void model_forward(ptrdiff_t n, const float *x, float *y, void *work)" in printed
    assert "void model_forward(ptrdiff_t n, const float *x, float *y, void *work);" in (tmp_path / "model.h").read_text()


def test_parameters_may_stay_arguments(tmp_path):
    given = ["--free", "--name", "net", "--gradient", "none", "--dtype", "float64", "--no-fortran"]
    given += ["--derivatives", "jacobian, jvp"]
    main(["export", saved(tmp_path), str(tmp_path / "net.c"), *given])
    text = (tmp_path / "net.h").read_text()
    assert "void net_forward(ptrdiff_t n, const double *x, const double *p, const double *state, double *y" in text
    assert "net_vjp" not in text
    assert "void net_jacobian(ptrdiff_t n, const double *x, const double *p, const double *state, double *J" in text
    assert "net_jvp" in text
    assert "net_hessian" not in text
    assert not (tmp_path / "net.f90").exists()


def test_what_cannot_be_done_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        main(["export", saved(tmp_path), str(tmp_path / "net.exe")])
    assert "`output`" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(tmp_path / "none.safetensors"), str(tmp_path / "net.o")])
    np.testing.assert_equal(sorted(path.name for path in tmp_path.iterdir()), ["m.safetensors"])


def test_errors_name_the_options_of_the_command(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU()), tmp_path / "images.pt")
    for output, rest, said in (
        ("model.o", [], "`--input-shape` is needed"),
        ("model.c", ["--input-shape", "1,8,8", "--target", "cortex-m4"], "`--target` (='cortex-m4') is for machine code"),
    ):
        with pytest.raises(SystemExit, match="1"):
            main(["export", str(tmp_path / "images.pt"), str(tmp_path / output), *rest])
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["images.pt"]


def test_a_call_is_timed_where_this_computer_can_run_it(tmp_path, capsys):
    main(["export", saved(tmp_path), str(tmp_path / "model.o"), "--free"])
    times = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("time")]
    assert len(times) == 2
    assert 0.0 < float(times[0]) < float(times[1])
    main(["export", saved(tmp_path), str(tmp_path / "model.o"), "--target", "aarch64"])
    assert ("\ntime " in capsys.readouterr().out) == ARM


def forward(path):
    """The forward pass of one sample by the code at `path`, with parameters in it."""
    code = Code("exported", path.read_bytes(), ["model_forward"], processor(), cached=False)
    x, y = np.linspace(-1.0, 1.0, 4, dtype=np.float32), np.zeros(2, np.float32)
    CFUNCTYPE(None, c_ssize_t, c_void_p, c_void_p)(code.address("model_forward"))(1, x.ctypes.data, y.ctypes.data)
    return x, y


def test_modules_of_pytorch_are_exported(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    torch.save(module, tmp_path / "module.pt")
    torch.save(module.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "structure.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))\n"
    )
    structure = ["--structure", f"{tmp_path / 'structure.py'}:build"]
    for file, rest in (("module.pt", []), ("weights.pth", structure)):
        main(["export", str(tmp_path / file), str(tmp_path / "model.o"), *rest])
        x, y = forward(tmp_path / "model.o")
        np.testing.assert_allclose(y, module(torch.from_numpy(x)).detach().numpy(), rtol=1e-6)


def test_files_of_pytorch_run_no_code(tmp_path, capsys):
    torch = pytest.importorskip("torch")

    class Custom(torch.nn.Module):
        def __reduce__(self):
            return (print, ("executed",))

    torch.save(Custom(), tmp_path / "custom.pt")
    torch.save({"0.weight": torch.zeros(2, 3)}, tmp_path / "weights.pt")
    for file, said in (
        ("custom.pt", "layers of torch.nn alone"),
        ("weights.pt", "weights without a structure: name the module"),
    ):
        with pytest.raises(SystemExit, match="1"):
            main(["export", str(tmp_path / file), str(tmp_path / "model.o")])
        printed = capsys.readouterr()
        assert said in printed.err
        assert ("`--structure" in printed.err) == (file == "weights.pt")
        assert "executed" not in printed.out


def test_models_of_onnx_are_exported(tmp_path):
    pytest.importorskip("onnx")
    net = Chain(Dense(4, 3, tanh), Dense(3, 2))
    p = net.init(0)
    chains.interop.to_onnx(net, p, path=tmp_path / "model.onnx")
    main(["export", str(tmp_path / "model.onnx"), str(tmp_path / "model.o")])
    x, y = forward(tmp_path / "model.o")
    np.testing.assert_allclose(y, net(x[None], p)[0], rtol=1e-6)
