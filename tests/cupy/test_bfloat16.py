"""Factors stored as bfloat16, without a GPU."""

from __future__ import annotations

import re

import numpy as np
import pytest

import chains
from benchmarks import gpu_products
from benchmarks.gpu_problems import Setting
from chains import Chain, Dense, SquaredLoss, tanh
from chains.backends import backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.cublas import Cublas
from chains.backends.cupy.device.interface import Gemm
from chains.backends.cupy.kernels import bfloat16
from chains.backends.cupy.source.c_source import BFLOAT16
from chains.backends.cupy.source.commands import Fused, Product, Source
from chains.program.recorder import Recorder
from tests.cupy import nvrtc
from tests.cupy.emulated import EmulatedBackend, EmulatedDevice
from tests.cupy.fake_cublas import FakeCublas, rounded
from tests.cupy.products import HALF, HALF_NETS, gradient, own_program
from tests.cupy.support import needs_compiler, needs_nvrtc
from tests.harness import assert_close, assert_same_bits, run_program

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.00390625, 1.01171875, 3.38e38, 3.4028235e38, -3.4e38, 1e-40, -1e-45, np.inf, -np.inf, np.nan]


def as_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def copied(array: np.ndarray) -> np.ndarray:
    """float32 numbers through a kernel to bfloat16 and back."""
    ops = Recorder("round", np.float32)
    a = ops.external("a", (), role="input", batched=True)
    half = ops.external("half", (), role="output", batched=True, dtype=BFLOAT16)
    back = ops.external("back", (), role="output", batched=True)
    ops.copy(half, a)
    ops.copy(back, half)
    runner = backend("emulated").on_device
    binding = runner.bind(ops.finish(), len(array), {"a": runner.device.array(array)})
    binding()
    half, result = (np.asarray(binding.arrays[name]) for name in ("half", "back"))
    np.testing.assert_array_equal(as_float(half.view(np.uint16)), result)
    return result


@needs_compiler
def test_rounding_to_bfloat16():
    array = np.concatenate([SPECIAL, np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-30, 30, 0.06)[:1000]])
    array = array.astype(np.float32)
    found = copied(array)
    np.testing.assert_array_equal(found, rounded(array))
    usual = np.isfinite(found) & (np.abs(array) > 1e-37)
    assert np.all(np.abs(found[usual] - array[usual]) <= HALF * np.abs(array[usual]))
    assert found[:6].tolist() == [0.0, 0.0, 1.0, -1.0, 1.0, 1.015625]  # halves go to the even neighbour
    assert np.isinf(found[7])
    assert np.isnan(found[13])


@needs_compiler
@pytest.mark.few(1)
@pytest.mark.parametrize(("which", "inputs"), [*((name, False) for name in HALF_NETS), ("branches", True)])
def test_networks_with_bfloat16_factors(which, inputs, large, monkeypatch):
    """The same factors rounded as by cuBLAS itself, but for sums of such a factor; near NumPy's results by their error."""
    program, arrays = gradient(HALF_NETS[which], inputs=inputs)
    wanted = run_program(program, "numpy", 20, arrays)
    found, again = (run_program(program, "emulated-bf16", 20, arrays, fill=fill, runs=n) for fill, n in ((0, 1), (255, 3)))
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(found[name], wanted[name], 8 * HALF, name)
    assert any(not np.array_equal(found[name], run_program(program, "emulated", 20, arrays)[name]) for name in wanted)
    stored = EmulatedBackend("fresh", precision="bf16")
    inside = EmulatedBackend("fresh", precision="bf16")
    for each in (stored, inside):
        each.on_device.device.epilogues = False
    bound = []
    for each, least in ((stored, 8), (inside, 1 << 30)):
        monkeypatch.setattr(bfloat16, "LEAST_BFLOAT16_LENGTH", least)
        bound.append(each.bind(program, 20, {name: array.astype(np.float32) for name, array in arrays.items()}))
        bound[-1]()
    for name in wanted:
        assert_close(bound[0].arrays[name], bound[1].arrays[name], 1e-6, name)


