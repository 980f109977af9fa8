"""Matrix products with epilogues, without a GPU: what is recognised, and whole networks through a stand-in for cublasLt."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import chains
from chains import Adam, Chain, CrossEntropyLoss, Dense, train
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device import cublas
from chains.backends.cupy.device.cublas import EPILOGUES, CublasLt
from chains.backends.cupy.device.interface import Epilogue, Gemm
from chains.backends.cupy.source.commands import Launch, Product
from chains.layers import Layer
from chains.network import record
from tests.cupy import emulated
from tests.cupy.emulated import EmulatedBackend
from tests.cupy.fake_cublas import FakeCublasLt
from tests.cupy.products import NAMES, NETS, gradient, kinds, own_program
from tests.cupy.support import needs_compiler
from tests.harness import assert_close, assert_same_bits, run_program


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
    steps = Compiled(gradient(NETS["mixed"])[0]).commands
    sums = [step for step in steps if isinstance(step, Launch) and step.kernel.name.startswith("sum_") and "'" in step.label]
    assert "0.Dense'" in [step.label for step in sums]
    with_formula = next(step for step in sums if step.label == "0.Dense'" and "r0_0" in step.kernel.text)
    position = steps.index(with_formula)
    assert any(isinstance(step, Product) and step.label == "0.Dense'" for step in steps[position:])


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


@needs_compiler
@pytest.mark.few(10)
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
@pytest.mark.parametrize("status", [7, 8, 15])
def test_algorithms_that_fail_when_they_run_make_way_for_others(status):
    """For the next that runs; and where none does, for the plain way. What was tried leaves no trace in any array."""
    program, arrays = gradient(NETS["relu"])
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    wanted = run_program(program, "numpy", 20, arrays)
    first_two = lambda epilogue, rank: rank < 2  # noqa: E731
    one_kind = lambda epilogue, rank: epilogue == EPILOGUES["drelu_bgrad"]  # noqa: E731
    for failing, refused in ((first_two, set()), (one_kind, {"drelu_bgrad"})):
        fresh = EmulatedBackend("fresh")
        device = fresh.on_device.device
        device.lt.fails = lambda problem, rank, failing=failing: status if failing(problem.epilogue, rank) else 0
        g = device.array(np.full(wanted["g"].shape, np.nan, np.float32))
        binding = fresh.on_device.bind(program, 20, {**{n: device.array(a) for n, a in arrays.items()}, "g": g})
        assert np.isnan(g).all()
        tried = len(device.lt.ranks)
        binding()
        assert set(device.refused) == refused
        assert set(device.lt.ranks[tried:]) == ({0} if refused else {2})
        for name in ("value", "g"):
            assert_close(binding.arrays[name], wanted[name], 3e-6, name)


@needs_compiler
def test_the_fastest_algorithm_where_they_are_timed():
    program, arrays = gradient(NETS["relu"])
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    for timed, rank in ((False, 0), (True, 2)):
        fresh = EmulatedBackend("fresh", timed=timed)
        binding = fresh.bind(program, 20, arrays)
        lt = fresh.on_device.device.lt
        tried = len(lt.ranks)
        binding()
        assert set(lt.ranks[tried:]) == {rank}


@needs_compiler
@pytest.mark.parametrize(
    "other",
    [
        {"relu": lambda value: np.fmax(value, 0)},  # NaN is lost
        {"bit": lambda value: value >= 0},  # a slope of 1 at 0
    ],
    ids=["nan", "zero"],
)
def test_a_relu_of_another_meaning_is_no_epilogue(other):
    program, arrays = gradient(NETS["relu"])
    fresh = EmulatedBackend("fresh")
    lt = fresh.on_device.device.lt
    for name, function in other.items():
        setattr(lt, name, function)
    fresh.bind(program, 20, {name: array.astype(np.float32) for name, array in arrays.items()})()
    assert {NAMES[value] for value in lt.ran} == {"bias", "bgrada"}
    assert set(fresh.on_device.device.refused) == {"relu_aux_bias", "drelu_bgrad"}


@needs_compiler
def test_without_memory_to_try_it_the_first_algorithm_is_used(monkeypatch):
    program, arrays = gradient(NETS["no bias"])
    fresh = EmulatedBackend("fresh")
    device = fresh.on_device.device
    device.products._relus[np.dtype(np.float32), ""] = True
    empty = type(device).empty

    def full(self, shape, dtype):
        if np.dtype(dtype) == np.uint8 and shape[0] % 64 == 0 and shape[0] > 512:
            raise MemoryError("the GPU has no room")
        return empty(self, shape, dtype)

    kept = device.empty((1 << 16,), np.uint8)
    monkeypatch.setattr(type(device), "empty", full)
    binding = fresh.bind(program, 20, {name: array.astype(np.float32) for name, array in arrays.items()}, kept)
    assert device.lt.ranks == []
    binding()
    assert set(device.lt.ranks) == {0}


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
    assert asked == len(kinds(program)) + 2  # no two of these products are alike, and relu is tried with two more
    second = fresh.bind(program, 20, arrays)
    assert (lt.heuristics, lt.live) == (asked, 2 * alive)
    del binding, second
    gc.collect()
    assert lt.live == 0
    fresh.bind(program, 12, {name: array[:12] if name != "p" else array for name, array in arrays.items()})
    assert lt.heuristics == 2 * (asked - 2) + 2


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
    plan_maker.start(plan_maker.plan(gemm, epilogue, plan_maker.algorithms(gemm, epilogue)[0]), 0, 256)
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
    device = emulated.EmulatedDevice()
    lt, makes, memory = device.lt, device.products, aligned_copy(np.zeros(4096, np.uint8)).ctypes.data
    makes._relus[np.dtype(np.float32), False] = True  # so that no products are asked for to find out
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
