"""What comes from elsewhere: targets of one number a sample, columns of pandas, tensors of PyTorch, metrics of scikit-learn."""

from functools import partial

import numpy as np
import pytest

import chains
from chains import SGD, Adam, BCEWithLogitsLoss, Chain, CrossEntropyLoss, Dense, Loss, SquaredLoss, accuracy, tanh, train
from chains.data import Batches
from tests.harness import BACKENDS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
LOSSES = [SquaredLoss(), chains.MSELoss(), chains.L1Loss(), chains.HuberLoss(), BCEWithLogitsLoss()]
VECTORS = {
    "float64": (X[:, 0] > 0).astype(float), "float32": (X[:, 0] > 0).astype(np.float32), "int": (X[:, 0] > 0).astype(int),
    "bool": X[:, 0] > 0, "list": (X[:, 0] > 0).tolist(), "strided": np.repeat((X[:, 0] > 0) * 1.0, 2)[::2],
}  # fmt: skip


def network(backend):
    return Chain(Dense(3, 4, tanh), Dense(4, 1), backend=backend)


# Targets (batch,) for one output


@pytest.mark.few(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("t", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_vector_of_targets_is_a_column(backend, loss, t):
    net = network(backend)
    p, column, w = net.init(dtype=np.float64), np.asarray(t)[:, None], RNG.uniform(size=12)
    for weights in (None, w):
        value, g = net.value_and_grad(p, X, column, loss, weights=weights)
        for _ in range(3):  # the later ones may take a shortcut
            again, h = net.value_and_grad(p, X, t, loss, weights=weights)
            assert (again, h.tobytes()) == (value, g.tobytes())
        assert net.loss(p, X, t, loss, weights=weights) == net.loss(p, X, column, loss, weights=weights)
        value, g = net.objective(X, column, loss, weights=weights)(p)
        again, h = net.objective(X, t, loss, weights=weights)(p)
        assert (again, h.tobytes()) == (value, g.tobytes())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [1, -1], ids=["column first", "vector first"])
def test_shortcuts_for_vectors_and_columns_stand_side_by_side(backend, order):
    net = network(backend)
    p, t = net.init(), X[:, 0].astype(np.float32)
    x, both = X.astype(np.float32), [t[:, None], t][::order]
    results = [net.value_and_grad(p, x, target, SquaredLoss()) for target in both * 4]
    assert len({(value, g.tobytes()) for value, g in results}) == 1
    out = np.empty_like(p)
    assert net.value_and_grad(p, x, t, SquaredLoss(), out=out)[1] is out
    for wrong in (t[:5], np.ones((12, 2), np.float32), np.ones((12, 1, 1), np.float32)):
        with pytest.raises(ValueError, match="`t`"):
            net.value_and_grad(p, x, wrong, SquaredLoss())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batches", [False, True])
def test_training_on_vectors(backend, batches):
    seen = []

    def mean_error(t, y):
        seen.append((t.shape, y.shape))
        return float(np.mean(abs(t - y)))

    def run(t):
        net = network(backend)
        p = net.init(dtype=np.float64)
        data = (Batches(X, t, batch_size=5), None) if batches else (X, t)
        size = {} if batches else {"batch_size": 5}
        history = train(net, p, *data, SquaredLoss(), Adam(), epochs=4, validation=(X, t), metrics=[mean_error], **size)
        return p.tobytes(), history.loss, history.validation_loss, history.metrics

    assert run(X[:, 0]) == run(X[:, :1])
    assert set(seen) == {((12, 1), (12, 1))}


def test_targets_that_overlap_what_is_filled_are_seen_as_vectors_too():
    net = network("numpy")
    p = net.init(dtype=np.float64)
    block = np.zeros(p.size)
    with pytest.raises(ValueError, match="overlaps `t`"):
        net.value_and_grad(p, X, block[:12], SquaredLoss(), out=block)


def test_vectors_for_other_outputs_are_refused():
    net = Chain(Dense(3, 2))
    with pytest.raises(ValueError, match=r"targets must have the sample shape of the outputs, \(2,\), got \(\)"):
        net.loss(net.init(), X, np.ones(12), SquaredLoss())
    sequence = Chain(Dense(3, 1), input_shape=(5, 3))
    with pytest.raises(ValueError, match=r"add an axis with t\[..., None\]"):
        sequence.loss(sequence.init(), np.ones((4, 5, 3)), np.ones((4, 5)), SquaredLoss())


def test_labels_stay_labels():
    net, labels = Chain(Dense(3, 4)), np.arange(12) % 4
    p = net.init(dtype=np.float64)
    assert net.loss(p, X, labels, CrossEntropyLoss()) == pytest.approx(net.loss(p, X, np.eye(4)[labels], CrossEntropyLoss()))
    one = Chain(Dense(3, 1))
    with pytest.raises(ValueError, match="of one class, whose cross-entropy is always 0"):
        one.loss(one.init(), X, np.zeros(12, int), CrossEntropyLoss())


class Ordinal(Loss):
    """A loss for one output whose targets are labels, which must stay (batch,)."""

    def check_target(self, output, target):
        if target != () or output != (1,):
            raise ValueError(f"labels wanted, not {target}")

    def record(self, ops, y, t, w, value, dy):
        assert t.sample_shape == ()
        squares = ops.scratch("squares", (1,))
        ops.map((squares, dy), lambda y, t, k: ((y - t) * (y - t) * k, 2 * (y - t) * k), y, t.expand(-1), ops.inverse_batch)
        ops.sum(value, squares)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_of_ones_own_may_take_labels_for_one_output(backend):
    net = network(backend)
    p, t = net.init(dtype=np.float64), np.arange(12.0) % 3
    values = {net.value_and_grad(p, X, t, Ordinal())[0] for _ in range(4)}
    assert len(values) == 1
    assert values.pop() == pytest.approx(float(np.mean((net(X, p)[:, 0] - t) ** 2)))
    with pytest.raises(ValueError, match=r"labels wanted, not \(1,\)"):
        net.value_and_grad(p, X, t[:, None], Ordinal())


# Metrics of scikit-learn


def test_metrics_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    net = network("numpy")
    p, t = net.init(dtype=np.float64), X[:, 0] * X[:, 1]
    history = train(
        net, p, X, t, SquaredLoss(), SGD(0.1), epochs=3, validation=(X, t),
        metrics=[metrics.r2_score, metrics.mean_absolute_error],
    )  # fmt: skip
    assert history.metrics["r2_score"][-1] == metrics.r2_score(t, net(X, p))
    assert history.metrics["mean_absolute_error"][-1] == metrics.mean_absolute_error(t, net(X, p))
    labels, y = np.arange(12) % 3, RNG.normal(size=(12, 3))
    assert accuracy(labels, y) == accuracy(y=y, t=labels) == metrics.accuracy_score(labels, y.argmax(axis=1))
    assert accuracy(np.array([0, 1, 0]), np.array([[2.0, 1.0], [1.0, 3.0], [3.0, 1.0]])) == 1.0  # of two classes


def test_targets_come_first():
    with pytest.raises(ValueError, match=r"targets come first: accuracy\(t, y\)"):
        accuracy(np.ones((3, 2)), np.array([0, 1, 0]))
    logits = partial(accuracy, threshold=0)
    assert logits([True, False, True], np.array([[3.0], [-0.2], [0.2]])) == 1.0


# pandas


def test_a_series_of_pandas_is_a_target():
    pandas = pytest.importorskip("pandas")
    net = network("numpy")
    p = net.init(dtype=np.float64)
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    assert net.loss(p, frame, frame["a"], SquaredLoss()) == net.loss(p, X, X[:, :1], SquaredLoss())


def test_columns_of_objects_are_refused_with_what_to_do():
    pandas = pytest.importorskip("pandas")
    net = network("numpy")
    p = net.init(dtype=np.float64)
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).astype("Float64")
    assert {str(dtype) for dtype in frame.dtypes} == {"Float64"}
    with pytest.raises(TypeError, match=r"^`x` \(a DataFrame\) must be real, got object; try x.to_numpy\(float\)$"):
        net(frame, p)
    np.testing.assert_array_equal(net(frame.to_numpy(float), p), net(X, p))
    with pytest.raises(TypeError, match=r"`loss` \(=a DataFrame\) must be"):
        net.loss(p, X, X[:, 0], frame)
    words = pandas.Series(["a", "b"] * 6)
    with pytest.raises(TypeError, match=r"^`t` \(a Series\) must be real, got .*; try t.to_numpy\(float\)$"):
        net.loss(p, X, words, SquaredLoss())