@needs_compiler
@pytest.mark.parametrize("name", ["relu", "positions"])
def test_refused_products_of_bfloat16_factors_are_the_same(name, large):
    """Also the sums of factors, which are of the rounded numbers either way."""
    program, arrays = gradient(HALF_NETS[name])
    arrays = {each: array.astype(np.float32) for each, array in arrays.items()}
    bound = []
    for status in (0, 15):
        fresh = EmulatedBackend("fresh", precision="bf16")
        fresh.on_device.device.lt.refuse = lambda problem, status=status: status
        bound.append(fresh.bind(program, 20, arrays))
        bound[-1]()
        assert bool(fresh.on_device.device.lt.ran) == (status == 0)
    for each in ("value", "g"):
        assert_close(bound[0].arrays[each], bound[1].arrays[each], 1e-6, each)


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_kernels_with_bfloat16_compile(architecture, monkeypatch):
    monkeypatch.setattr(bfloat16, "LEAST_BFLOAT16_LENGTH", 8)
    source = Source()
    Compiled(gradient(HALF_NETS["relu"])[0], source, half=True)
    assert source.text(wide=False).count("bfloat16_of(") > 3
    assert source.text(wide=False).count("float_of(") > 1  # of the sum of a factor, where cublasLt refuses
    code = nvrtc.cubin(source.text(wide=False), architecture)
    assert all(kernel.name.encode() in code for kernel in source.kernels.values())


@needs_compiler
def test_a_factor_that_changes_is_copied_again(large):
    def twice(ops, x, w, b, y, db):
        z = ops.scratch("z", (8,))
        ops.map(z, lambda x: 2 * x, x)
        ops.matmul(y, z, w)
        ops.map(z, lambda z, y: z - y, z, y)
        ops.matmul(ops.external("dw", (8, 8), role="output"), z.T, y)
        ops.sum(db, z)

    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape) for name, shape in {"x": (20, 8), "w": (8, 8)}.items()}
    wanted, found = (run_program(own_program(twice), name, 20, arrays) for name in ("numpy", "emulated-bf16"))
    for name in wanted:
        assert_close(found[name], wanted[name], 4 * HALF, name)


def test_factors_are_copied_once(monkeypatch):
    """A weight once a step, what tanh gives and gets by the kernel that computes it, and no float32 that nobody reads."""
    monkeypatch.setattr(bfloat16, "LEAST_BFLOAT16_LENGTH", 8)
    steps = Compiled(HALF_NETS["tanh"].program(SquaredLoss(), chains.SGD(0.1)), half=True).commands
    products = [step.product if isinstance(step, Fused) else step for step in steps if isinstance(step, (Fused, Product))]
    half = [step for step in products if step.a.view.dtype == BFLOAT16]
    assert [step.b.view.dtype == BFLOAT16 for step in products] == [step.a.view.dtype == BFLOAT16 for step in products]
    assert len(half) == 5  # both products of the last layer have a length of 4, as has its weight's gradient
    written = [buffer.name for step in steps for buffer in step.writes if buffer.dtype == BFLOAT16]
    assert len(written) == len(set(written)) == 6
    assert sum("weight" in name for name in written) == 2
    gradients = [step for step in steps if any(buffer.name == "dy0 as bfloat16" for buffer in step.writes)]
    assert [buffer.name for buffer in gradients[0].writes if buffer.name.startswith("dy0")] == ["dy0 as bfloat16"]
    assert all(step.out.dtype == np.float32 for step in half)


