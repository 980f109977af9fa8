"""The harness: every case x type x batch size x backend against central differences, poison and itself."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import chains
from chains import losses
from chains.network import record
from chains.network.network import network_of
from tests.harness import (
    ACTIVATION_FORMULAS,
    CASES,
    LAYERS,
    LOSS_CASES,
    LOSSES,
    OPTIMIZERS,
    ROUNDING,
    Case,
    Kink,
    Problem,
    assert_close,
    assert_same_bits,
    away_from_kinks,
    central_difference,
    run_program,
)

MODES = ("eval", "train")
every_case = pytest.mark.parametrize("case", CASES, ids=str)
# Both modes where they differ: where something is dropped or normalised by the batch.
MODED = [
    (case, mode)
    for case in CASES
    for mode in MODES
    if mode == "train" or any(name in repr(case.layers) for name in ("Dropout", "BatchNorm"))
]
every_case_and_mode = pytest.mark.parametrize(("case", "mode"), MODED, ids=str)


def common(dtype, batch, backend_name="numpy", **_):
    """What runs of every case: in float64, on several samples."""
    return dtype is np.float64 and batch > 1


FIRST = {str(case.subject): case for case in reversed(CASES)}.values()


def common_or_first(case, backend_name, **others):
    """On NumPy what runs of every case; on other backends of the first case of each subject."""
    return common(**others) and (backend_name == "numpy" or case in FIRST)


def common_on_numpy(backend_name, dtype=np.float64, batch=5, **_):
    return backend_name == "numpy" and common(dtype, batch)


TOLERANCE = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 2e-8}  # of a gradient against a central difference


@cache
def smooth_gradient(case: Case, batch: int, mode: str) -> tuple[Problem, np.ndarray]:
    """A problem and the central difference of its value with respect to the parameters, zero where frozen."""

    def at(seed: int) -> tuple[Problem, np.ndarray]:
        problem = case.problem(batch, seed)
        gradient = central_difference(lambda p: problem.value_and_grad(mode=mode, p=p)[0], problem.p)
        for name in case.net().frozen:
            case.net().views(gradient)[name][...] = 0.0
        return problem, gradient

    return away_from_kinks(at)


@cache
def smooth_pullback(case: Case, batch: int, mode: str) -> tuple[Problem, np.ndarray, np.ndarray]:
    """A problem and the central differences of sum(dy * net(x, p)) with respect to p and x."""

    def at(seed: int) -> tuple[Problem, np.ndarray, np.ndarray]:
        problem = case.problem(batch, seed)

        def total(**changed: np.ndarray) -> float:
            return float(np.sum(problem.dy * problem.call(mode=mode, **changed)))

        dp = central_difference(lambda p: total(p=p), problem.p)
        for name in case.net().frozen:
            case.net().views(dp)[name][...] = 0.0
        ids = problem.x.dtype.kind == "i"  # which nothing can be derived by
        return problem, dp, np.zeros(problem.x.shape) if ids else central_difference(lambda x: total(x=x), problem.x)

    return away_from_kinks(at)


@pytest.mark.few(20, always=common_or_first)
@every_case_and_mode
def test_gradient_is_a_central_difference(case, dtype, batch, backend_name, mode):
    problem, wanted = smooth_gradient(case, batch, mode)
    _, gradient = problem.value_and_grad(backend_name, dtype, mode)
    assert gradient.dtype == dtype
    assert_close(gradient, wanted, TOLERANCE[np.dtype(dtype)])


@pytest.mark.few(30, always=common_on_numpy)
@every_case_and_mode
def test_vjp_is_a_central_difference(case, dtype, batch, backend_name, mode):
    problem, dp, dx = smooth_pullback(case, batch, mode)
    actual_dp, actual_dx = problem.vjp(backend_name, dtype, mode)
    assert_close(actual_dp, dp, TOLERANCE[np.dtype(dtype)], "dp")
    assert_close(actual_dx, dx, TOLERANCE[np.dtype(dtype)], "dx")


@pytest.mark.few(40)
@every_case_and_mode
def test_results_equal_those_of_numpy_in_float64(case, dtype, batch, backend_name, mode):
    problem = smooth_gradient(case, batch, mode)[0]
    tolerance = ROUNDING[np.dtype(dtype)]
    for actual, wanted in zip(
        (problem.call(backend_name, dtype, mode), *problem.value_and_grad(backend_name, dtype, mode)),
        (problem.call(mode=mode), *problem.value_and_grad(mode=mode)),
        strict=True,
    ):
        assert_close(actual, wanted, tolerance)


@pytest.mark.few(16)
@every_case
def test_same_call_gives_same_bits(case, dtype, batch, backend_name):
    problem = case.problem(batch)
    for mode in MODES:
        first, second = (
            [problem.call(backend_name, dtype, mode), *problem.value_and_grad(backend_name, dtype, mode),
             *problem.vjp(backend_name, dtype, mode)]
            for _ in range(2)
        )  # fmt: skip
        for a, b in zip(first, second, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            assert not isinstance(a, np.ndarray) or not np.shares_memory(a, b)


@every_case
def test_evaluation_forgets_the_seed(case, backend_name):
    problem, net = case.problem(4), case.net(backend_name)
    first, second = (net(problem.x, problem.p, state=problem.state, seed=seed) for seed in (1, 2))
    assert_same_bits({"y": first}, {"y": second})


@pytest.mark.few(30, always=common_on_numpy)
@every_case
def test_loss_equals_that_of_the_gradient(case, dtype, batch, backend_name):
    problem, net = case.problem(batch), case.net(backend_name)
    p, state = problem.p.astype(dtype), problem.state.astype(dtype)
    value = net.loss(p, problem.x, problem.t, case.loss, weights=problem.w, penalty=case.penalty, state=state)
    assert_close(value, problem.value_and_grad(mode="eval")[0], ROUNDING[np.dtype(dtype)])


# Poison


def arrays_of(problem: Problem) -> dict[str, np.ndarray]:
    arrays = {"p": problem.p, "x": problem.x, "t": problem.t, "dy": problem.dy, "state": problem.state,
              "random": np.array([3, 0], np.uint64)}  # fmt: skip
    return arrays | ({} if problem.w is None else {"weights": problem.w})


def programs(case: Case, dtype: type) -> dict[str, chains.program.Program]:
    network, dtype = network_of(case.net()), np.dtype(dtype)
    objective = case.criterion()
    made = {"step": record.training_step(network, objective, OPTIMIZERS["Adam"], dtype)}
    for training in (False, True):
        made[f"forward-{training}"] = record.forward(network, dtype, training)
        made[f"vjp-{training}"] = record.vjp(network, dtype, training)
        made[f"loss-{training}"] = record.loss(network, objective, dtype, training)
        made[f"gradient-{training}"] = record.gradient(network, objective, dtype, training, pure=True)
    return made


@pytest.mark.few(16)
@every_case
def test_nothing_is_read_before_it_is_written(case, dtype, batch, backend_name):
    problem = case.problem(batch)
    arrays = arrays_of(problem) | {"moments": np.zeros(2 * len(problem.p)), "step": np.zeros(())}
    for program in programs(case, dtype).values():
        clean, poisoned = (run_program(program, backend_name, len(problem.x), arrays, fill) for fill in (0x00, 0xFF))
        assert_same_bits(clean, poisoned)
        assert all(np.isfinite(array).all() for array in poisoned.values()), "an output was not filled"
        assert clean, "the program wrote nothing"


@pytest.mark.few(16)
@every_case
def test_calls_equal_their_programs(case, dtype, backend_name):
    """What `value_and_grad`, `vjp` and a call return are the program's outputs, bit by bit."""
    problem, made = case.problem(3), programs(case, dtype)
    arrays = arrays_of(problem)
    value, g = problem.value_and_grad(backend_name, dtype)
    dp, dx = problem.vjp(backend_name, dtype)
    nothing = {"g": np.empty(0, dtype)}  # what a program of no parameters leaves out
    assert_same_bits(
        {"g": g, "value": np.asarray(value, dtype)}, nothing | run_program(made["gradient-True"], backend_name, 3, arrays)
    )
    assert_same_bits({"g": dp, "dx": dx}, nothing | run_program(made["vjp-False"], backend_name, 3, arrays))
    y = problem.call(backend_name, dtype)
    assert_same_bits({"y": y}, run_program(made["forward-False"], backend_name, 3, arrays))


