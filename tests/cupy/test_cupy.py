"""The GPU backend, as far as it can be seen without a GPU: its kernels compiled for GPUs, and run on the processor."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import threading
import types
from functools import partial

import numpy as np
import pytest

import chains
from chains import Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, accuracy, backends, tanh, train
from chains.backends import UnsupportedOperationError, backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.cublas import Cublas, loaded
from chains.backends.cupy.device.cuda import CudaDevice, usable_cupy
from chains.backends.cupy.device.interface import Gemm
from chains.backends.cupy.kernels import convolutions
from chains.backends.cupy.kernels.steps import Launch, Product, Source
from chains.backends.cupy.source.fusion import apart
from chains.backends.places import place_of
from chains.expr import BINARY, COMPARISONS, TERNARY, UNARY, Expr, trace_nodes
from chains.network import record
from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.training.steps import Updater
from tests.cupy import emulated, nvrtc
from tests.cupy.fake_cublas import FakeCublas
from tests.harness import CASES, OPTIMIZERS, Case, Problem, assert_close, assert_same_bits, run_program

needs_compiler = pytest.mark.skipif(emulated.COMPILER is None, reason="no C compiler on this computer")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="neither NVRTC nor nvcc on this computer")
EMULATED = ("emulated", "backwards")


def gradient_program(case: Case, dtype) -> Program:
    net = case.net()
    t = case.problem(2).t
    objective = record.Objective(case.loss, t.shape[1:], case.weighted, case.penalty)
    return record.gradient(net.network, objective, dtype, True)


def arrays_of(problem: Problem) -> dict[str, np.ndarray]:
    """What a gradient's program is given, by buffer name."""
    state = problem.case.net().init_state(np.float64)
    arrays = {"p": problem.p, "x": problem.x, "t": problem.t, "random": np.array([3, 0], np.uint64), "state": state}
    return arrays if problem.w is None else arrays | {"weights": problem.w}


# The kernels compile


GROUPS = [CASES[start : start + 60] for start in range(0, len(CASES), 60)]


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_kernels_of_every_case_compile(group, architecture):
    """Those of a gradient and of a pullback, in one type for each architecture: they differ in the names of functions."""
    source, dtype = Source(), np.float32 if architecture == "sm_90" else np.float64
    for case in GROUPS[group]:
        Compiled(gradient_program(case, dtype), source)
        Compiled(record.vjp(case.net().network, dtype, False), source)
    code = nvrtc.cubin(source.text(wide=False), architecture)
    assert all(kernel.name.encode() in code for kernel in source.kernels.values())


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
def test_a_kernel_with_an_error_does_not_compile():
    with pytest.raises(AssertionError, match="nonsense"):
        nvrtc.cubin('extern "C" __global__ void f(float* a) { a[0] = nonsense; }', "sm_90")


# Every operation of formulas


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

        ops._record(Map((out,), (a, b), trace_nodes((node,), ("a", "b"))))
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


# Large shapes, where sums are split among blocks, in both orders of threads


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
    steps = [step for step in Compiled(ops.finish()).steps if isinstance(step, Launch)]
    assert [step.grid(100) for step in steps] == [(1, 1), None]
    assert [step.grid(1_000_000) for step in steps] == [(1, 489), (1, 1)]


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


CONVOLUTIONS = {
    "plain": chains.Conv(2, 4, 3),
    "settings": chains.Conv(2, 3, (3, 2), stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2)),
    "one": chains.Conv(2, 3, 1),
    "transposed": chains.ConvTranspose(2, 3, 3, stride=2, padding=1),
    "signal": chains.Conv(2, 3, (4,), padding=2),
}


