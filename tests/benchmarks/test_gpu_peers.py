"""The peers of the GPU's benchmark, on the processor: they end with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu import problems, training
from benchmarks.gpu.problems import PROBLEMS, NoGpuError, Problem, Setting
from chains import SGD, Dense, SquaredLoss
from tests.cupy.support import needs_compiler

TINY = Setting(None, True)


@pytest.fixture
def small(monkeypatch):
    """Whole batches of a dense network, and a batch that leaves a rest."""
    rng = np.random.default_rng(0)
    x, t = rng.random((9, 5), np.float32), rng.random((9, 2), np.float32)
    layers = (Dense(5, 4, "tanh"), Dense(4, 2))
    for key, batch, rate in (("wide", 9, SGD(0.1)), ("lenet5", 4, SGD(0.1, momentum=0.9))):
        made = Problem(layers, (5,), SquaredLoss(), rate, x, t, batch, 3)
        monkeypatch.setitem(PROBLEMS, key, lambda setting, made=made: made)
    monkeypatch.setattr(problems, "_made", {})


@needs_compiler
def test_pytorch_ends_where_we_do(small):
    pytest.importorskip("torch")
    from benchmarks.gpu import torch_peer

    ours = [training.measure(key, "float32", TINY)["loss"] for key in ("wide", "matrix_exp")]
    found = [torch_peer.measure(key, "eager", "float32", TINY) for key in ("wide", "matrix_exp", "lenet5")]
    assert [row["loss"] for row in found[:2]] == pytest.approx(ours, rel=1e-4)
    assert found[2]["us_a_step"] == pytest.approx(found[2]["seconds"] / 6 * 1e6)
    with pytest.raises(NoGpuError, match="PyTorch is installed without CUDA"):
        torch_peer.measure("wide", "eager", "float32", Setting())


@needs_compiler
def test_jax_ends_where_we_do(small, monkeypatch):
    jax = pytest.importorskip("jax")
    from benchmarks.gpu import jax_peer

    before = jax.config.jax_default_matmul_precision
    ours = [training.measure(key, "float32", TINY)["loss"] for key in ("wide", "matrix_exp")]
    try:
        found = [jax_peer.measure(key, "float32", 0, TINY)["loss"] for key in ("wide", "matrix_exp")]
        assert found == pytest.approx(ours, rel=1e-4)
        assert np.isfinite(jax_peer.measure("lenet5", "tf32", 0, TINY)["loss"])
        with pytest.raises(NoGpuError, match="JAX is installed for 'cpu' alone"):
            jax_peer.measure("wide", "float32", 0, Setting())
    finally:
        jax.config.update("jax_default_matmul_precision", before)