# Values, against formulas written apart from the package


@pytest.mark.parametrize("name", ACTIVATION_FORMULAS)
def test_activation_is_its_formula(name, dtype, backend_name):
    x = np.linspace(-6.0, 6.0, 41, dtype=np.float32)[:, None].astype(dtype)
    net = chains.Chain(chains.Activation(name), input_shape=(1,), backend=backend_name)
    assert_close(net(x, np.empty(0, dtype)), ACTIVATION_FORMULAS[name](x.astype(np.float64)), ROUNDING[np.dtype(dtype)])


@pytest.mark.parametrize("name", ACTIVATION_FORMULAS)
def test_activation_far_from_zero(name, dtype, backend_name):
    """No overflow of an intermediate makes an output or a slope NaN."""
    net = chains.Chain(chains.Activation(name), input_shape=(1,), backend=backend_name)
    x = np.array([[-1e4], [-200.0], [-90.0], [-20.0], [0.0], [20.0], [90.0], [200.0], [1e4]], dtype)
    y, (_, dx) = net(x, np.empty(0, dtype)), net.vjp(np.empty(0, dtype), x, np.ones_like(x))
    wanted = ACTIVATION_FORMULAS[name](x.astype(np.float64))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6 if name != "sin" else 1e-3)
    assert np.isfinite(dx).all()
    assert np.all(np.abs(dx) < 2.0)


