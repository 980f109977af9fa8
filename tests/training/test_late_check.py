"""Large data are checked in the first epoch: bad numbers are refused as before, and leave everything as it was."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, num_threads, tanh, train
from chains.support import arguments
from chains.training import plan
from tests import harness

RNG = np.random.default_rng(0)
SAMPLES = 53


@pytest.fixture(autouse=True)
def _all_large(monkeypatch):
    monkeypatch.setattr(plan, "LATE_BYTES", 1)


@pytest.fixture(params=harness.BACKENDS)
def net(request):
    return Chain(Dense(19, 6, tanh), BatchNorm(6), Dropout(0.2), Dense(6, 2), backend=request.param)


def data(dtype=np.float32):
    return RNG.normal(size=(SAMPLES, 19)).astype(dtype), RNG.normal(size=(SAMPLES, 2)).astype(dtype)


def assert_nothing_written(net, x, t, *words, dtype=np.float32, **settings):
    """`train` refuses the data, and neither parameters nor state have changed."""
    p, state = net.init(dtype=dtype), net.init_state(dtype=dtype)
    before = p.copy(), state.copy()
    settings = {"batch_size": 10, "epochs": 3, **settings}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are checked
        train(net, p, x, t, settings.pop("loss", SquaredLoss()), Adam(0.1), state=state, **settings)
    for word in words:
        assert word in str(caught.value)
    assert np.array_equal(p, before[0])
    assert np.array_equal(state, before[1])


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf], ids=str)
@pytest.mark.parametrize("row", [0, 9, 10, 49, 50, 52])
@pytest.mark.parametrize("shuffle", [False, True])
def test_bad_numbers_are_named(net, row, bad, shuffle):
    x, t = data()
    x[row, 18] = bad
    assert_nothing_written(net, x, t, "`x`", str(bad), f"({row}, 18)", shuffle=shuffle)
    x, t = data()
    t[row, 1] = bad
    assert_nothing_written(net, x, t, "`t`", str(bad), f"({row}, 1)", shuffle=shuffle)


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_that_the_first_epoch_leaves_out(net, shuffle):
    for row in range(SAMPLES):
        x, t = data()
        x[row, 3] = np.nan
        assert_nothing_written(net, x, t, f"({row}, 3)", batch_size=30, drop_last=True, shuffle=shuffle, epochs=1)


def test_the_first_of_several_is_named(net):
    x, t = data()
    x[[51, 7, 30], 2] = np.nan, np.inf, np.nan
    assert_nothing_written(net, x, t, "inf at index (7, 2)")


def test_numbers_beyond_the_range_of_the_parameters(net):
    x, t = data(np.float64)
    x[31, 4] = -1e300
    assert_nothing_written(net, x, t, "`x`", "float32", "-1e+300", "(31, 4)")
    p = net.init(dtype=np.float64)
    train(net, p, x, t, SquaredLoss(), Adam(1e-3), state=net.init_state(dtype=np.float64), batch_size=10)
    x[31, 4] = np.finfo(np.float32).max
    train(net, net.init(), x, t, SquaredLoss(), Adam(1e-3), state=net.init_state(), batch_size=10, epochs=0)


def test_a_number_that_does_not_reach_the_loss():
    """relu, tanh and integers hide infinities: the numbers themselves are looked at."""
    for backend in harness.BACKENDS:
        net = Chain(Dense(19, 6, tanh), Dense(6, 2), backend=backend)
        x, t = data()
        x[20] = np.inf
        p = np.ones(net.n_params, np.float32)
        with pytest.raises(ValueError, match=r"inf at index \(20, 0\)"):
            train(net, p, x, t, SquaredLoss(), Adam(0.1), batch_size=10)
        assert (p == 1).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_if_checked_before(net, threads, monkeypatch):
    """The bits are those of a run whose data are checked before it."""
    x, t = data()
    found = []
    with num_threads(threads):
        for large in (1, 1 << 40):
            monkeypatch.setattr(plan, "LATE_BYTES", large)
            p, state = net.init(), net.init_state()
            history = train(net, p, x, t, SquaredLoss(), Adam(0.1), state=state, batch_size=10, epochs=3)
            found.append((p.tobytes(), state.tobytes(), history.loss))
    assert found[0] == found[1]


def arrangements(x):
    padded = np.zeros((2 * len(x), x.shape[1]), x.dtype)
    padded[::2] = x
    return {"Fortran": np.asfortranarray(x), "in steps": padded[::2], "backwards": x[::-1].copy()[::-1], "big": x.astype(">f4")}


@pytest.mark.parametrize("kind", list(arrangements(np.zeros((1, 1), np.float32))))
def test_layouts(net, kind):
    x, t = data()
    x[17, 5] = np.nan
    assert_nothing_written(net, arrangements(x)[kind], t, "`x`", "(17, 5)")


def test_one_array_as_input_and_target():
    net = Chain(Dense(19, 3, tanh), Dense(3, 19))
    x, _ = data()
    x[44, 1] = np.nan
    p = net.init()
    before = p.copy()
    with pytest.raises(ValueError, match=r"`x` must be finite, got nan at index \(44, 1\)"):
        train(net, p, x, x, SquaredLoss(), Adam(0.1), batch_size=10)
    assert np.array_equal(p, before)


def test_a_run_that_ends_in_the_first_epoch():
    """A loss that is not finite, Ctrl-C: the rest of the data is checked then."""
    net = Chain(Dense(19, 6), Dense(6, 2))
    x, t = data()
    x[:10] = 1e30
    p = net.init()
    with pytest.raises(FloatingPointError):
        train(net, p.copy(), x, t, SquaredLoss(), Adam(0.1), batch_size=10, shuffle=False)
    x[52, 0] = np.nan
    before = p.copy()
    with pytest.raises(ValueError, match=r"index \(52, 0\)"):
        train(net, p, x, t, SquaredLoss(), Adam(0.1), batch_size=10, shuffle=False)
    assert np.array_equal(p, before)


def test_nobody_sees_refused_data(tmp_path):
    """Callbacks and checkpoints come after the check."""
    net, seen = Chain(Dense(19, 6, tanh), Dense(6, 2)), []

    class Curious:
        def begin(self, names):
            seen.append("begin")

        def on_batch_end(self, state, loss):
            seen.append("step")

        def __call__(self, state):
            seen.append("epoch")

    x, t = data()
    x[52, 0] = np.nan
    for settings in ({"callbacks": [Curious()]}, {"callbacks": [seen.append]}, {"checkpoint": tmp_path / "run"}):
        with pytest.raises(ValueError, match=r"index \(52, 0\)"):
            train(net, net.init(), x, t, SquaredLoss(), Adam(0.1), batch_size=10, **settings)
    assert not seen
    assert not list(tmp_path.glob("run/*.safetensors"))


def test_labels_weights_and_no_check():
    net = Chain(Dense(19, 6, tanh), Dense(6, 2))
    x, _ = data()
    labels, weights = RNG.integers(0, 2, SAMPLES), np.ones(SAMPLES)
    train(net, net.init(), x, labels, CrossEntropyLoss(), Adam(0.1), batch_size=10, weights=weights)
    x[3, 3] = np.inf
    with pytest.raises(ValueError, match=r"index \(3, 3\)"):
        train(net, net.init(), x, labels, CrossEntropyLoss(), Adam(0.1), batch_size=10, weights=weights)
    with pytest.raises(FloatingPointError):
        train(net, net.init(), x, labels, CrossEntropyLoss(), Adam(0.1), batch_size=10, check_finite=False)


def test_machine_code_looks_at_the_data(monkeypatch):
    """No pass over large data comes before the steps."""
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    net, read = Chain(Dense(19, 6, tanh), Dense(6, 2), backend="native"), []
    check = arguments.check_finite
    monkeypatch.setattr(arguments, "check_finite", lambda dtype, **arrays: read.extend(arrays) or check(dtype, **arrays))
    x, t = data()
    train(net, net.init(), x, t, SquaredLoss(), Adam(0.1), batch_size=10, epochs=2)
    assert read == ["p", "state"]
