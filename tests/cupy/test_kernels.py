"""Kernels of the GPU backend, compiled for GPUs, and run on the processor: the results are NumPy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import chains
from chains import Adam, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, tanh
from chains.backends import UnsupportedOperationError
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.fused_program import fused_program
from chains.backends.cupy.kernels import convolutions, images, indexed
from chains.backends.cupy.source.commands import Launch, Pointers, Product, Source
from chains.expr import BINARY, COMPARISONS, TERNARY, UNARY, Expr, trace_nodes
from chains.network import record
from chains.network.network import network_of
from chains.program.operations import Operation, Window
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer
from tests.cupy import nvrtc
from tests.cupy.resources import excess, spilling, too_much
from tests.cupy.support import CONVOLUTIONS, EMULATED, arrays_of, gradient_program, needs_compiler, needs_nvrtc
from tests.harness import CASES, OPTIMIZERS, assert_close, assert_same_bits, run_program

GROUPS = [CASES[start : start + 40] for start in range(0, len(CASES), 40)]


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_kernels_of_every_case_compile(group, architecture):
    """Those of a gradient and of a pullback, in one type for each architecture: they differ in the names of functions."""
    source, dtype = Source(), np.float32 if architecture == "sm_90" else np.float64
    programs = [
        p for case in GROUPS[group] for p in (gradient_program(case, dtype), record.vjp(network_of(case.net()), dtype, False))
    ]
    made = [Compiled(program, source) for program in programs]
    code, usages = nvrtc.compiled(source.text(wide=False), architecture)
    assert all(kernel.name.encode() in code for kernel in source.kernels.values())
    assert usages.keys() == {kernel.name for kernel in source.kernels.values()}
    assert spilling(source.kernels.values(), usages) == {}
    assert too_much(made, (1, 70, 5_000, 10_000_000), usages, architecture) == []


@pytest.mark.few(2)
@needs_nvrtc
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_kernels_of_training_compile(architecture, wide):
    source = Source()
    net = Chain(Dense(784, 30, chains.σ), Dropout(0.2), Dense(30, 10))
    images = Chain(chains.Conv(16, 32, 3, chains.relu), chains.Flatten(), Dense(128, 2), input_shape=(16, 4, 4))
    Compiled(images.program(SquaredLoss(), Adam(1e-3)), source)  # enough channels to be products
    for optimizer in OPTIMIZERS.values():
        Compiled(net.program(CrossEntropyLoss(), optimizer, target_shape=()), source)
    code = nvrtc.cubin(source.text(wide), architecture)
    assert all(hint in code for hint in (b"patches_", b"move_", b"random_", b"sum_parts_"))


@needs_nvrtc
@pytest.mark.parametrize(
    ("body", "launched", "wrong"),
    [
        ([], {}, ""),
        ([], {"block": (512, 1)}, "512 threads of 256"),
        ([], {"shared": 170 << 10}, "174,080 bytes of shared memory of 166,912"),
        (["SHARED float all[12000];", "all[threadIdx.x] = batch;", "__syncthreads();", "b0[0] = all[batch];"],
         {"shared": 150 << 10}, "201,600 bytes of shared memory of 166,912"),
        ([], {"grid": (1, 70_000)}, "70,000 rows of blocks of 65,535"),
        ([], {"grid": (1 << 31, 1)}, "2,147,483,648 blocks of 2,147,483,647"),
    ],
)  # fmt: skip
def test_launches_that_a_device_cannot_do_are_seen(body, launched, wrong):
    source, pointers = Source(), Pointers()
    pointers(Buffer("out", "output", np.dtype(np.float32), ()), write=True)
    settings = {"grid": (1, 1), "shared": 0, "block": (256, 1)} | launched
    launch = pointers.launch(source, "own", body or ["b0[0] = 1;"], lambda batch: settings["grid"], shared=settings["shared"])
    launch = replace(launch, block=settings["block"])
    usages = nvrtc.compiled(source.text(wide=False), "sm_80")[1]
    assert [text.split(": ", 1)[1] for text in excess(launch, 1, usages[launch.kernel.name], "sm_80")] == [wrong] * bool(wrong)


def test_what_ptxas_says_is_read():
    log = """ptxas info    : Compiling entry function 'first_0' for 'sm_90'
