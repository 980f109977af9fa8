"""Images and large products on the native backend: lanes of samples, Winograd's way, blocks, within their buffers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chains
from chains import (
    Activation,
    Adam,
    AvgPool,
    BatchNorm,
    Chain,
    Conv,
    ConvTranspose,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    Scale,
    relu,
    softplus,
    tanh,
)
from chains.backends.numpy.backend import NumpyBackend
from chains.network import executables, record
from chains.network.network import network_of
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Map, Pool

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import support
from chains.backends.native.kernels import block_shapes, convolve, gemm, matmul, winograd
from chains.backends.native.llvm.target import Processor, processor
from chains.backends.native.memory_plan import MemoryPlan
from chains.backends.native.operations import Relayout
from chains.backends.native.plan.execution_plan import ExecutionPlan
from chains.backends.native.plan.layout import arrange_layout
from chains.backends.native.plan.passes import plan_of
from chains.lowering import tiling
from tests.native.support import (
    FLOATS,
    INSTRUCTIONS,
    Fenced,
    assert_equal_results,
    gradient_program,
    native,
    random_arrays,
    run_fenced,
    run_on,
)

floats = pytest.mark.parametrize("kind", FLOATS)
every_instruction_set = pytest.mark.parametrize("simd", INSTRUCTIONS)
SIXTEEN_LANES = Processor("wide", 64, 32, "", "")


def vjp_of(net, kind):
    return record.vjp(network_of(net), np.dtype(kind), training=True)


def assert_equals_numpy(program, batch, kind, threads=(1, 2), simd=None, factor=4.0):
    arrays = random_arrays(program, batch)
    wanted = run_on(NumpyBackend(), program, batch, arrays)
    for count in threads:
        fences = Fenced()
        actual = run_fenced(native(count, simd), program, batch, arrays, fences)
        fences.check()
        assert_equal_results(actual, wanted, kind, f"batch {batch}, {count} threads", factor)


def lenet(**options):
    layers = Conv(1, 6, 5, relu), MaxPool(2), Conv(6, 16, 5, relu), MaxPool(2), Flatten()
    return Chain(*layers, Dense(256, 120, relu), Dense(120, 84, relu), Dense(84, 10), input_shape=(1, 28, 28), **options)


@pytest.mark.few(2)
@every_instruction_set
@floats
def test_a_network_of_convolutions_at_odd_batches(kind, simd, eager):
    layers = Conv(2, 5, 3, tanh, padding=1), MaxPool(2), Dropout(0.25), Conv(5, 7, 2), Flatten(), Dense(7 * 4 * 3, 9, tanh)
    program = vjp_of(Chain(*layers, Dense(9, 3), input_shape=(2, 10, 8)), kind)
    for batch in (1, 3, 4, 5, 15, 16, 17, 33):
        assert_equals_numpy(program, batch, kind, simd=simd)


@pytest.mark.few(3)
@every_instruction_set
@floats
@pytest.mark.parametrize(
    ("outs", "ins", "shape", "padding"),
    [
        (16, 16, (4, 4), 1),
        (17, 19, (7, 10), 1),
        (33, 16, (9, 5), (0, 2)),
        (20, 50, (6, 23), 2),
        (16, 40, (8, 64), ((0, 1), (2, 0))),  # is cut into parts of a row
        (33, 34, (19, 21), (2, (1, 0))),  # the gradient of the kernels is cut into parts of some rows
    ],
)
def test_winograds_way_equals_numpy(outs, ins, shape, padding, kind, simd, eager):
    program = vjp_of(Chain(Conv(ins, outs, 3, tanh, padding=padding), input_shape=(ins, *shape)), kind)
    chosen = [o for o in program.operations if isinstance(o, (Convolve, ConvolveInput))]
    assert chosen
    assert all(winograd.suits(operation) for operation in chosen)
    lanes = processor(simd).lanes(np.dtype(kind).itemsize)
    transformed = [o for o in program.operations if isinstance(o, ConvolveWeight) and winograd.suits_weight(o, lanes)]
    assert len(transformed) == (min(outs, ins) >= max(16, 2 * lanes) and shape != (4, 4))
    for batch in (1, 18):
        assert_equals_numpy(program, batch, kind, simd=simd)


def test_winograds_way_is_for_plain_kernels_of_three_by_three_and_many_channels():
    def chosen(layer, shape):
        program = record.forward(network_of(Chain(layer, input_shape=shape)), np.dtype("float32"), training=False)
        return [winograd.suits(o) for o in program.operations if isinstance(o, (Convolve, ConvolveInput))]

    assert chosen(Conv(16, 16, 3), (16, 8, 8)) == [True]
    assert chosen(ConvTranspose(16, 16, 3), (16, 8, 8)) == [True]
    for layer in (
        Conv(16, 16, 3, stride=2),
        Conv(16, 16, 3, dilation=2),
        Conv(16, 16, 2),
        Conv(32, 32, 3, groups=2),
        Conv(16, 8, 3),
    ):
        assert chosen(layer, (layer.inputs, 12, 12)) == [False]
    assert chosen(Conv(16, 16, 3), (16, 5, 5)) == [False]


def endings(plan):
    """What is done to the results of each convolution of a plan, by the names of the operations, and what is not stored."""
    steps = [step for segment in plan.segments for step in segment.tiled_steps if isinstance(step.operation, Convolve)]
    return [([each.name for each in step.fused], {buffer.name for buffer in step.transient}) for step in steps]


@pytest.mark.few(3)
@every_instruction_set
@floats
@pytest.mark.parametrize(
    ("conv", "pool", "shape"),
    [
        (Conv(1, 6, 5, relu), MaxPool(2), (1, 12, 16)),
        (Conv(3, 7, 3, tanh), AvgPool(2), (3, 8, 10)),
        (Conv(2, 5, 3, relu, padding=(0, 1)), MaxPool((1, 3)), (2, 6, 9)),
        (Conv(4, 6, (3, 2), stride=(2, 1), groups=2), MaxPool((2, 1)), (4, 9, 7)),
        (Conv(2, 3, (1, 3), relu, padding=(2, 1)), AvgPool((1, 4)), (2, 3, 8)),  # padded rows, one row of windows
    ],
    ids=str,
)
def test_pools_join_convolutions(conv, pool, shape, kind, simd, eager):
    net = Chain(conv, pool, Scale(), input_shape=shape)
    for training in (False, True):
        program = record.forward(network_of(net), np.dtype(kind), training=training)
        for batch in (1, 17, 35):
            assert_equals_numpy(program, batch, kind, simd=simd)
    assert_equals_numpy(vjp_of(net, kind), 19, kind, simd=simd)
    (fused, unstored), *_ = endings(plan_of(program, SIXTEEN_LANES))
    assert pool_name(pool) in fused
    assert "y0 in lanes" in unstored
    (fused, unstored), *_ = endings(plan_of(vjp_of(net, kind), SIXTEEN_LANES))
    assert pool_name(pool) in fused
    assert "y0 in lanes" not in unstored  # the pullback reads it


def pool_name(pool):
    return f"{pool.kind}_pool"


@pytest.mark.parametrize(
    ("conv", "pool", "shape"),
    [
        (Conv(2, 5, 3), MaxPool(2, stride=1), (2, 8, 8)),
        (Conv(2, 5, 3), MaxPool(2), (2, 9, 8)),  # a row without a window
        (Conv(2, 5, 3, padding=1), MaxPool(2), (2, 8, 8)),  # rows with other taps in one window
        (Conv(2, 5, 3), MaxPool(3), (2, 8, 8)),  # more results than registers
        (Conv(2, 5, 3), MaxPool(2, padding=1), (2, 8, 8)),
        (Conv(16, 16, 3), MaxPool(2), (16, 10, 10)),  # by Winograd's method
        (ConvTranspose(2, 5, 3), MaxPool(2), (2, 8, 8)),
    ],
    ids=str,
)
def test_pools_that_stay_apart_from_convolutions(conv, pool, shape):
    program = record.forward(network_of(Chain(conv, pool, input_shape=shape)), np.dtype("float32"), training=False)
    plan = plan_of(program, SIXTEEN_LANES)
    steps = [step for segment in plan.segments for step in segment.tiled_steps]
    assert [type(step.operation) for step in steps][-2:] == [Pool, Relayout]
    assert_equals_numpy(program, 17, "float32")


def test_pools_join_convolutions_where_registers_suffice():
    program = record.forward(network_of(lenet()), np.dtype("float32"), training=False)
    assert [fused[-2:] for fused, _ in endings(plan_of(program, SIXTEEN_LANES))] == [["max_pool", "map"]] * 2
    narrow = Processor("narrow", 32, 16, "", "")
    assert [fused for fused, _ in endings(plan_of(program, narrow))] == [["map"]] * 2


def test_nan_and_equal_numbers_in_windows_of_joined_pools():
    """A convolution with a weight of one and no bias, then a pool, computes what the pool does alone."""
    x = np.random.default_rng(0).integers(-2, 3, (20, 1, 4, 4)).astype(np.float32)
    x[::3, 0, 1, 2], x[1, 0, :2, :2], x[4, 0, 2, 3] = np.nan, -np.inf, np.inf
    p, dy = np.array([1, 0], np.float32), np.ones((20, 1, 2, 2), np.float32)
    for pool in (MaxPool(2), AvgPool(2)):
        joined = Chain(Conv(1, 1, 1), pool, input_shape=(1, 4, 4), backend="native")
        alone = Chain(pool, input_shape=(1, 4, 4), backend="numpy")
        np.testing.assert_array_equal(joined(x, p), alone(x, p[:0]))
        np.testing.assert_array_equal(joined.vjp(p, x, dy)[1], alone.vjp(p[:0], x, dy)[1])


def test_blocks_of_convolutions_leave_registers_for_what_they_read():
    """LeNet-5's first convolution: six channels times four positions, where two times twelve would read from memory again."""
    program = record.forward(network_of(lenet()), np.dtype("float32"), training=False)
    operations = [operation for operation in program.operations if isinstance(operation, Convolve)]
    for registers, wanted in ((32, [(6, 4), (6, 4)]), (16, [(6, 2), (4, 3)])):
        frame = SimpleNamespace(lanes=16, shapes=block_shapes.block_shapes(registers))
        assert [convolve._Correlation(frame, operation)._block() for operation in operations] == wanted


