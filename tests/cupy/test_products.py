"""Matrix products of the GPU backend, without a GPU: epilogues, and factors stored as bfloat16."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import chains
from benchmarks import gpu_products
from benchmarks.gpu_problems import Setting
from chains import Adam, Chain, CrossEntropyLoss, Dense, SquaredLoss, relu, tanh, train
from chains.backends import backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device import cublas
from chains.backends.cupy.device.cublas import EPILOGUES, Cublas, CublasLt
from chains.backends.cupy.device.cuda import usable_cupy
from chains.backends.cupy.device.interface import Epilogue, Gemm
from chains.backends.cupy.kernels import bfloat16
from chains.backends.cupy.kernels.steps import Fused, Launch, Product, Source
from chains.backends.cupy.source.c_source import BFLOAT16
from chains.layers import Layer
from chains.network import record
from chains.program.recorder import Recorder
from tests.cupy import emulated, nvrtc
from tests.cupy.emulated import EmulatedBackend, EmulatedDevice
from tests.cupy.fake_cublas import FakeCublas, FakeCublasLt, rounded
from tests.harness import assert_close, assert_same_bits, run_program

needs_compiler = pytest.mark.skipif(emulated.COMPILER is None, reason="no C compiler on this computer")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="neither NVRTC nor nvcc on this computer")
NAMES = {value: name for name, value in EPILOGUES.items()}
HALF = 2.0**-8  # the largest relative error of a number rounded to bfloat16

NETS = {
    "relu": Chain(Dense(4, 8, relu), Dense(8, 8, relu), Dense(8, 4)),
    "mixed": Chain(Dense(8, 8, tanh), Dense(8, 8), Dense(8, 16, relu), Dense(16, 4, chains.gelu)),
    "no bias": Chain(Dense(4, 8, relu, bias=False), Dense(8, 4)),
    "positions": Chain(Dense(4, 8, relu), Dense(8, 4, relu), input_shape=(3, 4)),
    "wide mask": Chain(Dense(4, 200, relu), Dense(200, 4)),
    "branches": Chain(Dense(4, 8, relu), chains.Residual(Dense(8, 8, relu)), Dense(8, 4, relu)),
    "unaligned": Chain(Dense(3, 7, relu), Dense(7, 5, relu), Dense(5, 3)),
}


def gradient(net: Chain, dtype=np.float32, *, inputs: bool = False):
    """The program of a gradient, also with respect to the inputs; and what it is given, for 20 samples."""
    rng, (shape,) = np.random.default_rng(0), (net.output_shape,)
    arrays = {"p": rng.normal(0.0, 0.5, net.n_params), "x": rng.normal(size=(20, *net.input_shape))}
    if inputs:
        return record.vjp(net.network, dtype, False), arrays | {"dy": rng.normal(size=(20, *shape))}
    objective = record.Objective(SquaredLoss(), shape, False, None)
    return record.gradient(net.network, objective, dtype, True), arrays | {"t": rng.normal(size=(20, *shape))}


def kinds(program, **settings) -> list[str]:
    return [step.kind for step in Compiled(program, **settings).steps if isinstance(step, Fused)]


@pytest.fixture
def library(request):
    """The cublasLt of the device "emulated", and of "backwards", with nothing noted yet."""
    libraries = [backend(name).on_device.device.lt for name in ("emulated", "backwards")]
    for each in libraries:
        each.ran.clear()
    yield libraries[0]
    for each in libraries:
        each.refuse = FakeCublasLt.refuse


# What is recognised


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("relu", ["relu_aux_bias", "relu_aux_bias", "bias", "bgrada", "drelu_bgrad", "drelu_bgrad"]),
        ("mixed", ["bias", "relu_aux_bias", "drelu_bgrad", "bgrada"]),
        ("no bias", ["relu_aux", "bias", "bgrada", "drelu"]),
        ("positions", ["relu_aux_bias", "relu_bias", "drelu_bgrad"]),
    ],
)
def test_products_with_epilogues(name, wanted):
    program, _ = gradient(NETS[name])
    assert kinds(program) == wanted
    assert kinds(program, epilogues=False) == []


def test_a_forward_pass_needs_no_mask():
    assert kinds(record.forward(NETS["relu"].network, np.float32, False)) == ["relu_bias", "relu_bias", "bias"]


def test_a_sum_goes_along_with_what_it_sums():
    """The gradient of a bias behind tanh is summed by the kernel that computes what is summed, before the product."""
    steps = Compiled(gradient(NETS["mixed"])[0]).steps
    sums = [step for step in steps if isinstance(step, Launch) and step.kernel.name.startswith("sum_") and "'" in step.label]
    assert "0.Dense'" in [step.label for step in sums]
    with_formula = next(step for step in sums if step.label == "0.Dense'" and "r0_0" in step.kernel.text)
    position = steps.index(with_formula)
    assert any(isinstance(step, Product) and step.label == "0.Dense'" for step in steps[position:])


def own_program(write):
    """A program that `write` records with views x, w, b, y, db of one size."""
    ops = Recorder("own", np.float32)
    x = ops.external("x", (8,), role="input", batched=True)
    w, b = ops.external("w", (8, 8), role="input"), ops.external("b", (8,), role="input")
    y = ops.external("y", (8,), role="output", batched=True)
    write(ops, x, w, b, y, ops.external("db", (8,), role="output"))
    return ops.finish()


def recorded(write) -> list[str]:
    """The kinds of epilogues of such a program, which gives what NumPy gives."""
    program, rng = own_program(write), np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape) for name, shape in {"x": (20, 8), "w": (8, 8), "b": (8,), "t": (20, 8)}.items()}
    if emulated.COMPILER is not None:
        wanted, found = (run_program(program, name, 20, arrays) for name in ("numpy", "emulated"))
        for name in wanted:
            assert_close(found[name], wanted[name], 3e-6, f"{write.__name__}: {name}")
    return kinds(program)


def relu_of(z, b):
    return chains.expr.maximum(z + b, 0.0)


def relu_pullback(dy, y):
    return dy * chains.expr.where(y <= 0.0, 0.0, 1.0)


def test_what_looks_alike_is_left_alone():
    def accumulated(ops, x, w, b, y, db):
        ops.copy(y, x)
        ops.matmul(y, x, w, accumulate=True)
        ops.map(y, lambda z, b: z + b, y, b)

    def elsewhere(ops, x, w, b, y, db):  # the sum without bias is asked for too
        z = ops.scratch("z", (8,))
        ops.matmul(z, x, w)
        ops.map(y, lambda z, b: z + b, z, b)
        ops.sum(db, z)

    def other_formula(ops, x, w, b, y, db):
        ops.matmul(y, x, w)
        ops.map(y, lambda z, b: z - b, y, b)

    def whole_matrix(ops, x, w, b, y, db):
        ops.matmul(y, x, w)
        ops.map(y, lambda z, b: z + b, y, x)

    def overwritten(ops, x, w, b, y, db):  # the summed factor changes before it is summed
        z = ops.scratch("z", (8,))
        ops.matmul(z, x, w)
        ops.matmul(ops.external("dw", (8, 8), role="output"), x.T, z)
        ops.fill(z, 1.0)
        ops.sum(db, z)

    def read_before(ops, x, w, b, y, db):  # somebody asks for the sum's place before it is filled
        z = ops.scratch("z", (8,))
        ops.matmul(z, x, w)
        ops.fill(db, 2.0)
        ops.matmul(ops.external("dw", (8, 8), role="output"), x.T, z)
        ops.map(y, lambda x, d: x * d, x, db)
        ops.sum(db, z)

    def of_another(ops, x, w, b, y, db):  # relu's pullback by something that no product made
        ops.matmul(y, x, w)
        ops.map(y, relu_pullback, y, x)

    def changed(ops, x, w, b, y, db):  # relu's output changes before its signs are asked for
        z = ops.scratch("z", (8,))
        ops.matmul(z, x, w)
        ops.map(z, relu_of, z, b)
        ops.map(z, lambda z: z - 1.0, z)
        ops.matmul(y, x, w.T)
        ops.map(y, relu_pullback, y, z)

    for write in (accumulated, elsewhere, other_formula, whole_matrix, of_another):
        assert recorded(write) == [], write.__name__
    assert recorded(overwritten) == recorded(read_before) == []
    assert recorded(changed) == ["relu_bias"]


def test_the_sum_of_a_left_factor_goes_along():
    def left(ops, x, w, b, y, db):
        ops.matmul(ops.external("dw", (8, 8), role="output"), x.T, y_of(ops, x))
        ops.sum(db, x)

    def y_of(ops, x):
        return ops.external("t", (8,), role="input", batched=True)

    assert recorded(left) == ["bgradb"]


def test_layers_of_ones_own_are_recognised_by_what_they_do():
    """Not by their class: a layer written elsewhere whose formula is relu's."""

    class Own(Layer):
        def declare(self, d):
            d.param("weight", (8, 8), chains.initializers.initializer("glorot_normal"))
            d.param("bias", (8,), chains.initializers.initializer("zeros"))
            d.output((8,))

        def forward(self, ops, x, y, p, s):
            ops.matmul(y, x, p.weight)
            ops.map(y, lambda a, b: chains.expr.maximum(a + b, 0.0), y, p.bias)

        def pullback(self, ops, x, y, dy, dx, p, g, s):
            ops.map(dy, relu_pullback, dy, y)
            ops.matmul(g.weight, x.T, dy)
            ops.sum(g.bias, dy)
            ops.matmul(dx, dy, p.weight.T)

    net = Chain(Own(), Own(), Dense(8, 8), input_shape=(8,))
    program, _ = gradient(net)
    assert kinds(program) == ["relu_aux_bias", "relu_aux_bias", "bias", "bgrada", "drelu_bgrad", "drelu_bgrad"]