def loss_formula(loss, y, t, w):
    """Each sample's loss, straight from the definition, with weights that broadcast to the targets."""
    t = np.where(w == 0, 0, t)
    axes, d = tuple(range(1, y.ndim)), None if y.shape != t.shape else y - t
    if isinstance(loss, chains.CrossEntropyLoss):
        p = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
        t, w = (np.eye(y.shape[-1])[t.astype(int)], w[..., None]) if t.ndim < y.ndim else (t, w)
        return np.mean(-np.sum(w * t * np.log(p), axis=-1).reshape(len(y), -1), axis=1)
    if isinstance(loss, chains.BCEWithLogitsLoss):
        p = 1.0 / (1.0 + np.exp(-y))
        return np.mean(w * (-t * np.log(p) - (1 - t) * np.log(1 - p)), axis=axes)
    if isinstance(loss, losses.GaussianNLLLoss):
        mean, spread = np.split(y, 2, axis=-1)
        variance = np.exp(spread) if loss.log_variance else spread
        nll = (np.log(variance) + (t - mean) ** 2 / variance + loss.full * np.log(2 * np.pi)) / 2
        return np.mean(w * nll, axis=axes)
    if isinstance(loss, losses.QuantileLoss):
        q = loss.q if isinstance(loss.q, tuple) else (loss.q,)
        d = [t - part for part in np.split(y, len(q), axis=-1)]
        return np.mean([np.mean(w * np.maximum(q * d, (q - 1) * d), axis=axes) for q, d in zip(q, d, strict=True)], axis=0)
    if isinstance(loss, losses.PoissonNLLLoss) and "log_input=True" in repr(loss):
        return np.mean(w * (np.exp(y) - t * y), axis=axes)
    if isinstance(loss, losses.PoissonNLLLoss):
        n = np.maximum(t, 1)
        stirling = np.where(t > 1, n * np.log(n) - n + np.log(2 * np.pi * n) / 2, 0)
        return np.mean(w * (y - t * np.log(y + 1e-3) + stirling), axis=axes)
    if isinstance(loss, chains.SquaredLoss):
        return 0.5 * np.sum(w * d * d, axis=axes)
    if isinstance(loss, chains.MSELoss):
        return np.mean(w * d * d, axis=axes)
    if isinstance(loss, chains.L1Loss):
        return np.mean(w * abs(d), axis=axes)
    if isinstance(loss, chains.HuberLoss):
        delta = 0.3 if "0.3" in repr(loss) else 1.0
        return np.mean(w * np.where(abs(d) <= delta, 0.5 * d * d, delta * (abs(d) - 0.5 * delta)), axis=axes)
    assert repr(loss) == "quartic"
    return np.mean(w * d**4, axis=axes)


@pytest.mark.few(40, always=common_on_numpy)
@pytest.mark.parametrize("case", LOSS_CASES, ids=str)
def test_loss_is_its_formula(case, dtype, batch, backend_name):
    problem = case.problem(batch)
    w = np.ones(1) if problem.w is None else problem.w
    w = w.reshape(*w.shape, *[1] * (problem.t.ndim - w.ndim))
    wanted = np.mean(loss_formula(case.loss, problem.call(), problem.t, w))
    assert_close(problem.value_and_grad(backend_name, dtype)[0], wanted, ROUNDING[np.dtype(dtype)])


@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)
def test_weight_two_is_a_sample_twice(loss, kind, dtype, backend_name):
    case = Case("", None, (chains.Dense(3, 4),), loss=loss, targets=kind)
    problem, net = case.problem(4), case.net(backend_name)
    p, twice = problem.p.astype(dtype), [0, 1, 1, 2, 3]
    value, g = net.value_and_grad(p, problem.x, problem.t, loss, weights=[1, 2, 1, 1])
    other_value, other_g = net.value_and_grad(p, problem.x[twice], problem.t[twice], loss)
    assert_close(value * 4 / 5, other_value, ROUNDING[np.dtype(dtype)])
    assert_close(g * (4 / 5), other_g, ROUNDING[np.dtype(dtype)])


@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)
def test_weights_of_one_change_nothing_and_of_zero_leave_out(loss, kind, backend_name):
    case = Case("", None, (chains.Dense(3, 4),), loss=loss, targets=kind)
    problem, net = case.problem(4), case.net(backend_name)
    plain = net.value_and_grad(problem.p, problem.x, problem.t, loss)
    ones = net.value_and_grad(problem.p, problem.x, problem.t, loss, weights=np.ones(4))
    none_of_last = net.value_and_grad(problem.p, problem.x, problem.t, loss, weights=[1.0, 1.0, 1.0, 0.0])
    first_three = net.value_and_grad(problem.p, problem.x[:3], problem.t[:3], loss)
    for k in range(2):
        assert_close(plain[k], ones[k], 1e-14)
        assert_close(np.multiply(none_of_last[k], 4 / 3), first_three[k], 1e-14)