@needs_compiler
@pytest.mark.parametrize("layer", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("samples", [1, 3, 100])
def test_convolutions_as_products(layer, samples, dtype, monkeypatch):
    """Made small enough to be products, in parts of so many samples."""
    net = Chain(chains.Shift(), layer, input_shape=(2, 9) if "signal" in repr(layer) or layer.ndim == 1 else (2, 9, 8))
    entries = net.network.layout["1.weight"].shape
    positions = np.prod(net.output_shape[1:]) if "Transpose" not in repr(layer) else 72
    bytes_each = int(np.prod(entries[1:]) * positions) * np.dtype(dtype).itemsize
    monkeypatch.setattr(convolutions, "SMALLEST", 1)
    monkeypatch.setattr(convolutions, "PATCHES_BYTES", samples * bytes_each)
    rng = np.random.default_rng(0)
    shapes = {"p": (net.n_params,), "x": (8, *net.input_shape), "dy": (8, *net.output_shape)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for program, products in ((record.forward(net.network, dtype, False), 1), (record.vjp(net.network, dtype, False), 2)):
        steps = list(Compiled(program).at(8))
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
def test_scatter_add_adds_in_order():
    """Rows that come many times are summed as NumPy sums them, to the bit."""
    ops = Recorder("scatter", np.float32)
    index = ops.external("index", (), role="input", batched=True, dtype=np.int64)
    rows = ops.external("rows", (300,), role="input", batched=True)
    ops.scatter_add(ops.external("total", (100, 300), role="state"), index, rows)
    rng, program = np.random.default_rng(0), ops.finish()
    arrays = {
        "index": rng.integers(0, 100, 500),
        "rows": rng.normal(size=(500, 300)).astype(np.float32),
        "total": rng.normal(size=(100, 300)).astype(np.float32),
    }
    wanted, found, backwards = (run_program(program, name, 500, arrays) for name in ("numpy", *EMULATED))
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


def test_views_apart():
    ops = Recorder("views", np.float32)
    image, vector = ops.scratch("image", (5, 4)), ops.scratch("vector", (9,), batched=False)
    assert apart(image.slice(1, 0, 2), image.slice(1, 2, 5))
    assert apart(image.slice(2, 0, 2), image.slice(2, 2, 4))
    assert not apart(image.slice(2, 0, 3), image.slice(2, 2, 4))
    assert not apart(image.slice(1, 0, 2), image)
    assert apart(vector.slice(0, 0, 4), vector.slice(0, 4, 9))
    assert not apart(vector.slice(0, 0, 5), vector.slice(0, 4, 9))


def test_unknown_operations_are_named():
    class Strange(Operation):
        pass

    ops = Recorder("strange", np.float32)
    out = ops.external("out", (), role="output")
    ops._record(Strange((out,), (), label="0.Odd"))
    with pytest.raises(UnsupportedOperationError, match=r"'cupy' cannot run the operation `strange` of 0\.Odd"):
        Compiled(ops.finish())


# Fusion


def test_elementwise_runs_are_one_kernel():
    """A step of Adam on a dense network: what is elementwise goes along with its neighbours."""
    program = Chain(Dense(8, 32, tanh), Dense(32, 4)).program(SquaredLoss(), Adam(1e-3))
    steps = Compiled(program).steps
    launches = [step for step in steps if isinstance(step, Launch) and step.grid(16) is not None]
    assert len(launches) < sum(operation.name != "matmul" for operation in program.operations)
    assert not any("terms" in buffer.name for step in steps for buffer in step.writes)  # the loss's terms stay in registers


@needs_compiler
def test_scratch_is_no_larger_than_planned_by_the_program():
    for case in CASES[::7]:
        program = gradient_program(case, np.float32)
        compiled = Compiled(program)
        partial = sum(-(-compiled.elements(b, 100) * b.dtype.itemsize // 64) * 64 for b in compiled._sizes)
        assert compiled.plan(100).nbytes(100) <= program.scratch.nbytes(100) + partial + 64 * len(program.operations)


# cuBLAS's arguments, read as cuBLAS reads them


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_arguments_of_cublas(dtype, transposed, accumulate):
    rng = np.random.default_rng(0)
    a, b, out = (rng.normal(size=shape).astype(dtype) for shape in ((5, 7), (7, 3), (5, 3)))
    wanted = a @ b + (out if accumulate else 0)
    stored = [np.ascontiguousarray(m.T if turned else m) for m, turned in zip((a, b), transposed, strict=True)]
    place = np.full((5, 6), np.nan, dtype)
    place[:, :3] = out
    addresses = tuple(array.ctypes.data for array in (place, *stored))
    gemm = Gemm(np.dtype(dtype), (5, 3, 7), addresses, (6, stored[0].shape[1], stored[1].shape[1]), transposed, accumulate)
    library = FakeCublas()
    library.cublasGemmEx(None, *Cublas("float32", library).call(gemm))
    assert_close(place[:, :3], wanted, 1e-6)
    assert np.isnan(place[:, 3:]).all()


def test_threads_share_a_handle_of_cublas():
    """It takes memory and time to make one, which is not for a thread that captures a graph."""
    made, calls = [], []

    class Library:
        def cublasCreate_v2(self, pointer):
            made.append(threading.get_ident())
            pointer._obj.value = 7
            return 0

        def __getattr__(self, name):
            return lambda *arguments: (
                calls.append((name, *(a.value for a in arguments if isinstance(a, ctypes._SimpleCData)))) or 0
            )

    cublas = Cublas("float32", Library())
    cublas.start((), 1, 512, 32)
    for stream in (1, 2):
        thread = threading.Thread(target=cublas.start, args=((), stream, 512, 32))
        thread.start()
        thread.join()
    assert len(made) == 1
    ways = [[("cublasSetStream_v2", 7, stream), ("cublasSetWorkspace_v2", 7, 512, 32)] for stream in (1, 2)]
    product = ("cublasGemmEx", 7)
    assert calls == [*ways[0], product, product, *ways[1], product]


# What is asked of CuPy


def cuda_device(**attributes):
    device = CudaDevice.__new__(CudaDevice)
    device.__dict__.update(attributes)
    return device


def test_shared_memory_is_asked_for():
    """Whatever its size: what the text of a kernel declares counts too, and more than 48 kB in all must be asked for."""
    asked, plain = (lambda *arguments: None for _ in range(2))
    cuda_device().launch(asked, (1, 1), (512, 1), [], 47_000)
    cuda_device().launch(plain, (1, 1), (512, 1), [])
    assert asked.max_dynamic_shared_size_bytes == 47_000
    assert not hasattr(plain, "max_dynamic_shared_size_bytes")


@pytest.mark.parametrize("pointer", [0, 1, 2, 9])
@pytest.mark.parametrize("fails", [False, True])
def test_streams_wait_for_each_other(pointer, fails):
    """The default stream does so by itself; another one, or a thread's own default (2), by events, after an error too."""
    done = []

    class Stream:
        def __init__(self, name, ptr):
            self.name, self.ptr = name, ptr

        def record(self):
            return self.name

        def wait_event(self, event):
            done.append(f"{self.name} waits for {event}")

        def __enter__(self):
            done.append("begin")

        def __exit__(self, *error):
            done.append("end")

    current = types.SimpleNamespace(get_current_stream=lambda: Stream("user", pointer))
    device = cuda_device(stream=Stream("main", 5), cupy=types.SimpleNamespace(cuda=current))
    with contextlib.suppress(KeyboardInterrupt), device.running():
        if fails:
            raise KeyboardInterrupt
    waiting = pointer not in (0, 1)
    assert done == [*["main waits for user"] * waiting, "begin", "end", *["user waits for main"] * waiting]


def test_graphs_are_captured_one_after_another():
    """Whatever the thread and the precision: there is one stream for it. Nor is cublasLt asked for an algorithm meanwhile."""
    done = []

    class Capturing(contextlib.nullcontext):
        def begin_capture(self):
            done.append("begin")

        def end_capture(self):
            done.append("end")
            return types.SimpleNamespace(launch=print)

    stream, lt = Capturing(), types.SimpleNamespace(plan=lambda *arguments: done.append("plan"))
    devices = [cuda_device(_capturing=stream, stream=None, _lt=lt) for _ in range(2)]
    others = [
        threading.Thread(target=devices[1].capture, args=([],)),
        threading.Thread(target=devices[1].fused, args=(None, None)),
    ]
    devices[0].capture([*(thread.start for thread in others), *(partial(thread.join, 0.1) for thread in others)])
    for thread in others:
        thread.join()
    assert done[:2] == ["begin", "end"]
    assert sorted(done) == ["begin", "begin", "end", "end", "plan"]


# Arrays on the GPU: what goes in decides where work is done


@pytest.fixture
def device():
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    return backend("emulated").on_device.device


@pytest.fixture
def net():
    return Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 4))


def data(samples=30):
    rng = np.random.default_rng(0)
    return rng.normal(size=(samples, 3)).astype(np.float32), rng.integers(0, 4, samples)


def test_arrays_of_the_gpu_in_and_out(net, device):
    p, (x, t), loss = net.init(), data(), CrossEntropyLoss()
    q, xd, td = device.array(p), device.array(x), device.array(t)
    y = net(xd, q)
    value, g = net.value_and_grad(q, xd, td, loss, seed=5)
    dp, dx = net.vjp(q, xd, y)
    assert all(device.owns(array) for array in (y, g, dp, dx))
    wanted_value, wanted_g = net.value_and_grad(p, x, t, loss, seed=5)
    assert_close(y, net(x, p), 1e-6)
    assert_close([value, net.loss(q, xd, td, loss)], [wanted_value, net.loss(p, x, t, loss)], 1e-6)
    assert_close(g, wanted_g, 1e-6)
    for found, wanted in zip((dp, dx), net.vjp(p, x, net(x, p)), strict=True):
        assert_close(found, wanted, 1e-5)
    out = device.empty(y.shape, y.dtype)
    assert net(xd, q, out=out) is out
    assert out.tobytes() == y.tobytes()
    assert net(xd[:7], q).tobytes() == y[:7].tobytes()


def test_large_arrays_are_bound_where_they_lie(net, device, monkeypatch):
    """No copies of arguments beyond a size: results are written into the caller's arrays by the kernels themselves."""
    monkeypatch.setattr(type(backend("emulated").on_device), "copied_bytes", 0)
    x, t = data()
    p, q = net.init(), net.init(device="emulated")
    for _ in range(2):
        out = device.empty(q.shape, q.dtype)
        value, g = net.value_and_grad(q, device.array(x), device.array(t), CrossEntropyLoss(), seed=5, out=out)
        wanted = net.value_and_grad(p, x, t, CrossEntropyLoss(), seed=5)
        assert g is out
        assert_close(value, wanted[0], 1e-6)
        assert_close(g, wanted[1], 1e-6)


def test_host_data_go_to_the_parameters(net, device):
    x, t = data()
    q = net.init(device="emulated")
    assert place_of(q) is device
    assert q.tobytes() == net.init().tobytes()
    y = net(x, q)
    assert device.owns(y)
    value, g = net.value_and_grad(q, x, t.tolist(), CrossEntropyLoss(), weights=np.ones(30), seed=1)
    assert device.owns(g)
    assert value == pytest.approx(net.value_and_grad(np.asarray(q), x, t, CrossEntropyLoss(), seed=1)[0], rel=1e-6)
    assert {name: view.shape for name, view in net.views(q).items()}["0.weight"] == (3, 8)


def test_mixed_devices_are_refused(net, device):
    p, (x, t) = net.init(), data()
    xd = device.array(x)
    sentence = r"`x` lies on the GPU and `p` in the computer's memory: pass cupy\.asarray\(p\)"
    with pytest.raises(TypeError, match=sentence):
        net(xd, p)
    with pytest.raises(TypeError, match=sentence):
        net.value_and_grad(p, xd, t, CrossEntropyLoss())
    with pytest.raises(TypeError, match=sentence):
        train(net, p, xd, t, CrossEntropyLoss(), Adam())
    with pytest.raises(TypeError, match="an array to fill on the GPU"):
        net(xd, device.array(p), out=np.empty((30, 4), np.float32))
    with pytest.raises(TypeError, match="`out` is a DeviceArray, but a NumPy array to fill is wanted"):
        net(x, p, out=device.empty((30, 4), np.float32))
    wide = device.array(np.zeros((30, 4), np.float32))
    with pytest.raises(ValueError, match="`out` overlaps `x`"):
        net(wide.reshape(-1)[:90].reshape(30, 3), device.array(p), out=wide)
    with pytest.raises(TypeError, match="make the objective with"):
        net.objective(x, t, CrossEntropyLoss())(device.array(p))
    with pytest.raises(ValueError, match=r"`device` \(='tpu'\) must be 'cpu' or 'cuda'"):
        net.init(device="tpu")
    with pytest.raises(ValueError, match="labels must be from 0 to 3"):
        net.value_and_grad(device.array(p), xd, device.array(t + 1), CrossEntropyLoss())


@needs_compiler
def test_a_state_lies_beside_the_parameters(device):
    net, (x, _) = Chain(Dense(3, 8), BatchNorm(8)), data()
    p, q, t, loss = net.init(), net.init(device="emulated"), np.ones((30, 8), np.float32), SquaredLoss()
    for place, other, move in ((q, np.array, "asarray"), (p, device.array, "asnumpy")):
        state = other(net.init_state())
        sentence = rf"`state` and `p` lie on different devices: pass cupy\.{move}\(state\)"
        for mode in ("train", "eval"):
            with pytest.raises(TypeError, match=sentence):
                net(x, place, state=state, mode=mode)
            with pytest.raises(TypeError, match=sentence):
                net.value_and_grad(place, x, t, loss, state=state, mode=mode)
        with pytest.raises(TypeError, match=sentence):
            train(net, place, x, t, loss, Adam(), state=state)
    with pytest.raises(TypeError, match=r"`state` and `x` lie on different devices: pass cupy\.asarray\(state\)"):
        net.objective(device.array(x), device.array(t), loss, state=net.init_state())


def test_objective_with_data_on_the_gpu(net, device):
    x, t = data()
    p = net.init(dtype=np.float64)
    wanted = net.objective(x, t, CrossEntropyLoss())(p)
    objective = net.objective(device.array(x), device.array(t), CrossEntropyLoss())
    for place in (np.asarray, device.array):
        value, g = objective(place(p))
        assert type(g) is type(place(p))
        assert value == pytest.approx(wanted[0], rel=1e-12)
        assert_close(g, wanted[1], 1e-12)


# Training


def trained(net, p, x, t, **settings):
    settings = {"epochs": 3, "batch_size": 7, "seed": 2} | settings
    return train(net, p, x, t, CrossEntropyLoss(), Adam(0.02), **settings)


@needs_compiler
@pytest.mark.parametrize("batch_size", [7, 30])
def test_training_is_that_of_numpy(net, device, batch_size):
    x, t = data()
    places = {"numpy": net.init(), "host": net.init(), "device": net.init(device="emulated")}
    histories = {
        name: trained(Chain(*net.layers, backend="emulated" if name == "host" else "numpy"), p, x, t, batch_size=batch_size)
        for name, p in places.items()
    }
    assert places["host"].tobytes() == places["device"].tobytes()
    assert histories["host"].loss == histories["device"].loss
    assert_close(places["host"], places["numpy"], 1e-5)
    assert_close(histories["host"].loss, histories["numpy"].loss, 1e-5)
    assert device.owns(histories["device"].optimizer_state["moments"])
    resumed = net.init(device="emulated")
    first = trained(net, resumed, x, t, batch_size=batch_size, epochs=2)
    trained(net, resumed, x, t, batch_size=batch_size, epochs=1, resume=first)
    assert resumed.tobytes() == places["device"].tobytes()


@needs_compiler
def test_training_goes_on_elsewhere(net, device):
    x, t = data()
    wanted = net.init()
    trained(Chain(*net.layers, backend="numpy"), wanted, x, t)
    for begin, end in ((np.array, device.array), (device.array, np.array)):
        p = begin(net.init())
        history = trained(net, p, x, t, epochs=2)
        q = end(p)
        trained(net, q, x, t, epochs=1, resume=history)
        assert_close(q, wanted, 1e-5)


@needs_compiler
def test_a_training_step_is_a_graph_and_allocates_nothing(net, device):
    x, t = data(70)
    q, counts = net.init(device="emulated"), []
    device.graphs = 0
    trained(net, q, device.array(x), device.array(t), epochs=4, callbacks=[lambda state: counts.append(device.allocations)])
    assert device.graphs == 1  # for the one batch size
    assert counts[1] == counts[2] == counts[3]


@needs_compiler
def test_updater_on_the_gpu(device):
    rng = np.random.default_rng(0)
    p = rng.normal(size=9).astype(np.float32)
    q = device.array(p)
    one, other = Updater(Adam(0.1), p), Updater(Adam(0.1), q)
    for _ in range(3):
        g = rng.normal(size=9).astype(np.float32)
        one(g)
        other(device.array(g))
    assert_close(q, p, 1e-6)


# No GPU, no driver, no CuPy


def fake_cupy(driver, built, count=None):
    class CUDARuntimeError(RuntimeError):
        pass

    def devices():
        if count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return count

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=devices,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: built,
    )
    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime), ndarray=type("ndarray", (), {}))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (None, "needs CuPy, which cannot be imported: .*pip install cupy-cuda12x"),
        (fake_cupy(0, 12090), "finds no GPU: there is no NVIDIA driver on this computer"),
        (
            fake_cupy(11080, 12090),
            r"the driver knows CUDA 11\.8, but this CuPy was built for CUDA 12; pip install cupy-cuda11x",
        ),
        (fake_cupy(12040, 12090), "finds no GPU: cudaErrorInsufficientDriver"),
        (fake_cupy(12090, 12090, 0), "CUDA_VISIBLE_DEVICES hides them"),
    ],
)
def test_without_a_gpu_a_sentence_says_why(monkeypatch, module, sentence):
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(backends, "_loaded", {})
    with pytest.raises(ValueError, match=sentence):
        usable_cupy()
    for name in ("cupy", "cupy-tf32"):
        with pytest.raises(ValueError, match=sentence):
            Chain(Dense(3, 2), backend=name)
    net, x = Chain(Dense(3, 2)), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=sentence):
        net.init(device="cuda")
    assert net(x, net.init()).shape == (2, 2)  # "auto" goes on with the processor