# Whole networks through cublasLt


@needs_compiler
@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_networks_with_epilogues(net, inputs, dtype, library):
    program, arrays = gradient(net, dtype, inputs=inputs)
    wanted = run_program(program, "numpy", 20, arrays)
    found, again, backwards = (
        run_program(program, name, 20, arrays, fill=fill, runs=runs)
        for name, fill, runs in (("emulated", 0, 1), ("emulated", 255, 3), ("backwards", 0, 1))
    )
    assert_same_bits(found, again)
    assert_same_bits(found, backwards)
    for name in wanted:
        assert_close(found[name], wanted[name], 3e-6 if dtype == np.float32 else 1e-13, name)
    if "unaligned" not in NETS or net is not NETS["unaligned"]:
        assert {NAMES[value] for value in library.ran} == set(kinds(program))


@needs_compiler
def test_vectors_that_are_not_aligned_go_the_plain_way(library):
    """Of a flat vector (3, 7), 7, (7, 5), 5, (5, 3), 3 no bias begins at a multiple of 16 bytes."""
    net = NETS["unaligned"]
    program, arrays = gradient(net)
    starts = [entry.start for name, entry in zip(net.views(net.init()), net.layout, strict=True) if name.endswith("bias")]
    assert all(start % 4 for start in starts)
    assert len(kinds(program)) == 6
    run_program(program, "emulated", 20, arrays)
    assert library.ran == []