ptxas info    : Function properties for first_0
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'second_1' for 'sm_90'
ptxas info    : Function properties for second_1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
    assert nvrtc.usage(log) == {"first_0": nvrtc.Usage(128, 16, 20, 1024), "second_1": nvrtc.Usage(8, 0, 0, 0)}


@needs_nvrtc
def test_a_kernel_with_an_error_does_not_compile():
    with pytest.raises(AssertionError, match="nonsense"):
        nvrtc.cubin('extern "C" __global__ void f(float* a) { a[0] = nonsense; }', "sm_90")


def all_operations(dtype) -> Program:
    """A map for each operation of `chains.expr`, over operands a and b."""
    ops = Recorder("operations", dtype)
    a, b = (ops.external(name, (), role="input", batched=True) for name in "ab")
    for name in (*UNARY, *BINARY, "not"):
        out = ops.external(name, (), role="output", batched=True)
        x, y = Expr("input", value=0), Expr("input", value=1)
        operands = {"not": (Expr("gt", (x, y)),), "and": (Expr("gt", (x, y)), Expr("lt", (x, y)))}.get(name, (x, y))
        operands = operands if name not in ("or",) else (Expr("gt", (x, y)), Expr("lt", (x, y)))
        node = Expr(name, operands[: 1 if name in (*UNARY, "not") else 2])
        if name in COMPARISONS:
            node = Expr("where", (node, Expr("const", value=1.0), Expr("const", value=0.0)))
        from chains.program.operations import Map

        ops.record(Map((out,), (a, b), trace_nodes((node,), ("a", "b"))))
    assert TERNARY == ("where",)
    return ops.finish()


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_operation_of_formulas(dtype):
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 30.0, -30.0, np.inf, -np.inf, np.nan]
    a, b = (grid.reshape(-1).astype(dtype) for grid in np.meshgrid(special, special))
    program = all_operations(dtype)
    with np.errstate(all="ignore"):
        wanted, found = (run_program(program, name, len(a), {"a": a, "b": b}) for name in ("numpy", "emulated"))
    assert len(found) == len(UNARY) + len(BINARY) + 1
    for name in wanted:
        if name in ("sin", "cos"):
            continue
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-6 if dtype == np.float32 else 1e-13, err_msg=name)
    for name in ("sin", "cos"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.few(3)
@needs_compiler
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize(
    ("shape", "out", "batched"),
    [
        ((700,), (), False),
        ((7,), (7,), False),
        ((7,), (1,), True),
        ((300,), (1,), True),
        ((3, 50), (3, 1), False),
        ((3, 50), (1, 50), True),
        ((40, 6), (40, 1), True),
        ((2, 3, 4), (2, 1, 4), False),
    ],
)
@pytest.mark.parametrize("batch", [1, 37, 3001])
def test_reductions_of_many(kind, shape, out, batched, batch):
    ops = Recorder("reduce", np.float64)
    a = ops.external("a", shape, role="input", batched=True)
    result = ops.external("out", out, role="output", batched=batched)
    getattr(ops, kind)(result, a)
    array = np.random.default_rng(0).normal(size=(batch, *shape))
    program = ops.finish()
    wanted, found, backwards = (run_program(program, name, batch, {"a": array}) for name in ("numpy", *EMULATED))
    assert_close(found["out"], wanted["out"], 1e-12)
    assert_same_bits(found, backwards)


@needs_compiler
def test_a_long_sum_is_split_among_blocks():
    ops = Recorder("sum", np.float32)
    ops.sum(ops.external("out", (), role="output"), ops.external("a", (), role="input", batched=True))
    steps = [step for step in Compiled(ops.finish()).commands if isinstance(step, Launch)]
    assert [step.grid(100) for step in steps] == [(1, 1), None]
    assert [step.grid(1_000_000) for step in steps] == [(1, 489), (1, 1)]


@pytest.mark.few(8)
@needs_compiler
@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_order_of_threads_does_not_matter(case):
    program = gradient_program(case, np.float32)
    problem = case.problem(70)
    arrays = arrays_of(problem)
    wanted, found, backwards = (run_program(program, name, 70, arrays) for name in ("numpy", *EMULATED))
    assert_same_bits(found, backwards)
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-4, name)