@pytest.mark.parametrize(("name", "called"), [("cublas", "cuBLAS"), ("cublasLt", "cublasLt")])
def test_cublas_that_is_missing(monkeypatch, name, called):
    pathfinder = types.ModuleType("cuda.pathfinder")

    def missing(name):
        raise RuntimeError(f"lib{name}.so was not found")

    pathfinder.load_nvidia_dynamic_lib = missing
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    loaded.cache_clear()
    with pytest.raises(ValueError, match=re.escape(f"needs the library {called}, which cannot be loaded: lib{name}.so")):
        loaded(name)
    loaded.cache_clear()


@needs_compiler
def test_data_too_large_for_the_gpu_are_sent_batch_by_batch(net, device, monkeypatch):
    x, t = data()
    p, wanted = net.init(), net.init()
    trained(Chain(*net.layers, backend="emulated"), wanted, x, t)
    contiguous = type(device).contiguous

    def full(self, array, dtype=None):
        if getattr(array, "shape", ())[:1] == (30,):
            raise MemoryError("the GPU has no room")
        return contiguous(self, array, dtype)

    monkeypatch.setattr(type(device), "contiguous", full)
    trained(Chain(*net.layers, backend="emulated"), p, x, t)
    assert_close(p, wanted, 1e-6)


def test_listing_shows_the_kernels():
    net = Chain(Dense(3, 2), backend="emulated")
    text = net.listing(net.program(SquaredLoss()))
    assert "program gradient" in text
    assert "KERNEL sum_" in text