@needs_compiler
@pytest.mark.parametrize("status", [7, 8, 15])
@pytest.mark.parametrize("kind", ["bias", "relu_aux_bias", "drelu_bgrad", "bgrada"])
def test_what_cublaslt_refuses_goes_the_plain_way(kind, status, library):
    program, arrays = gradient(NETS["relu"])
    wanted = run_program(program, "numpy", 20, arrays)
    fresh = EmulatedBackend("fresh")
    fresh.on_device.device.lt.refuse = lambda problem: status if problem.epilogue == EPILOGUES[kind] else 0
    binding = fresh.bind(program, 20, {name: array.astype(np.float32) for name, array in arrays.items()})
    binding()
    for name in wanted:
        assert_close(binding.arrays[name], wanted[name], 3e-6, name)
    ran = {NAMES[value] for value in fresh.on_device.device.lt.ran}
    refused = {"relu_aux_bias", "drelu_bgrad"} if kind == "relu_aux_bias" else {kind}  # without a mask no pullback from it
    assert ran == {"bias", "relu_aux_bias", "drelu_bgrad", "bgrada"} - refused
    assert set(fresh.on_device.device.refused) == refused


@needs_compiler
def test_other_errors_are_named():
    fresh = EmulatedBackend("fresh")
    fresh.on_device.device.lt.refuse = lambda problem: 13
    program, arrays = gradient(NETS["relu"])
    with pytest.raises(RuntimeError, match="cublasLtMatmulAlgoGetHeuristic failed with the status 13"):
        fresh.bind(program, 20, {name: array.astype(np.float32) for name, array in arrays.items()})


