"""Many tiles are summed up in blocks, so that errors of rounding hardly grow with the number of samples."""

from __future__ import annotations

import numpy as np
import pytest

from chains import BatchNorm, Chain, Dense, Dropout, SquaredLoss, num_threads, tanh

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import memory_plan
from chains.backends.native.compiler import compile_program
from chains.backends.native.memory_plan import MIN_BLOCK_TILES, MemoryPlan
from chains.backends.numpy.backend import NumpyBackend
from chains.network.record_derivatives import MatrixForm, sum_of_squares
from tests.harness import LAYERS, LOSS_CASES, PENALTY_CASES, Case, assert_same_bits, targets
from tests.native.support import Fenced, assert_equal_results, gradient_program, native, random_arrays, run_fenced, run_on

SAMPLES = 3_000_000
P = np.array([0.7, 0.05], np.float32)


def error_of_equal_samples(samples):
    """The relative error of a value and a gradient on equal samples. Rounding always goes one way there: the worst case."""
    net, reference = (Chain(Dense(1, 1), backend=name) for name in ("native", "numpy"))
    x, t = np.full((samples, 1), 0.3, np.float32), np.full((samples, 1), 0.1, np.float32)
    value, g = net.value_and_grad(P, x, t, SquaredLoss())
    right, wanted = reference.value_and_grad(P.astype(np.float64), x[:1], t[:1], SquaredLoss())
    return max(abs(value - right) / right, float(np.max(abs(g - wanted) / abs(wanted))))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("samples", [1000, 100_000, SAMPLES])
def test_errors_hardly_grow(samples, threads):
    with num_threads(threads):
        assert error_of_equal_samples(samples) < 5e-6


def test_sums_in_one_go_are_worse(monkeypatch):
    """Which the test above would find."""
    monkeypatch.setattr(memory_plan, "MIN_BLOCK_TILES", 1 << 40)
    with num_threads(1):
        assert error_of_equal_samples(SAMPLES) > 5e-6


def test_where_there_are_blocks():
    compiled = native().compile(Chain(Dense(4, 32, tanh), Dense(32, 4)).program(SquaredLoss()))
    tile = compiled.signature.tile
    for threads in (1, 2):
        few = MemoryPlan(compiled.signature, tile * MIN_BLOCK_TILES * threads, threads, compiled.work)
        more = MemoryPlan(compiled.signature, tile * MIN_BLOCK_TILES * threads + 1, threads, compiled.work)
        most = MemoryPlan(compiled.signature, tile * 400**2 * threads, threads, compiled.work)
        assert (few.block, len(few.block_sums)) == (MIN_BLOCK_TILES, 0)
        assert (more.block, len(more.block_sums)) == (MIN_BLOCK_TILES, threads)
        assert (most.block, len(most.block_sums)) == (400, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_a_matrix_are_added_row_by_row(threads):
    """Blocks on and above the diagonal, whose rows are at even distances; what is below it stays as it was."""
    net = Chain(Dense(3, 9, tanh), Dense(9, 1))
    n, samples, rng = net.n_params, 2_000, np.random.default_rng(0)
    program = sum_of_squares(net._network, SquaredLoss(), (1,), np.dtype(np.float64), MatrixForm((n, n + 3)))
    arrays = random_arrays(program, samples)
    arrays["matrix"] = before = rng.normal(size=(n, n + 3))
    matrix = run_on(native(threads), program, samples, arrays)["matrix"]
    j = net.jacobian(arrays["p"], arrays["x"])[:, 0] * arrays["factors"]
    above = np.triu(np.ones((n, n), bool))
    np.testing.assert_allclose(matrix[:, :n][above], (j.T @ j)[above], rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(matrix[:, n:], before[:, n:])
    np.testing.assert_array_equal(matrix[-1, :16], before[-1, :16])


def test_the_code_of_sums_grows_with_blocks_and_not_with_rows():
    def lines(units):
        net = Chain(Dense(2, units, tanh), Dense(units, 1))
        form = MatrixForm((net.n_params, net.n_params + 8))
        program = sum_of_squares(net._network, SquaredLoss(), (1,), np.dtype(np.float64), form)
        text = compile_program(program, native().processor).text
        return text.split("define  void @add_0(")[1].split("\n}")[0].count("\n")

    assert lines(60) < 1.5 * lines(28)


STATISTICS = Case("statistics", None, (Dense(3, 5), BatchNorm(5), Dropout(0.3), Dense(5, 2)), (3,))


@pytest.mark.few(8)
@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("case", [STATISTICS, *LAYERS, *LOSS_CASES[::3], *PENALTY_CASES[::4]], ids=str)
def test_blocks_give_the_numbers_of_numpy(case, block, eager, monkeypatch):
    """Nothing is written beside the arrays, and the bits are the same each time."""
    monkeypatch.setattr(memory_plan, "MIN_BLOCK_TILES", block)
    monkeypatch.setattr(memory_plan.math, "isqrt", lambda _: 1)
    net, rng = case.net(), np.random.default_rng(3)
    program = gradient_program(net, "float64", criterion=case.criterion())
    compiled = native().compile(program)
    batch = 7 * compiled.signature.tile + 3
    arrays = random_arrays(program, batch) | {"t": targets(case.targets, rng, batch, net.output_shape).astype("f8")}
    arrays = {name: array for name, array in arrays.items() if name in program.buffers}
    wanted = run_on(NumpyBackend(), program, batch, arrays)
    for threads in (1, 2, 3):
        assert MemoryPlan(compiled.signature, batch, threads, compiled.work).block_sums
        fences = Fenced()
        found = run_fenced(native(threads), program, batch, arrays, fences)
        fences.check(f"{threads} threads")
        assert_equal_results(found, wanted, "float64", f"{threads} threads", factor=100.0)  # of sums over many samples
        assert_same_bits(run_on(native(threads), program, batch, arrays), found)
