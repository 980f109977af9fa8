"""The user's calls: `out=`, fresh arrays, types in and out, freezing, nesting, the summary."""

from __future__ import annotations

from typing import Any, get_overloads, get_type_hints

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Dense, Dropout, Flatten, Residual, Softmax, SquaredLoss, tanh, σ
from chains.network.network import network_of
from tests.harness import assert_close


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 4, tanh), Dropout(0.5), Dense(4, 2), backend=backend_name)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=(5, 2))


def large(batch=60_000):
    """Data of more bytes than are copied into a program."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, 3)), rng.normal(size=(batch, 2)), rng.normal(size=(batch, 2))


# out=


@pytest.mark.parametrize("many", [False, True], ids=["small", "large"])
def test_out_is_filled_and_returned(net, data, dtype, many):
    x, t, dy = large() if many else data
    p = net.init(seed=0, dtype=dtype)
    y, g, dx = np.full((len(x), 2), np.nan, dtype), np.full(p.shape, np.nan, dtype), np.full(x.shape, np.nan, dtype)
    assert net(x, p, out=y) is y
    assert net(x, p).tobytes() == y.tobytes()
    value, returned = net.value_and_grad(p, x, t, SquaredLoss(), out=g)
    assert returned is g
    fresh = net.value_and_grad(p, x, t, SquaredLoss())
    assert (fresh[0], fresh[1].tobytes()) == (value, g.tobytes())
    got = net.vjp(p, x, dy, out=(g, dx))
    assert got[0] is g
    assert got[1] is dx
    for a, b in zip(net.vjp(p, x, dy), got, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("many", [False, True], ids=["small", "large"])
def test_results_are_fresh(net, data, many):
    x, t, dy = large() if many else data
    p = net.init(seed=0, dtype=np.float64)
    for call in (lambda: [net(x, p)], lambda: [net.value_and_grad(p, x, t, SquaredLoss())[1]], lambda: list(net.vjp(p, x, dy))):
        first = call()
        kept = [array.copy() for array in first]
        for a, b, k in zip(first, call(), kept, strict=True):
            assert not np.shares_memory(a, b)
            assert not any(np.shares_memory(a, other) for other in (p, x, t, dy))
            assert a.flags.owndata
            np.testing.assert_array_equal(a, k)


def test_arguments_are_left_alone(net, data, dtype):
    x, t, dy = (array.astype(dtype) for array in data)
    p, w = net.init(seed=0, dtype=dtype), np.ones(5, dtype)
    before = [array.tobytes() for array in (x, t, dy, p, w)]
    for array in (x, t, dy, p, w):
        array.flags.writeable = False
    net(x, p)
    net.value_and_grad(p, x, t, SquaredLoss(), weights=w, penalty=chains.L2Penalty(0.1))
    net.vjp(p, x, dy)
    net.objective(x, t, SquaredLoss())(p)
    assert [array.tobytes() for array in (x, t, dy, p, w)] == before


# Types


def test_the_type_of_the_parameters_decides(net, data, dtype):
    x, t, dy = data
    p = net.init(dtype=dtype)
    for given in (x, x.astype(np.float32), x.astype(np.float16)):
        assert net(given, p).dtype == dtype
        assert net.value_and_grad(p, given, t, SquaredLoss())[1].dtype == dtype
        assert all(array.dtype == dtype for array in net.vjp(p, given, dy))
    assert isinstance(net.value_and_grad(p, x, t, SquaredLoss())[0], float)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.tolist(),
        lambda x: tuple(map(tuple, x)),
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(">f8"),
        lambda x: np.stack([x, x])[1],
        lambda x: x.view(type("Sub", (np.ndarray,), {})),
    ],
)
def test_data_of_any_layout(net, data, make):
    x, t, _ = data
    p = net.init(dtype=np.float64)
    assert_close(net(make(x), p), net(x, p), 1e-15)
    value, g = net.value_and_grad(p, make(x), make(t), SquaredLoss())
    wanted = net.value_and_grad(p, x, t, SquaredLoss())
    assert (value, g.tobytes()) == (wanted[0], wanted[1].tobytes())


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.bool_, np.int8])
def test_data_of_integers(net, kind):
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(kind)
    p = net.init(dtype=np.float64)
    assert_close(net(x, p), net(x.astype(np.float64), p), 1e-15)


def test_many_batch_sizes(net, data):
    """More than are kept, there and back."""
    p = net.init(dtype=np.float64)
    x = np.random.default_rng(0).normal(size=(40, 3))
    whole = net(x, p)
    for batch in [*range(1, 40), *range(39, 0, -1)]:
        assert_close(net(x[:batch], p), whole[:batch], 1e-14)


def test_the_mode_and_the_seed(net, data):
    x, t, dy = data
    p = net.init(dtype=np.float64)
    trained = [net(x, p, mode="train", seed=seed).tobytes() for seed in (0, 0, 1)]
    assert trained[0] == trained[1] != trained[2]
    assert net(x, p).tobytes() not in trained
    loss = SquaredLoss()
    assert net.value_and_grad(p, x, t, loss, mode="eval")[0] == net.loss(p, x, t, loss) != net.value_and_grad(p, x, t, loss)[0]
    assert net.value_and_grad(p, x, t, loss)[0] == pytest.approx(
        0.5 * np.mean(np.sum((net(x, p, mode="train") - t) ** 2, axis=1))
    )
    assert net.vjp(p, x, dy)[1].tobytes() != net.vjp(p, x, dy, mode="train", seed=1)[1].tobytes()


def test_large_seeds_count(net, data):
    x, _, _ = data
    p = net.init(dtype=np.float64)
    assert net(x, p, mode="train", seed=2**64 - 1).tobytes() != net(x, p, mode="train", seed=2**32 - 1).tobytes()


# Freezing


def test_frozen_slices_have_no_gradient(net, data):
    x, t, dy = data
    frozen = net.with_frozen("0.*", "2.bias")
    assert frozen.frozen == {"0.weight", "0.bias", "2.bias"}
    assert net.frozen == frozenset()
    p = net.init(dtype=np.float64)
    free = net.value_and_grad(p, x, t, SquaredLoss())[1]
    for g, whole in (
        (frozen.value_and_grad(p, x, t, SquaredLoss(), penalty=None)[1], free),
        (frozen.objective(x, t, SquaredLoss())(p)[1], net.objective(x, t, SquaredLoss())(p)[1]),
        (frozen.vjp(p, x, dy)[0], net.vjp(p, x, dy)[0]),
    ):
        for name, view in net.views(g).items():
            assert_close(view, 0 * view if name in frozen.frozen else net.views(whole)[name], 1e-14)
    assert_close(frozen.vjp(p, x, dy)[1], net.vjp(p, x, dy)[1], 1e-14)
    assert frozen(x, p).tobytes() == net(x, p).tobytes()


@pytest.mark.parametrize(("old", "new"), [("freeze", "with_frozen"), ("train_only", "with_trained")])
def test_names_that_read_as_a_change_say_what_to_write(old, new):
    net = Chain(Dense(2, 3))
    with pytest.raises(AttributeError, match=rf"has no `{old}`.*net = net\.{new}\(\.\.\.\)"):
        getattr(net, old)
    assert not hasattr(net, "frost")


def test_penalties_count_trained_parameters_alone(net, data):
    x, t, _ = data
    p, penalty = net.init(dtype=np.float64), chains.L2Penalty(0.5) + chains.L1Penalty(0.5)
    frozen = net.with_frozen("0.weight")
    value, g = frozen.value_and_grad(p, x, t, SquaredLoss(), penalty=penalty)
    trained = p[net.layout["0.weight"].stop :]
    wanted = net.value_and_grad(p, x, t, SquaredLoss())[0] + 0.5 * (trained @ trained + abs(trained).sum())
    assert value == pytest.approx(wanted)
    assert not net.views(g)["0.weight"].any()


def test_freezing_adds_up(net):
    assert net.with_frozen("0.*").with_frozen("2.bias").frozen == {"0.weight", "0.bias", "2.bias"}
    assert net.with_trained("2.*").frozen == {"0.weight", "0.bias"}
    assert net.with_frozen("*").with_trained("0.bias").frozen == {"0.weight", "2.weight", "2.bias"}
    assert net.with_frozen("0.*").n_params == net.n_params


def test_a_frozen_chain_inside_another_stays_frozen(data):
    """The usual way to put a new head on a trained body."""
    body = Chain(Dense(3, 4, tanh)).with_frozen("*")
    net = Chain(body, Dense(4, 2))
    assert net.frozen == {"0.0.weight", "0.0.bias"}


# Nesting and shapes


def test_nested_chains_are_their_layers(data):
    x, t, _ = data
    a, b, c = Dense(3, 4, tanh), Dense(4, 5, σ), Dense(5, 2)
    flat = Chain(a, b, c)
    p = flat.init(dtype=np.float64)
    wanted = flat.value_and_grad(p, x, t, SquaredLoss())
    for net in (Chain(Chain(a, b), c), Chain(a, Chain(b, c)), Chain(Chain(Chain(a), b), Chain(c)), Chain(Chain(a, b, c))):
        assert net.n_params == flat.n_params
        value, g = net.value_and_grad(p, x, t, SquaredLoss())
        assert value == wanted[0]
        assert g.tobytes() == wanted[1].tobytes()


def test_shapes_are_known(backend_name):
    net = Chain(Flatten(), Dense(6, 4), input_shape=(2, 3), backend=backend_name)
    assert (net.input_shape, net.output_shape, net.n_params) == ((2, 3), (4,), 28)
    assert Chain(Dense(3, 2), input_shape=[7, 3]).output_shape == (7, 2)
    assert Chain(Residual(Dense(3, 3))).input_shape == (3,)
    assert Chain(Chain(Flatten(), input_shape=(2, 3)), Dense(6, 1)).input_shape == (2, 3)


def test_an_empty_chain(data):
    x, _, _ = data
    net, p = Chain(input_shape=(3,)), np.empty(0)
    assert net.n_params == 0
    assert net.init().shape == (0,)
    assert net(x, p).tobytes() == x.tobytes()
    assert net.vjp(p, x, x)[1].tobytes() == x.tobytes()
    assert net.value_and_grad(p, x, np.zeros_like(x), SquaredLoss())[0] == pytest.approx(0.5 * np.sum(x * x) / 5)


def test_backends_by_name():
    assert Chain(Dense(1, 1)).backend == "auto"
    assert network_of(Chain(Dense(1, 1), backend="numpy")).backend.name == "numpy"


def test_programs_for_reading(net):
    assert net.program().name == "forward"
    assert net.program(SquaredLoss()).name == "gradient"
    assert net.program(SquaredLoss(), chains.Adam(), dtype=np.float64).dtype == np.float64
    assert "random" in str(net.program())
    assert "random" not in str(net.program(mode="eval"))
    labels = net.program(chains.CrossEntropyLoss(), target_shape=())
    assert labels.buffers["t"].size == 1


# The summary


def test_summary():
    net = Chain(Flatten(), Dense(1200, 30, σ), Residual(Dense(30, 30)), Softmax(), input_shape=(12, 100)).with_frozen("2.*")
    text = net.summary()
    for part in (
        "0  Flatten()",
        "1  Dense(1200, 30, sigmoid)",
        "(1200,)",
        "36,030",
        "2  Residual(Dense(30, 30))",
        "930 (930 frozen)",
        "3  Softmax()",
        "from (12, 100)",
        "36,960 (930 frozen)",
    ):
        assert part in text, part
    lines = text.splitlines()
    assert len(lines) == 1 + 1 + 4 + 1 + 1
    assert set(lines[1]) == set(lines[-2]) == {"-"}
    assert "frozen" not in Chain(Dense(3, 2)).summary()
    assert "in all" in Chain(input_shape=(3,)).summary()


def test_the_summary_shows_long_layers_part_by_part():
    net = Chain(Residual(*(Dense(3, 3, tanh) for _ in range(20))), Residual(Dense(3, 3)), Dense(3, 2)).with_frozen(
        "0.inner.1.*"
    )
    lines = [line.split() for line in net.summary().splitlines()]
    assert max(map(len, net.summary().splitlines())) < 80
    assert lines[2] == ["0", "Residual", "(3,)"]
    assert lines[3] == ["inner", "Series", "(3,)"]
    assert lines[4] == ["0", "Dense(3,", "3,", "tanh)", "(3,)", "12"]
    assert lines[5][-3:] == ["12", "(12", "frozen)"]
    assert lines[23] == ["19", "Dense(3,", "3,", "tanh)", "(3,)", "12"]
    assert lines[24] == ["shortcut", "Series()", "(3,)", "0"]
    assert lines[25] == ["1", "Residual(Dense(3,", "3))", "(3,)", "12"]
    counts = [int(line[line.index("(3,)") + 1]) for line in lines[4:26]]
    assert sum(counts) + 8 == net.n_params


def test_the_summary_counts_what_a_layer_has_beside_its_parts():
    rhs = chains.Equations(
        lambda prey, hunter, u, v, birth, death: (birth * prey + u, v - death * hunter), inputs=("prey", "hunter"),
        network=Chain(Dense(2, 5, tanh), Dense(5, 2)), outputs=("u", "v"), parameters={"birth": 0.5, "death": 0.8},
    )  # fmt: skip
    lines = [line.split() for line in Chain(rhs).with_frozen("0.birth").summary().splitlines()]
    assert lines[2] == ["0", "Equations", "(2,)", "2", "(1", "frozen)"]
    assert lines[3][-1] == "27"
    assert lines[5][-3:] == ["29", "(1", "frozen)"]


def test_the_summary_cuts_no_name():
    net = Chain(chains.Conv(1, 2, (3, 5), "leaky_relu", stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2)),
                input_shape=(1, 9, 9))  # fmt: skip
    assert repr(net.layers[0]) in net.summary()
    assert len(repr(net.layers[0])) > 60


def test_repr(net):
    assert repr(net) == "Chain(Dense(3, 4, tanh), Dropout(0.5), Dense(4, 2))"


def test_what_is_frozen_is_shown():
    net = Chain(Dense(3, 4, tanh), Dense(4, 2)).with_frozen("*.bias", "0.*")
    assert repr(net) == "Chain(Dense(3, 4, tanh), Dense(4, 2)).with_frozen('0.weight', '0.bias', '1.bias')"
    assert repr(net[1:]) == "Chain(Dense(4, 2)).with_frozen('0.bias')"
    assert "(100 in all)" in repr(Chain(*(Dense(2, 2) for _ in range(50))).with_frozen("*"))


# Parts


PARTS = [slice(None, -1), slice(1, None), slice(1, 3), slice(2), slice(4, None), slice(3, 1)]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_part_reads_its_slice_of_the_vectors(part):
    net = Chain(Dense(3, 4, tanh), BatchNorm(4), Residual(Dense(4, 4)), Dense(4, 2))
    p, rng = net.init(dtype=np.float64), np.random.default_rng(0)
    state, x = rng.uniform(0.5, 2.0, net.n_state), rng.normal(size=(5, 3))
    start, stop, _ = part.indices(4)
    before, middle = net[:start], net[part]
    inner = before(x, p[: before.n_params], state=state[: before.n_state])
    begin, old = before.n_params, before.n_state
    y = middle(inner, p[begin : begin + middle.n_params], state=state[old : old + middle.n_state])
    assert middle.layers == net.layers[start:stop]
    after = net[max(start, stop) :]
    rest = begin + middle.n_params
    z = after(y, p[rest:], state=state[old + middle.n_state :])
    assert_close(z, net(x, p, state=state), 1e-14)
    assert before.n_params + middle.n_params + after.n_params == net.n_params


def test_a_part_keeps_what_is_frozen_and_the_backend():
    net = Chain(Dense(3, 4), Chain(Dense(4, 4)).with_frozen("0.bias"), Dense(4, 2), backend="numpy").with_frozen(
        "0.weight", "2.*"
    )
    assert net[:2].frozen == {"0.weight", "1.0.bias"}
    assert net[1:].frozen == {"0.0.bias", "1.weight", "1.bias"}
    assert net[1:].backend == "numpy"
    assert net.frozen == {"0.weight", "1.0.bias", "2.weight", "2.bias"}
    x, t, part = np.ones((5, 4)), np.zeros((5, 2)), net[1:]
    g = part.views(part.value_and_grad(part.init(), x, t, SquaredLoss())[1])
    assert [name for name, view in g.items() if view.any()] == ["0.0.weight"]


def test_a_part_may_begin_with_a_layer_that_fits_any_shape():
    net = Chain(Dense(6, 4), Flatten(), Dropout(0.5), Dense(4, 2))
    assert (net[1:3].input_shape, net[1:3].output_shape) == ((4,), (4,))
    assert (net[2:2].input_shape, net[4:].input_shape) == ((4,), (2,))
    assert net[1] is net.layers[1]
    assert net[-1] is net.layers[-1]
    assert (len(net), len(net[1:3]), len(net[2:2])) == (4, 2, 0)
    assert tuple(reversed(net)) == net.layers[::-1]
    with pytest.raises(TypeError, match=r"layers are not callable; use Chain\(Dense\("):
        net[-1](np.ones((5, 4)), net.init())
    assert list(net) == list(net.layers)
    with pytest.raises(IndexError):
        net[4]


def test_a_part_may_not_leave_layers_out():
    net = Chain(Dense(3, 3), Dense(3, 3), Dense(3, 3))
    for part in (slice(None, None, 2), slice(None, None, -1)):
        with pytest.raises(ValueError, match=f"must have a step of 1, .*, got {part.step}"):
            net[part]


# Objective


def test_objective(net, data, dtype):
    x, t, _ = data
    objective, p = net.objective(x, t, SquaredLoss(), chains.L2Penalty(0.1), weights=np.arange(5)), net.init(dtype=dtype)
    value, g = objective(p)
    wanted = net.value_and_grad(
        p.astype(np.float64), x, t, SquaredLoss(), weights=np.arange(5), penalty=chains.L2Penalty(0.1), mode="eval"
    )
    assert (type(value), g.dtype) == (float, np.float64)
    assert value == pytest.approx(wanted[0], rel=1e-14)
    assert_close(g, wanted[1], 1e-14)
    second = objective(p)[1]
    assert second is not g
    assert not np.shares_memory(second, g)
    assert objective.value(p) == value
    np.testing.assert_array_equal(objective.gradient(list(p)), g)
    assert repr(objective) == f"<objective of {net.n_params} parameters on 5 samples>"


def test_objective_in_training_mode_drops(net, data):
    x, t, _ = data
    p = net.init(dtype=np.float64)
    values = [
        net.objective(x, t, SquaredLoss(), mode=mode, seed=seed)(p)[0]
        for mode, seed in (("train", 1), ("train", 2), ("eval", 1))
    ]
    assert len(set(values)) == 3


# Types


@pytest.mark.parametrize("name", ["init", "init_many", "init_state"])
def test_type_checkers_know_the_arrays_of_the_host(name):
    hints = [get_type_hints(each) for each in get_overloads(getattr(Chain, name))]
    assert [hint["return"] for hint in hints] == [np.ndarray, Any]
    assert hints[1]["device"] is str