def test_dates_are_refused_with_what_to_do():
    """As floats they are nanoseconds: inputs of 1e18."""
    pandas = pytest.importorskip("pandas")
    net = network("numpy")
    p = net.init(dtype=np.float64)
    frame = pandas.DataFrame(X, columns=["a", "day", "c"])
    frame["day"] = pandas.date_range("2026-01-01", periods=12)
    unit = r"\(x\['day'\] - x\['day'\].min\(\)\) / np.timedelta64\(1, 'D'\)"
    with pytest.raises(TypeError, match=rf"^`x` \(a DataFrame\) must be real, .*the column 'day' holds dates.*{unit}$"):
        net(frame, p)
    with pytest.raises(TypeError, match=r"^`t` \(a Series\) must be real, .*; it holds dates or times: .*\(t - t.min\(\)\)"):
        net.loss(p, X, frame["day"], SquaredLoss())
    frame["day"] = (frame["day"] - frame["day"].min()) / np.timedelta64(1, "D")
    assert np.isfinite(net(frame, p)).all()


# PyTorch


def calls_with(net, p, x, t):
    """Every call that takes `p`, `x` or `t`."""
    loss = SquaredLoss()
    yield "net", lambda: net(x, p)
    yield "value_and_grad", lambda: net.value_and_grad(p, x, t, loss)
    yield "loss", lambda: net.loss(p, x, t, loss)
    yield "vjp", lambda: net.vjp(p, x, t)
    yield "objective", lambda: net.objective(x, t, loss)(p)
    yield "train", lambda: train(net, p, x, t, loss, Adam())
    yield "minimize", lambda: chains.minimize(net.objective(X, X[:, :1], loss), p, maxiter=1)


