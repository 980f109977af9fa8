"""``python -m chains export``: what it writes, and what it says where it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Dense, tanh
from chains.__main__ import main


def saved(folder):
    net = Chain(Dense(4, 3, tanh), BatchNorm(3), Dense(3, 2))
    chains.save(folder / "m.safetensors", net, net.init(0), net.init_state())
    return str(folder / "m.safetensors")


def test_files_are_written_for_all_targets(tmp_path, capsys):
    file, output = saved(tmp_path), tmp_path / "model.o"
    assert main(["export", file, "-o", str(output), "--target", "x86-64-v3,aarch64"]) == 0
    names = ["model-x86-64.o", "model-aarch64.o", "model.h", "model.f90"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    assert "void model_forward(ptrdiff_t n, const float *x, float *y, void *work);" in (tmp_path / "model.h").read_text()


def test_parameters_may_stay_arguments(tmp_path):
    given = ["--free", "--name", "net", "--gradient", "none", "--dtype", "float64", "--no-fortran"]
    given += ["--derivatives", "jacobian, jvp"]
    main(["export", saved(tmp_path), "-o", str(tmp_path / "net.c"), *given])
    text = (tmp_path / "net.h").read_text()
    assert "void net_forward(ptrdiff_t n, const double *x, const double *p, const double *state, double *y" in text
    assert "net_vjp" not in text
    assert "void net_jacobian(ptrdiff_t n, const double *x, const double *p, const double *state, double *J" in text
    assert "net_jvp" in text
    assert "net_hessian" not in text
    assert not (tmp_path / "net.f90").exists()


def test_what_cannot_be_done_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        main(["export", saved(tmp_path), "-o", str(tmp_path / "net.exe")])
    assert "`path`" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(tmp_path / "none.safetensors"), "-o", str(tmp_path / "net.o")])
    np.testing.assert_equal(sorted(path.name for path in tmp_path.iterdir()), ["m.safetensors"])
