"""The peers of the GPU's benchmark, on the processor: they end with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gpu_chains, gpu_problems
from benchmarks.gpu_problems import PROBLEMS, NoGpuError, Problem, Setting
from chains import SGD, Dense, SquaredLoss
from tests.cupy.support import needs_compiler

TINY = Setting(None, True)


@pytest.fixture
def small(monkeypatch):
    """Whole batches of a dense network, and a batch that leaves a rest."""
    rng = np.random.default_rng(0)
    x, t = rng.random((9, 5), np.float32), rng.random((9, 2), np.float32)
    layers = (Dense(5, 4, "tanh"), Dense(4, 2))
    for key, batch, rate in (("wide", 9, SGD(0.1)), ("wider", 4, SGD(0.1, momentum=0.9))):
        made = Problem(layers, (5,), SquaredLoss(), rate, x, t, batch, 3)
        monkeypatch.setitem(PROBLEMS, key, lambda setting, made=made: made)
    monkeypatch.setattr(gpu_problems, "_made", {})


@needs_compiler
def test_pytorch_ends_where_we_do(small):
    pytest.importorskip("torch")
    from benchmarks import gpu_torch

    ours = [gpu_chains.measure(key, "float32", TINY)["loss"] for key in ("wide", "matrix_exp")]
    found = [gpu_torch.measure(key, "eager", "float32", TINY) for key in ("wide", "matrix_exp", "wider")]
    assert [row["loss"] for row in found[:2]] == pytest.approx(ours, rel=1e-4)
    assert found[2]["us_a_step"] == pytest.approx(found[2]["seconds"] / 6 * 1e6)
    with pytest.raises(NoGpuError, match="PyTorch is installed without CUDA"):
        gpu_torch.measure("wide", "eager", "float32", Setting())


@needs_compiler
def test_jax_ends_where_we_do(small, monkeypatch):
    jax = pytest.importorskip("jax")
    from benchmarks import gpu_jax

    before = jax.config.jax_default_matmul_precision
    ours = [gpu_chains.measure(key, "float32", TINY)["loss"] for key in ("wide", "matrix_exp")]
    try:
        found = [gpu_jax.measure(*row, "float32", TINY)["loss"] for row in (("wide", "jit"), ("matrix_exp", "scan"))]
        assert found == pytest.approx(ours, rel=1e-4)
        assert np.isfinite(gpu_jax.measure("wider", "scan", "tf32", TINY)["loss"])
        with pytest.raises(NoGpuError, match="JAX is installed for 'cpu' alone"):
            gpu_jax.measure("wide", "jit", "float32", Setting())
    finally:
        jax.config.update("jax_default_matmul_precision", before)