@needs_compiler
def test_an_algorithm_is_chosen_once_and_descriptors_are_given_back():
    fresh = EmulatedBackend("fresh")
    lt = fresh.on_device.device.lt
    program, arrays = gradient(NETS["relu"])
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    binding = fresh.bind(program, 20, arrays)
    asked, alive = lt.heuristics, lt.live
    assert asked == len(kinds(program))  # no two of these products are alike
    second = fresh.bind(program, 20, arrays)
    assert (lt.heuristics, lt.live) == (asked, 2 * alive)
    del binding, second
    gc.collect()
    assert lt.live == 0
    fresh.bind(program, 12, {name: array[:12] if name != "p" else array for name, array in arrays.items()})
    assert lt.heuristics == 2 * asked


@needs_compiler
def test_training_with_epilogues_is_that_of_numpy(library):
    net, rng = NETS["relu"], np.random.default_rng(0)
    x, t = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 4, 40)
    p, q = net.init(seed=1), net.init(seed=1, device="emulated")
    asked = []
    callbacks = [lambda state: asked.append((library.heuristics, library.live))]
    for each in (p, q):
        train(net, each, x, t, CrossEntropyLoss(), Adam(0.02), epochs=4, batch_size=8, seed=2, callbacks=callbacks)
    assert_close(q, p, 1e-5)
    assert {NAMES[value] for value in library.ran} == {"relu_aux_bias", "bias", "bgrada", "drelu_bgrad"}
    assert asked[-3:] == [asked[-1]] * 3  # nothing is asked or made in a steady step