@pytest.mark.skipif("avx2" not in INSTRUCTIONS, reason="reads code for AVX2")
def test_maps_in_place_store_whole_vectors():
    """LLVM makes a masked store of a choice between a number in memory and another one. It takes 12 cycles on Zen 4."""
    program = record.forward(
        network_of(Chain(Conv(2, 3, 3, relu), MaxPool(2), input_shape=(2, 8, 8))), np.dtype("float32"), False
    )
    assert any(isinstance(operation, Map) and operation.outs[0] in operation.ins for operation in program.operations)
    code = native(1, "avx2").listing(program)
    tile = code[code.index("\ntile_0_0:") :]
    tile = tile[: tile.index("retq")]
    assert "max" in tile or "cmplt" in tile
    assert "maskmov" not in tile


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_convolutions_within_their_buffers(data):
    groups = data.draw(st.integers(1, 3))
    ins, outs = (groups * data.draw(st.integers(1, 4)) for _ in range(2))
    kernel, stride, dilation = (tuple(data.draw(st.integers(1, 3)) for _ in range(2)) for _ in range(3))
    padding = tuple((data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(2))
    span = [(k - 1) * d + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    shape = tuple(max(1, least) + data.draw(st.integers(0, 9)) for least in span)
    layer = Conv(ins, outs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    program = vjp_of(Chain(layer, input_shape=(ins, *shape)), "float64")
    assert_equals_numpy(program, data.draw(st.integers(1, 18)), "float64", simd=data.draw(st.sampled_from(INSTRUCTIONS)))


def test_samples_of_a_tile_do_not_see_each_other():
    net = lenet(backend="native")
    p, x = net.init(0), np.random.default_rng(0).random((20, 1, 28, 28), np.float32)
    wanted = net(x, p)
    x[[3, 17]] = np.nan
    actual = net(x, p)
    kept = [k for k in range(20) if k not in (3, 17)]
    np.testing.assert_array_equal(actual[kept], wanted[kept])
    assert np.isnan(actual[[3, 17]]).all()


def test_scratch_of_images_does_not_grow_with_the_batch():
    program = gradient_program(lenet(), "float32", CrossEntropyLoss(), target_shape=())
    compiled = native(2).compile(program)
    batches = (4 * compiled.signature.tile, 128 * compiled.signature.tile, 100_000, 1_000_000)
    few, more, many, most = (MemoryPlan(compiled.signature, batch, 2, compiled.work).nbytes for batch in batches)
    assert few == more
    assert few < many == most < 1.5 * few  # and the sums of a block of tiles


def test_room_behind_channels_is_left_where_their_length_is_a_page():
    program = vjp_of(Chain(Conv(3, 4, 3, padding=1), MaxPool(2), input_shape=(3, 16, 16)), "float32")
    arranged = arrange_layout(ExecutionPlan.of(program, SIXTEEN_LANES))
    room = {buffer.name for buffer in arranged.laned if buffer.size % 256 == buffer.shape[1] and buffer.size != buffer.shape[1]}
    assert any(name.startswith("x ") for name in room), [str(buffer) for buffer in arranged.laned]
    assert len(arranged.steps) > len(program.operations)
    assert_equals_numpy(program, 17, "float32")


def test_images_of_one_pool_may_differ_in_room():
    layers = Activation(relu), MaxPool(2), BatchNorm(2), Activation(relu)
    assert_equals_numpy(vjp_of(Chain(*layers, input_shape=(2, 16, 16)), "float64"), 5, "float64")


def test_programs_without_images_stay_as_they_are():
    program = gradient_program(Chain(Dense(3, 4, tanh), Dense(4, 2)), "float32")
    plan = ExecutionPlan.of(program, SIXTEEN_LANES)
    assert arrange_layout(plan) is plan


def test_training_a_network_of_convolutions_on_two_threads_repeats_its_bits(eager):
    rng = np.random.default_rng(1)
    x, t = rng.random((70, 1, 28, 28), np.float32), rng.integers(0, 10, 70)
    results = []
    for _ in range(3):
        net = lenet(backend="native")
        p = net.init(0)
        chains.train(net, p, x, t, CrossEntropyLoss(), Adam(1e-3), epochs=2, batch_size=33, progress=False)
        results.append(p)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.few(2)
@every_instruction_set
@floats
def test_dense_layers_behind_images_read_many_weights_in_parts(kind, simd, eager):
    outs = 161 if kind == "float32" else 83
    layers = Conv(1, 3, 2, relu), Flatten(), Dense(3 * 11 * 13, outs, tanh), Dense(outs, 3)
    program = vjp_of(Chain(*layers, input_shape=(1, 12, 14)), kind)
    assert 3 * 11 * 13 * outs * np.dtype(kind).itemsize > matmul.SECOND_LEVEL_CACHE_BYTES
    for batch in (1, 21):
        assert_equals_numpy(program, batch, kind, simd=simd)


@pytest.fixture
def gathered(changed_compiler, monkeypatch):
    """Let dense layers behind images see the whole batch, however small they are."""
    monkeypatch.setattr(support, "MIN_GATHERED_WEIGHTS", 1000)
    monkeypatch.setattr(support, "MIN_GATHERED_SAMPLES", 2)
    monkeypatch.setattr(support, "_max_gathered", support._max_gathered.__wrapped__)  # nothing is kept
    monkeypatch.setattr(tiling, "MIN_LARGE_ELEMENTS", 1000)
    monkeypatch.setattr(gemm, "MIN_VERY_LARGE_ELEMENTS", 1000)
    changed_compiler()


def behind_images(*more, backend="native"):
    """A dense layer of many weights between small ones, with what goes from tiles to the whole batch and back."""
    images = Conv(1, 3, 3, relu, padding=1), MaxPool(2), *more, Flatten()
    return Chain(*images, Dense(3 * 4 * 5, 37, tanh), Dense(37, 3), input_shape=(1, 8, 10), backend=backend)


@pytest.mark.few(1)
@every_instruction_set
@floats
def test_dense_layers_behind_images_see_the_whole_batch(kind, simd, eager, gathered):
    program = vjp_of(behind_images(BatchNorm(3), Dropout(0.3)), kind)
    runner = native(2, simd)
    assert len(list(plan_of(program, runner.processor, gathered=True).products)) == 3
    for batch in (2, 21, 67):
        arrays = random_arrays(program, batch)
        fences = Fenced()
        found = run_fenced(runner, program, batch, arrays, fences)
        fences.check(f"batch {batch}")
        assert_equal_results(found, run_on(NumpyBackend(), program, batch, arrays), kind, f"batch {batch}", factor=10.0)


def test_training_where_dense_layers_behind_images_see_the_whole_batch(eager, gathered):
    rng = np.random.default_rng(1)
    x, t = rng.random((70, 1, 8, 10), np.float32), rng.integers(0, 3, 70)
    results = []
    for backend in ("native", "numpy"):
        net = behind_images(backend=backend)
        p = net.init(0)
        chains.train(net, p, x, t, CrossEntropyLoss(), chains.SGD(0.05, momentum=0.9), epochs=2, batch_size=32, progress=False)
        results.append(p)
    np.testing.assert_allclose(*results, rtol=2e-4, atol=2e-6)


def test_dense_layers_see_the_whole_batch_where_threads_ask_for_parts(gathered, monkeypatch):
    monkeypatch.setattr("chains.backends.native.backend.MIN_PART_OPERATIONS", 1)
    assert native(2).compile(vjp_of(behind_images(), "float32"), 4).signature.products


def test_what_is_kept_for_the_whole_batch_is_bounded(gathered):
    program = vjp_of(behind_images(), "float32")
    most = support._max_gathered(program)
    assert support.gathers(program, 2)
    assert support.gathers(program, most)
    assert not support.gathers(program, most + 1)
    assert not support.gathers(program, 1)
    assert not plan_of(program, processor()).whole
    kept = sum(buffer.nbytes for buffer in plan_of(program, processor(), gathered=True).whole)
    assert 0 < kept * most < 1.1 * support.MAX_GATHERED_BYTES  # the layout leaves room
    assert not support.gathers(vjp_of(Chain(Dense(300, 300)), "float32"), 50)


# Large products

THIN = block_shapes.block_shapes(32).gemm.thin_rows


@pytest.mark.few(2)
@every_instruction_set
@floats
@pytest.mark.parametrize("activation", [tanh, relu], ids=str)
@pytest.mark.parametrize("sizes", [(300, 500), (400, 401, 333), (1200, 110, 1201), (130, 1024, 3)], ids=str)
def test_large_products_equal_numpy(sizes, activation, kind, simd, eager):
    net = Chain(*(Dense(a, b, activation) for a, b in pairwise(sizes)))
    program = vjp_of(net, kind)
    assert any(tiling.is_large(operation) for operation in program.operations)
    for batch in (1, THIN, THIN + 1, 61, 400):
        assert_equals_numpy(program, batch, kind, simd=simd, factor=20.0)


@pytest.mark.few(1)
@floats
def test_large_products_in_many_blocks(kind, monkeypatch):
    for registers, shapes in block_shapes.SHAPES.items():
        small = replace(shapes.gemm, inner=48, outer_bytes=24 * np.dtype(kind).itemsize, across=64)
        monkeypatch.setitem(block_shapes.SHAPES, registers, replace(shapes, gemm=small))
    program = vjp_of(Chain(Dense(390, 370, relu), Dense(370, 405, softplus), Dense(405, 380, relu)), kind)
    for batch in (30, 48, 49, 127):
        assert_equals_numpy(program, batch, kind, factor=20.0)


def test_few_weights_are_no_large_product():
    program = vjp_of(Chain(Dense(300, 400), Dense(400, 10)), "float32")
    assert not any(tiling.is_large(operation) for operation in program.operations)


@pytest.mark.few(1)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_training_with_large_products(threads, eager):
    """Gradients, momentum and parameters are long enough for threads to share."""
    net = Chain(Dense(40, 420, relu), Dense(420, 390, relu), Dense(390, 4))
    objective = record.Criterion(chains.MSELoss(), (4,))
    for optimizer in (chains.SGD(0.01, momentum=0.9), Adam(1e-3, clip_norm=0.5)):
        program = executables.training_step(network_of(net), net.init(0, dtype=np.float64), objective, optimizer).program
        assert_equals_numpy(program, 50, "float64", (threads,), factor=20.0)