@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)
def test_weights_may_be_negative_and_all_be_zero(loss, kind, backend_name):
    case = Case("", None, (chains.Dense(3, 4),), loss=loss, targets=kind)
    problem, net = case.problem(4), case.net(backend_name)
    given = problem.p, problem.x, problem.t, loss
    plain, minus = net.value_and_grad(*given), net.value_and_grad(*given, weights=-np.ones(4))
    for k in range(2):
        assert_close(plain[k], np.negative(minus[k]), 1e-14)
    value, g = net.value_and_grad(*given, weights=np.zeros(4))
    assert value == 0.0
    assert not g.any()


def test_sums_of_rows_of_probabilities_weigh(dtype, backend_name):
    case = Case("", None, (chains.Dense(3, 4),), loss=chains.CrossEntropyLoss(), targets="labels")
    problem, net = case.problem(4), case.net(backend_name)
    p, weights = problem.p.astype(dtype), np.array([1.0, 0.0, 0.5, 2.0])
    wanted = net.value_and_grad(p, problem.x, problem.t, case.loss, weights=weights)
    found = net.value_and_grad(p, problem.x, np.eye(4)[problem.t] * weights[:, None], case.loss)
    for k in range(2):
        assert_close(found[k], wanted[k], ROUNDING[np.dtype(dtype)])


def test_labels_equal_one_hot(dtype, backend_name):
    case = Case("", None, (chains.Dense(3, 4),), loss=chains.CrossEntropyLoss(), targets="labels")
    problem, net = case.problem(5), case.net(backend_name)
    p = problem.p.astype(dtype)
    wanted = net.value_and_grad(p, problem.x, np.eye(4)[problem.t], case.loss)
    for labels in (problem.t, problem.t.astype(np.uint8), problem.t.astype(np.float32), list(problem.t)):
        value, g = net.value_and_grad(p, problem.x, labels, case.loss)
        assert value == wanted[0]
        assert g.tobytes() == wanted[1].tobytes()


@pytest.mark.parametrize(("loss", "kind"), LOSSES, ids=str)
def test_loss_of_extreme_outputs_is_finite(loss, kind, backend_name):
    if repr(loss) == "quartic" or kind in ("counts", "halves"):
        pytest.skip("powers and exponentials may overflow")
    net = chains.Chain(chains.Scale(), input_shape=(3,), backend=backend_name)
    t = {"labels": [0, 1], "real": np.zeros((2, 3))}.get(kind, np.eye(3)[[0, 1]])
    value, g = net.value_and_grad(np.ones(3, np.float32), [[1e4, -1e4, 0.0], [-1e4, 1e4, 500.0]], t, loss)
    assert np.isfinite(value)
    assert np.isfinite(g).all()


@pytest.mark.parametrize("case", [case for case in LAYERS if case.subject is not chains.SDE], ids=str)
def test_samples_do_not_see_each_other(case, backend_name):
    """A batch is its samples, one by one."""
    problem, net = case.problem(4), case.net(backend_name)
    together = net(problem.x, problem.p, state=problem.state)
    for k in range(4):
        assert_close(net(problem.x[k : k + 1], problem.p, state=problem.state)[0], together[k], 1e-14)


# The tools themselves


def test_central_difference_finds_kinks():
    with pytest.raises(Kink):
        central_difference(lambda v: float(np.abs(v).sum()), np.array([0.3, 1e-4]))
    assert_close(central_difference(lambda v: float(np.sum(v**3)), np.array([0.3, -2.0])), [0.27, 12.0], 1e-10)


def test_a_wrong_derivative_is_found():
    """The harness itself can fail."""
    wrong = chains.activation("wrong", lambda x: x * x, derivative=lambda x: 1.9 * x)
    case = Case("wrong", None, (chains.Dense(3, 2, wrong),))
    problem, gradient = smooth_gradient(case, 5, "train")
    with pytest.raises(AssertionError):
        assert_close(problem.value_and_grad()[1], gradient, 1e-3)


class Careless(chains.Layer):
    """Reads scratch that it has not filled."""

    def declare(self, d):
        d.output(d.input)
        d.saved("memory", d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x, memory: x + memory, x, s.memory)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.copy(dx, dy)


def test_reading_unwritten_scratch_is_found():
    case = Case("careless", Careless, (Careless(),))
    with pytest.raises(AssertionError):
        test_nothing_is_read_before_it_is_written(case, np.float64, 2, "numpy")