@pytest.mark.parametrize("kind", EPILOGUES)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_arguments_of_cublaslt(kind, transposed, dtype):
    """out, a and b of 5, 7 and 3 rows and columns; the vector is as long as a row of out, but for a bgradb."""
    rng, lt = np.random.default_rng(0), FakeCublasLt()
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((5, 7), (7, 3)))
    stored = [aligned_copy(m.T if turned else m) for m, turned in zip((a, b), transposed, strict=True)]
    out, vector = aligned_copy(np.full((5, 6), np.nan, dtype)), aligned_copy(rng.normal(size=8).astype(dtype))
    signs = rng.random((5, 3)) > 0.5
    mask = aligned_copy(np.packbits(np.pad(signs, ((0, 0), (0, 125))), axis=1))
    addresses = tuple(array.ctypes.data for array in (out, *stored))
    gemm = Gemm(np.dtype(dtype), (5, 3, 7), addresses, (6, stored[0].shape[1], stored[1].shape[1]), transposed, False)
    has_vector, has_mask = ("bias" in kind or "grad" in kind), ("aux" in kind or "drelu" in kind)
    bias = vector.copy()
    plan_maker = CublasLt("float32", lt)
    epilogue = Epilogue(
        kind, vector.ctypes.data if has_vector else None, mask.ctypes.data if has_mask else None, 128 * has_mask
    )
    plan_maker.start(plan_maker.plan(gemm, epilogue), 0, 256)
    value = a @ b + (bias[:3] if "bias" in kind else 0)
    wanted = {"relu": np.maximum(value, 0), "drelu": np.where(signs, value, 0)}.get(kind.split("_")[0], value)
    assert_close(out[:, :3], wanted, 1e-6)
    assert np.isnan(out[:, 3:]).all()
    if "aux" in kind:
        assert (np.unpackbits(mask, axis=1)[:, :3] == (value > 0)).all()
    if "grad" in kind:
        total = {"drelu_bgrad": wanted.sum(0), "bgrada": b.sum(0), "bgradb": a.sum(1)}[kind]
        assert_close(vector[: len(total)], total, 1e-6)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    block = np.zeros(array.nbytes + 512, np.uint8)
    start = -block.ctypes.data % 256
    copy = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_addresses_that_are_not_aligned_are_told_or_refused():
    lt = FakeCublasLt()
    makes, memory = CublasLt("float32", lt), aligned_copy(np.zeros(4096, np.uint8)).ctypes.data
    asked = []
    lt.refuse = lambda problem: asked.append(problem) or 0

    def plan(out=0, vector=1024, mask=None):
        addresses = (memory + out, memory + 2048, memory + 3072)
        gemm = Gemm(np.dtype(np.float32), (4, 4, 4), addresses, (4, 4, 4), (False, False), False)
        return makes.plan(gemm, Epilogue("relu_aux_bias" if mask else "bias", memory + vector, mask and memory + mask, 128))

    assert plan() is not None
    assert plan(out=4) is not None  # another algorithm is chosen for it
    assert lt.heuristics == 2
    assert plan(vector=1028) is None
    assert plan(mask=1544) is None
    assert lt.heuristics == 2
    assert plan(mask=1536) is not None
    assert [cublas.aligned(n) for n in (256, 1024, 4, 48, 2**40 + 8)] == [256, 256, 4, 16, 8]


# bfloat16


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


@pytest.fixture
def large(monkeypatch):
    """Lengths from 8 on count as large."""
    from chains.backends.cupy import backend as module

    monkeypatch.setattr(bfloat16, "LARGE", 8)
    monkeypatch.setattr(module, "LARGE", 8)


HALF_NETS = {
    "relu": Chain(Dense(8, 16, relu), Dense(16, 8, relu), Dense(8, 8)),
    "tanh": Chain(Dense(8, 8, tanh), Dense(8, 16, tanh), Dense(16, 4)),
    "positions": Chain(Dense(8, 16, tanh), Dense(16, 8, relu), input_shape=(3, 8)),
    "branches": Chain(Dense(8, 8, tanh), chains.Residual(Dense(8, 8, relu), Dense(8, 8)), Dense(8, 8)),
    "some": Chain(Dense(8, 12, tanh), Dense(12, 8, tanh), Dense(8, 8)),
}


@needs_compiler
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
        monkeypatch.setattr(bfloat16, "LARGE", least)
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


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_kernels_with_bfloat16_compile(architecture, monkeypatch):
    monkeypatch.setattr(bfloat16, "LARGE", 8)
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
    monkeypatch.setattr(bfloat16, "LARGE", 8)
    steps = Compiled(HALF_NETS["tanh"].program(SquaredLoss(), chains.SGD(0.1)), half=True).steps
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
        steps = backend(name).on_device.compile(program, batch).steps
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
@pytest.mark.parametrize("half", [False, True])
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
    assert {half for *_, half in alone} == ({False, True} if key == "wide" else {True})  # its inputs have rows of six
    gemms.clear()
    found = gpu_products.share(key, "bf16", True, setting)
    assert len(gemms) == len(alone) + left  # products without an epilogue
    for result in (plain, found):
        rate, of_cublas = map(float, re.findall(r"[0-9][0-9.e+-]*", result["note"]))
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


