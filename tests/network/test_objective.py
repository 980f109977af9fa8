"""The objective: copies of it, and what it keeps of the data."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from chains import BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, L2Penalty, SquaredLoss, tanh


def objectives(backend):
    """Objectives of several kinds, with parameters."""
    rng = np.random.default_rng(0)
    x, t, labels = rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), rng.integers(0, 2, 7)
    plain = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend)
    dropping = Chain(Dense(3, 4, tanh), Dropout(0.5), Dense(4, 2), backend=backend)
    normal = Chain(Dense(3, 4), BatchNorm(4), Dense(4, 2), backend=backend)
    state = normal.init_state()
    yield plain, plain.objective(x, t, SquaredLoss(), weights=rng.random(7))
    yield plain, plain.objective(x.astype(np.float32), labels, CrossEntropyLoss(), L2Penalty(0.1))
    yield dropping, dropping.objective(x, t, SquaredLoss(), mode="train", seed=3)
    yield normal, normal.objective(x, t, SquaredLoss(), state=state + 0.5)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copied", "pickled"])
def test_copies_give_the_same(again, backend_name):
    for net, objective in objectives(backend_name):
        p = net.init(seed=1, dtype=np.float64)
        twin = again(objective)
        value, g = objective(p)
        assert twin(p)[0] == value
        np.testing.assert_array_equal(twin(p)[1], g)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_data_changed_later_change_nothing(kind, backend_name):
    rng = np.random.default_rng(0)
    x, t, w = (rng.random(size=shape).astype(kind) for shape in ((5, 3), (5, 2), (5,)))
    net = Chain(Dense(3, 2), backend=backend_name)
    objective, p = net.objective(x, t, SquaredLoss(), weights=w), net.init(seed=0)
    value = objective(p)[0]
    for array in (x, t, w):
        array *= 2
    assert objective(p)[0] == value


# Normal equations


@pytest.mark.parametrize("kind", ["weights", "frozen", "many outputs"])
def test_normal_equations_are_those_of_the_jacobian(kind, backend_name):
    """In each of several calls, for parameters of either type, in fresh arrays."""
    rng = np.random.default_rng(0)
    outputs = 9 if kind == "many outputs" else 2
    net = Chain(Dense(3, 11, tanh), Dense(11, outputs), backend=backend_name)
    weights = rng.random(7) * (np.arange(7) != 3) if kind == "weights" else None
    net = net.with_frozen("0.bias") if kind == "frozen" else net
    objective = net.objective(rng.normal(size=(7, 3)), rng.normal(size=(7, outputs)), SquaredLoss(), weights=weights)
    results = []
    for number in range(5):
        p = net.init(seed=number, dtype=np.float32 if number in (1, 4) else np.float64)
        r, j = objective.residuals(p), objective.jacobian(p)
        value, g, matrix = objective.normal_equations(p)
        np.testing.assert_allclose(value, 0.5 * r @ r, rtol=1e-12)
        np.testing.assert_allclose(g, r @ j, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(matrix, j.T @ j, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(matrix, matrix.T)
        results.append((g, matrix, g.copy(), matrix.copy()))
    for g, matrix, *copies in results:
        np.testing.assert_array_equal(g, copies[0])
        np.testing.assert_array_equal(matrix, copies[1])


def test_normal_equations_are_one_function_in_machine_code():
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    net = Chain(Dense(2, 3, tanh), Dense(3, 1), backend="native")
    objective, p = net.objective(np.ones((4, 2)), np.ones((4, 1)), SquaredLoss()), net.init(seed=0)
    first, *others = [objective.normal_equations(p) for _ in range(3)]
    found = objective._normal_equations.quick(p, None, None)
    for one, *same in zip(first, *others, found, strict=True):
        for each in same:
            np.testing.assert_array_equal(each, one)


@pytest.mark.parametrize("compiled", [False, True])
def test_least_squares_take_parameters_with_gaps(compiled, backend_name):
    net = Chain(Dense(3, 2, tanh), Dense(2, 600 if not compiled else 1), backend=backend_name)  # many outputs: no one function
    x, t = np.random.default_rng(0).normal(size=(4, 3)), np.ones((4, *net.output_shape))
    objective, p = net.objective(x, t, SquaredLoss()), net.init(seed=0, dtype=np.float64)
    gaps, backwards = np.repeat(p, 2)[::2], p[::-1].copy()[::-1]
    for call in (objective.residuals, objective.jacobian, objective.hessp, objective.normal_equations):
        more = (p,) if call == objective.hessp else ()
        for given in (gaps, backwards):
            for found, wanted in zip(call(given, *more), call(p, *more), strict=True):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("p", [np.zeros(4), np.zeros((1, 5)), "no"])
def test_normal_equations_refuse_other_parameters(p, backend_name):
    net = Chain(Dense(4, 1), backend=backend_name)
    objective = net.objective(np.ones((3, 4)), np.ones((3, 1)), SquaredLoss())
    for _ in range(3):
        objective.normal_equations(net.init(seed=0))
        with pytest.raises((TypeError, ValueError), match="`p`"):
            objective.normal_equations(p)


# Data in files


def on_disk(path, array, mode="r"):
    """The array in a file, as `np.load` maps it."""
    np.save(path, array)
    return np.load(path, mmap_mode=mode)


def test_data_in_a_file_stay_there(tmp_path, backend_name):
    """Neither the objective nor what is sent to other processes has a copy."""
    rng = np.random.default_rng(0)
    x, t, w = rng.normal(size=(5000, 3)), rng.normal(size=(5000, 2)), rng.random(5000)
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    p = net.init(seed=0, dtype=np.float64)
    wanted = net.objective(x, t, SquaredLoss(), weights=w)(p)
    files = {name: on_disk(tmp_path / f"{name}.npy", array) for name, array in {"x": x, "t": t, "w": w}.items()}
    objective = net.objective(files["x"], files["t"], SquaredLoss(), weights=files["w"])
    assert all(
        np.shares_memory(objective._data[name], files[file]) for name, file in (("x", "x"), ("t", "t"), ("weights", "w"))
    )
    sent = pickle.dumps(objective)
    assert len(sent) < 4000
    for each in (objective, pickle.loads(sent), copy.deepcopy(objective), pickle.loads(pickle.dumps(pickle.loads(sent)))):
        for _ in range(3):
            value, g = each(p)
            assert value == wanted[0]
            np.testing.assert_array_equal(g, wanted[1])


@pytest.mark.parametrize("case", ["float32", "writable", "a part", "fortran", "a copy on write"])
def test_data_of_other_files_are_copied(case, tmp_path):
    x, t = np.random.default_rng(0).normal(size=(50, 3)), np.zeros((50, 2))
    stored = {"float32": x.astype(np.float32), "fortran": np.asfortranarray(x)}.get(case, x)
    given = on_disk(tmp_path / "x.npy", stored, {"writable": "r+", "a copy on write": "c"}.get(case, "r"))
    given, t = (given[:20], t[:20]) if case == "a part" else (given, t)
    net = Chain(Dense(3, 2))
    p = net.init(seed=0, dtype=np.float64)
    objective = net.objective(given, t, SquaredLoss())
    assert not np.shares_memory(objective._data["x"], given)
    value = net.objective(np.array(given), t, SquaredLoss())(p)[0]
    assert objective(p)[0] == pickle.loads(pickle.dumps(objective))(p)[0] == value


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_the_values_and_gradients_that_they_have_alone(backend_name, dtype):
    net = Chain(Dense(2, 4, tanh), Dense(4, 1), backend=backend_name)
    x = np.random.default_rng(0).normal(size=(7, 2))
    objective, P = net.objective(x, x[:, :1], SquaredLoss()), net.init_many(5, dtype=dtype)
    for rows in (P, np.asfortranarray(P), P[:1], P[:0]):
        values, gradients = objective(rows)
        assert (values.shape, gradients.shape, gradients.dtype) == ((len(rows),), rows.shape, np.float64)
        assert [*values] == [*objective.value(rows)] == [objective.value(p) for p in P[: len(rows)]]
        for g, p in zip(gradients, P, strict=False):
            np.testing.assert_array_equal(g, objective.gradient(p))
    with pytest.raises(ValueError, match=r"shape \(5, 16\), .* or \(members, 17\) for many networks"):
        objective(P[:, 1:])