@pytest.mark.parametrize("name", ["x", "p", "t"])
def test_tensors_that_require_a_gradient_are_refused(name):
    torch = pytest.importorskip("torch")
    net = network("numpy")
    arrays = {"x": torch.tensor(X), "t": torch.zeros(12, 1), "p": torch.tensor(net.init(dtype=np.float64))}
    arrays[name].requires_grad_()
    takers = {"x": {"vjp", "net", "value_and_grad", "loss", "objective", "train"}, "t": {"value_and_grad", "loss", "objective"}}
    takers["p"] = {*takers["x"], "minimize"}
    refused = set()
    for call, function in calls_with(net, **arrays):
        try:
            function()
        except TypeError as error:
            if f"`{name}` is a tensor that requires a gradient, which would be lost here; try {name}.detach()" in str(error):
                refused.add(call)
    assert refused >= takers[name]
    detached = {key: value.detach() for key, value in arrays.items()}
    for call, function in calls_with(net, **detached):
        if call in takers[name]:
            function()


def test_a_parameter_of_pytorch_is_trained_where_it_lies():
    torch = pytest.importorskip("torch")
    net = network("numpy")
    parameter = torch.nn.Parameter(torch.tensor(net.init()))
    before = parameter.detach().numpy().copy()
    train(net, parameter.detach(), X, X[:, 0], SquaredLoss(), SGD(0.1))
    assert (parameter.detach().numpy() != before).any()


@pytest.mark.parametrize("name", ["x", "p", "t"])
def test_tensors_that_are_negated_when_they_are_read_are_refused(name):
    """Their memory, which DLPack gives, has numbers of the other sign."""
    torch = pytest.importorskip("torch")
    net = network("numpy")
    arrays = {"x": torch.tensor(X), "t": torch.ones(12, 1), "p": torch.tensor(net.init(dtype=np.float64))}
    wanted = net.loss(loss=SquaredLoss(), **arrays)
    arrays[name] = torch.complex(torch.zeros_like(arrays[name]), -arrays[name]).conj().imag
    assert arrays[name].is_neg()
    with pytest.raises(TypeError, match=rf"`{name}` is a tensor that is negated .*try {name}.resolve_neg\(\)"):
        net.loss(loss=SquaredLoss(), **arrays)
    arrays[name] = arrays[name].resolve_neg()
    assert net.loss(loss=SquaredLoss(), **arrays) == wanted


def test_conjugates_of_pytorch_are_refused():
    torch = pytest.importorskip("torch")
    net = network("numpy")
    with pytest.raises(TypeError, match=r"^`x` must be real, got torch.complex64$"):
        net(torch.ones(4, 3, dtype=torch.complex64).conj(), net.init())


def test_arrays_without_memory_are_refused_with_what_to_do():
    """Such as those of dask, which are computed later."""

    class Later:
        shape, ndim, dtype = (4, 3), 2, np.dtype(np.float64)

        def __array_namespace__(self):
            return np

    net = network("numpy")
    with pytest.raises(TypeError, match=r"^`x` \(a Later\) has no memory to read: pass np.asarray\(x\)$"):
        net(Later(), net.init())


def test_tracers_of_jax_are_refused_with_what_to_do():
    jax = pytest.importorskip("jax")
    net = network("numpy")
    p = net.init()
    with pytest.raises(TypeError, match=r"^`x` is a tracer of JAX, .*chains.interop.as_jax\(net\)"):
        jax.jit(lambda x: net(x, p))(np.ones((4, 3), np.float32))
    with pytest.raises(TypeError, match=r"^`p` is a tracer of JAX"):
        jax.grad(lambda p: net(X, p).sum())(p)


@pytest.mark.parametrize("name", ["x", "p"])
def test_bfloat16_of_pytorch_is_refused_with_what_to_do(name):
    torch = pytest.importorskip("torch")
    net = network("numpy")
    arrays = {"x": torch.tensor(X), "p": torch.tensor(net.init(dtype=np.float64))}
    arrays[name] = arrays[name].to(torch.bfloat16)
    with pytest.raises(TypeError, match=rf"`{name}` must be float32 or float64, got torch.bfloat16; try {name}.float\(\)"):
        net(**arrays)


def test_bfloat16_of_jax_is_refused_with_what_to_do():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((12, 3), jax.numpy.bfloat16)
    for given in (x, np.asarray(x)):
        with pytest.raises(TypeError, match=r"`x` must be float32 or float64, got bfloat16; try x.astype\(np.float32\)"):
            network("numpy")(given, network("numpy").init())