@pytest.mark.few(10)
@needs_compiler
@pytest.mark.parametrize("layer", [*CONVOLUTIONS.values(), chains.Conv(2, 3, 3, padding=1)], ids=[*CONVOLUTIONS, "padded"])
@pytest.mark.parametrize("samples", [1, 3, 100])
def test_convolutions_as_products(layer, samples, dtype, monkeypatch):
    """Made small enough to be products, in parts of so many samples."""
    net = Chain(chains.Shift(), layer, input_shape=(2, 9) if "signal" in repr(layer) or layer.ndim == 1 else (2, 9, 8))
    entries = network_of(net).layout["1.weight"].shape
    positions = np.prod(net.output_shape[1:]) if "Transpose" not in repr(layer) else 72
    bytes_each = int(np.prod(entries[1:]) * positions) * np.dtype(dtype).itemsize
    monkeypatch.setattr(convolutions, "MIN_PRODUCT_ELEMENTS", dict.fromkeys(convolutions.MIN_PRODUCT_ELEMENTS, 1))
    monkeypatch.setattr(convolutions, "PATCHES_BYTES", samples * bytes_each)
    rng = np.random.default_rng(0)
    shapes = {"p": (net.n_params,), "x": (8, *net.input_shape), "dy": (8, *net.output_shape)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for program, products in (
        (record.forward(network_of(net), dtype, False), 1),
        (record.vjp(network_of(net), dtype, False), 2),
    ):
        steps = [step for step, _ in Compiled(program).at(8)]
        assert sum(isinstance(step, Product) for step in steps) == products * -(-8 // samples)
        wanted, found, backwards = (run_program(program, name, 8, arrays) for name in ("numpy", *EMULATED))
        assert_same_bits(found, backwards)
        for name in wanted:
            assert_close(found[name], wanted[name], 1e-5 if dtype == np.float32 else 1e-13, name)


@needs_compiler
@pytest.mark.parametrize("shape", [(), (5,), (3, 7)])
@pytest.mark.parametrize("batch", [1, 9, 1000])
def test_random_numbers_are_numpys_to_the_bit(shape, batch, dtype):
    ops = Recorder("random", dtype)
    for name in ("first", "second"):
        ops.random(ops.external(name, shape, role="output", batched=True))
    program, key = ops.finish(), {"random": np.array([2**63 + 5, 11], np.uint64)}
    found = run_program(program, "emulated", batch, key)
    assert_same_bits(found, run_program(program, "numpy", batch, key))
    assert not np.array_equal(found["first"], found["second"])


@needs_compiler
@pytest.mark.parametrize(("samples", "table", "columns"), [(500, 9, 300), (2600, 20, 3), (1024, 1, 5), (3, 7, 1)])
def test_scatter_add_adds_in_order(samples, table, columns, monkeypatch):
    """Rows that come many times are summed as NumPy sums them, to the bit; numbers out of range mean the nearest row."""
    monkeypatch.setattr(indexed, "ROW_GROUPS", 4)
    ops = Recorder("scatter", np.float32)
    index = ops.external("index", (), role="input", batched=True, dtype=np.int64)
    rows = ops.external("rows", (columns,), role="input", batched=True)
    ops.scatter_add(ops.external("total", (table, columns), role="state"), index, rows)
    rng, program = np.random.default_rng(0), ops.finish()
    arrays = {
        "index": rng.integers(-2, table + 2, samples),
        "rows": rng.normal(size=(samples, columns)).astype(np.float32),
        "total": rng.normal(size=(table, columns)).astype(np.float32),
    }
    wanted, found, backwards = (run_program(program, name, samples, arrays) for name in ("numpy", *EMULATED))
    assert_same_bits(found, wanted)
    assert_same_bits(found, backwards)


@needs_compiler
def test_maps_that_overwrite_what_others_read():
    """A row that is broadcast and overwritten, and a copy onto itself one further."""
    ops = Recorder("across", np.float64)
    a = ops.external("a", (40, 30), role="state")
    ops.map(a, lambda a, row: a + row, a, a.slice(0, 3, 4))
    ops.copy(a.slice(0, 1, 40), a.slice(0, 0, 39))
    start = np.random.default_rng(0).normal(size=(40, 30))
    wanted = start + start[3:4]
    wanted[1:] = wanted[:-1].copy()
    program = ops.finish()
    for name in EMULATED:
        np.testing.assert_array_equal(run_program(program, name, 1, {"a": start})["a"], wanted)


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_entries_in_the_padding_are_left_out_and_no_others_are_asked_for(before, after, stride):
    window, length = Window((1, 3), (1, stride), ((0, 0), (before, after))), 5
    _, outputs = window.outputs((1, length))
    x, y = (
        Buffer(name, "input", np.dtype(np.float32), (Batch(), 1, 1, n)).whole for name, n in (("x", length), ("y", outputs))
    )
    places = {o * stride + k - before for o in range(outputs) for k in range(3)}
    wanted = [text for text, needed in (("i < 0", min(places) < 0), ("i >= 5", max(places) >= length)) if needed]
    assert images.outside(window, x, y, 1, "i") == wanted


def test_unknown_operations_are_named():
    class Strange(Operation):
        pass

    ops = Recorder("strange", np.float32)
    out = ops.external("out", (), role="output")
    ops.record(Strange((out,), (), label="0.Odd"))
    with pytest.raises(UnsupportedOperationError, match=r"'cupy' cannot run the operation `strange` of 0\.Odd"):
        Compiled(ops.finish())


def test_elementwise_runs_are_one_kernel():
    """A step of Adam on a dense network: what is elementwise goes along with its neighbours."""
    program = Chain(Dense(8, 32, tanh), Dense(32, 4)).program(SquaredLoss(), Adam(1e-3))
    steps = Compiled(program).commands
    launches = [step for step in steps if isinstance(step, Launch) and step.grid(16) is not None]
    assert len(launches) < sum(operation.name != "matmul" for operation in program.operations)
    assert not any("terms" in buffer.name for step in steps for buffer in step.writes)  # the loss's terms stay in registers


@needs_compiler
def test_scratch_is_no_larger_than_planned_by_the_program():
    for case in CASES[::7]:
        program = gradient_program(case, np.float32)
        compiled = Compiled(program)
        partial = sum(-(-compiled.elements(b, 100) * b.dtype.itemsize // 64) * 64 for b in compiled._sizes)
        assert compiled.scratch_plan(100).nbytes(100) <= program.scratch.nbytes(100) + partial + 64 * len(program.operations)


def test_listing_shows_the_kernels():
    net = Chain(Dense(3, 2), backend="emulated")
    text = chains.testing.listing(net.program(SquaredLoss()), net.backend)
    assert "program gradient" in text
    assert "KERNEL sum_" in text


@pytest.mark.parametrize("whole", [False, True])
def test_what_has_no_elements_has_no_kernel(whole):
    """A causal convolution of a short signal has entries of its kernels that see padding alone; NVRTC takes no empty array."""
    case = next(case for case in CASES if str(case) == "CausalConv-dilated")
    program = record.vjp(network_of(case.net()), np.float32, False)
    assert any(0 in view.shape for operation in program.operations for view in operation.outs)
    made = fused_program(program, tiling_of(program, 64), 1 << 17, forced=True) if whole else Compiled(program)
    assert made is not None
    assert "% 0;" not in made.text(64)
    assert "kept0[0]" not in made.text(64)