def test_the_benchmark_says_that_nothing_was_measured(monkeypatch, capsys):
    from benchmarks import gpu as script

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(backends, "_loaded", {})
    assert script.main([]) == 0
    assert capsys.readouterr().out.startswith("nothing was measured: `backend` (='cupy') needs CuPy")


# On a GPU


def gpu() -> str | None:
    """Why there is none, or None."""
    try:
        usable_cupy()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.gpu
@pytest.mark.skipif(gpu() is not None, reason=gpu() or "")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_on_the_gpu(case, dtype):
    """The same harness: gradients equal NumPy's, twice the same bits, eagerly and as a graph."""
    program = gradient_program(case, dtype)
    problem = case.problem(70)
    arrays = arrays_of(problem)
    wanted, found, again = (
        run_program(program, name, 70, arrays, runs=n) for name, n in (("numpy", 1), ("cupy", 1), ("cupy", 3))
    )
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-4 if dtype == np.float32 else 1e-11, name)


@pytest.mark.gpu
@pytest.mark.skipif(gpu() is not None, reason=gpu() or "")
def test_training_on_the_gpu(net):
    import cupy

    x, t = data()
    p, q = net.init(), net.init(device="cuda")
    trained(Chain(*net.layers, backend="numpy"), p, x, t)
    trained(net, q, cupy.asarray(x), cupy.asarray(t))
    assert isinstance(q, cupy.ndarray)
    assert_close(cupy.asnumpy(q), p, 1e-5)
    y = net(cupy.asarray(x), q)
    assert isinstance(y, cupy.ndarray)
    assert accuracy(cupy.asarray(t), y) == accuracy(t, cupy.asnumpy(y))