def test_small_batches_and_other_precisions_stay_float32():
    net = Chain(Dense(1024, 1024, tanh), Dense(1024, 1024))
    program = net.program(SquaredLoss())

    def halves(name, batch):
        steps = backend(name).on_device.compile(program, batch).commands
        products = [step.product if isinstance(step, Fused) else step for step in steps if isinstance(step, (Fused, Product))]
        return sum(step.a.view.dtype == BFLOAT16 for step in products)

    assert [halves("emulated-bf16", batch) for batch in (1, 1023, 1024, 8192)] == [0, 0, 5, 5]
    assert halves("emulated", 8192) == halves("emulated-tf32", 8192) == 0


@needs_compiler
def test_the_error_of_a_product_of_bfloat16_factors(large):
    """|c - a b| <= (2 u + u^2) |a| |b| for factors rounded by u = 2^-8, and float32 rounding of the sums."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((40, 64), (64, 16)))
    ops = Recorder("product", np.float32)
    left = ops.external("a", (64,), role="input", batched=True)
    ops.matmul(ops.external("c", (16,), role="output", batched=True), left, ops.external("b", (64, 16), role="input"))
    found = run_program(ops.finish(), "emulated-bf16", 40, {"a": a, "b": b})["c"]
    exact, scale = a.astype(float) @ b.astype(float), np.abs(a).astype(float) @ np.abs(b).astype(float)
    error = np.abs(found - exact)
    assert np.all(error <= (2 * HALF + HALF**2 + 64 * 2.0**-24) * scale)
    assert error.max() > 1e-3
    assert_close(found, rounded(a).astype(float) @ rounded(b).astype(float), 1e-6)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("half", ["", "bfloat16"])
def test_types_of_products(precision, half):
    gemm = Gemm(np.dtype(np.float32), (2, 2, 2), (256, 512, 768), (2, 2, 2), (False, False), False, half)
    call = Cublas(precision, FakeCublas()).call(gemm)
    kinds_found = [call[k].value for k in (7, 10, 14, 16)]
    assert kinds_found == ([14, 14, 0, 68] if half else [0, 0, 0, {"float32": 68, "tf32": 77, "bf16": 75}[precision]])


@needs_compiler
@pytest.mark.parametrize(("key", "left"), [("wide", 2), ("wider", 3), ("wider_relu", 1)])
def test_the_benchmark_of_large_products(key, left, large, monkeypatch):
    """cuBLAS alone does the products of a step without epilogues, of the same sizes, layouts and types."""
    device = backend("emulated-bf16").on_device.device
    gemms: list[Gemm] = []
    monkeypatch.setattr(device, "product", lambda gemm: (gemms.append(gemm), EmulatedDevice.product(device, gemm))[1])
    setting = Setting(tiny=True)
    plain = gpu_products.share(key, "bf16", False, setting)
    described = [(gemm.sizes, gemm.leading, gemm.transposed, gemm.accumulate, gemm.half) for gemm in gemms]
    alone, step = described[: len(described) // 2], described[len(described) // 2 :]
    assert alone == step
    assert {half for *_, half in alone} == ({"", "bfloat16"} if key == "wide" else {"bfloat16"})  # its inputs have rows of six
    gemms.clear()
    found = gpu_products.share(key, "bf16", True, setting)
    assert len(gemms) == len(alone) + left  # products without an epilogue
    for result in (plain, found):
        rate, of_cublas = map(float, re.findall(r"[0-9][0-9.e+-]*", result["note"].split(";")[0]))
        assert result["value"] == pytest.approx(rate / of_cublas, rel=0.02)
        assert result["loss"] == pytest.approx(plain["loss"], rel=1e-3)
    assert device.epilogues


@needs_compiler
def test_the_benchmark_says_which_epilogues_were_refused(monkeypatch):
    device = backend("emulated").on_device.device
    monkeypatch.setattr(device, "fused", lambda gemm, epilogue: None)
    found = gpu_products.share("wider", "float32", True, Setting(tiny=True))
    assert found["note"].endswith("; not done by cublasLt: 1 bias, 1 bgrada")
    monkeypatch.undo()
    assert "cublasLt" not in gpu_products.share("wider", "float32", True, Setting(tiny=True))["note"]