# NVIDIA's headers and library, where they are installed


def nvidia_files(pattern: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    return sorted(path for folder in [*folders, Path("/usr/local/cuda")] for path in folder.glob(pattern))


def header_values(*names: str) -> dict[str, int]:
    """The enumerators of NVIDIA's headers, of the first of each name that is found."""
    values: dict[str, int] = {}
    for name in names:
        files = [
            *nvidia_files(f"*/include/{name}"),
            *nvidia_files(f"include/{name}"),
            *nvidia_files(f"targets/*/include/{name}"),
        ]
        if not files:
            pytest.skip(f"{name} is not on this computer")
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", files[0].read_text(), flags=re.S)
        for enumerator, value in re.findall(r"\b(CU\w+)\s*=\s*([^,}]+)", text):
            try:
                values[enumerator] = eval(value, {}, dict(values))
            except (NameError, SyntaxError):
                continue  # of an enumeration that is of no interest here
    return values


def test_values_are_those_of_the_header():
    values = header_values("cublasLt.h")
    assert {name: values[f"CUBLASLT_EPILOGUE_{name.upper()}"] for name in EPILOGUES} == EPILOGUES
    attributes = ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "EPILOGUE_AUX_POINTER", "EPILOGUE_AUX_LD")
    constants = ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "AUX_POINTER", "AUX_LD")
    for attribute, constant in zip(attributes, constants, strict=True):
        assert values[f"CUBLASLT_MATMUL_DESC_{attribute}"] == getattr(cublas, constant)
    for constant in ("MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK"):
        assert values[f"CUBLASLT_MATMUL_PREF_{constant}"] == getattr(cublas, constant)
    alignments = tuple(values[f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "ABCD")
    assert alignments == cublas.MIN_ALIGNMENTS
    assert values["CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE"] == cublas.IN_WORKSPACE


def test_values_are_those_of_cublas_header():
    values = header_values("cublas_api.h")
    names = {"float32": "32F", "tf32": "32F_FAST_TF32", "bf16": "32F_FAST_16BF"}
    assert {name: values[f"CUBLAS_COMPUTE_{text}"] for name, text in names.items()} == cublas.COMPUTE
    assert values["CUBLAS_COMPUTE_64F"] == cublas.COMPUTE_DOUBLE
    statuses = ("INVALID_VALUE", "ARCH_MISMATCH", "NOT_SUPPORTED")
    assert tuple(values[f"CUBLAS_STATUS_{name}"] for name in statuses) == cublas.REFUSALS
    assert (values["CUBLAS_OP_N"], values["CUBLAS_OP_T"]) == (0, 1)


def test_types_are_those_of_the_header():
    values = header_values("library_types.h")
    assert values["CUDA_R_16BF"] == cublas.BFLOAT16_TYPE
    assert (values["CUDA_R_32F"], values["CUDA_R_64F"]) == tuple(cublas.TYPES.values())


@cache
def real_library() -> ctypes.CDLL | None:
    files = [*nvidia_files("*/lib/libcublasLt.so.*"), *nvidia_files("lib64/libcublasLt.so.*")]
    return ctypes.CDLL(str(files[0])) if files else None


@pytest.fixture
def real():
    if real_library() is None:
        pytest.skip("libcublasLt is not on this computer")
    return CublasLt("float32", real_library())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", EPILOGUES)
def test_the_library_takes_the_descriptors(real, kind, half):
    """Which needs no GPU; what was set is what it says."""
    gemm = Gemm(np.dtype(np.float32), (5, 3, 7), (256, 512, 768), (6, 7, 3), (False, True), False, half)
    description = real._description(gemm, Epilogue(kind, 1024, 2048, 128))

    def found(descriptor, attribute, kind):
        value, size = kind(), ctypes.c_size_t()
        function = getattr(descriptor.library, f"cublasLt{descriptor.kind}GetAttribute")
        assert (
            function(
                descriptor.pointer, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(size)
            )
            == 0
        )
        assert size.value == ctypes.sizeof(value)
        return value.value

    numbers = [(0, ctypes.c_int32), (1, ctypes.c_int32), (3, ctypes.c_int32), (4, ctypes.c_int32), (7, ctypes.c_uint32)]
    numbers += [(8, ctypes.c_uint64), (11, ctypes.c_uint64), (12, ctypes.c_int64)]
    assert [found(description, *pair) for pair in numbers] == [68, 0, 1, 0, EPILOGUES[kind], 1024, 2048, 128]
    layouts = [
        [
            found(layout, *pair)
            for pair in ((0, ctypes.c_uint32), (2, ctypes.c_uint64), (3, ctypes.c_uint64), (4, ctypes.c_int64))
        ]
        for layout in real._layouts(gemm)
    ]
    factor = 14 if half else 0
    assert layouts == [[factor, 7, 3, 3], [factor, 7, 5, 7], [0, 3, 5, 6]]


def test_the_library_takes_the_preferences(real):
    preference = cublas.Descriptor(real_library(), "MatmulPreference")
    preference.set(cublas.MAX_WORKSPACE_BYTES, ctypes.c_uint64(1 << 20))
    preference.set(cublas.REDUCTION_SCHEME_MASK, ctypes.c_uint32(cublas.IN_WORKSPACE))
    for attribute in cublas.MIN_ALIGNMENTS:
        preference.set(attribute, ctypes.c_uint32(16))
    with pytest.raises(RuntimeError, match="cublasLtMatmulPreferenceSetAttribute failed with the status 7"):
        preference.set(cublas.MAX_WORKSPACE_BYTES, ctypes.c_uint32(1))  # it is 64 bits wide
    assert ctypes.sizeof(cublas.Heuristic) == 96


# On a GPU


def gpu() -> str | None:
    """Why there is none, or None."""
    try:
        usable_cupy()
    except ValueError as error:
        return str(error)
    return None


on_gpu = pytest.mark.skipif(gpu() is not None, reason=gpu() or "")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("precision", ["cupy", "cupy-tf32", "cupy-bf16"])
@pytest.mark.parametrize("net", [*NETS.values(), *HALF_NETS.values()])
def test_networks_on_the_gpu(net, precision, large):
    """Near NumPy's results by the error of the factors; twice the same bits, eagerly and as a graph."""
    program, arrays = gradient(net)
    wanted = run_program(program, "numpy", 20, arrays)
    found, again = (run_program(program, precision, 20, arrays, runs=runs) for runs in (1, 3))
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(
            found[name], wanted[name], {"cupy": 1e-5, "cupy-tf32": 8 * 2.0**-11, "cupy-bf16": 8 * HALF}[precision], name
        )


@pytest.mark.gpu
@on_gpu
def test_relu_of_zero_and_nan_on_the_gpu():
    """What cublasLt's documentation leaves open: relu's slope at 0 is 0 here, and NaN stays NaN."""
    net = Chain(Dense(64, 64, relu), Dense(64, 64))
    program, arrays = gradient(net)
    arrays["x"][3] = 0.0
    net.views(arrays["p"])["0.bias"][...] = 0.0
    wanted, found = (run_program(program, name, 20, arrays) for name in ("numpy", "cupy"))
    assert_close(found["g"], wanted["g"], 1e-5)
    arrays["x"][5, 7] = np.nan
    assert np.isnan(run_program(program, "cupy", 20, arrays)["value"])
