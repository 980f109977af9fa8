"""Training on a source of batches in place of arrays."""

import threading
import weakref

import numpy as np
import pytest

from chains import (
    SGD,
    Adam,
    BatchNorm,
    Chain,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    SquaredLoss,
    accuracy,
    schedules,
    tanh,
    train,
)
from chains.data import Augment, Batches, prefetch

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 4, tanh), Dropout(0.2), Dense(4, 2), backend=backend_name)


def run(net, source, p=None, **settings):
    p = net.init(seed=0, dtype=np.float64) if p is None else p
    settings = {"epochs": 3, **settings}
    return p, train(net, p, source, None, SquaredLoss(), settings.pop("optimizer", Adam(0.05)), **settings)


@pytest.fixture
def normal_net(backend_name):
    return Chain(Dense(3, 4, tanh), BatchNorm(4), Dropout(0.2), Dense(4, 2), backend=backend_name)


def in_order(**settings):
    return Batches(X, T, batch_size=6, shuffle=False, **settings)


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_train_as_their_arrays_do(net, ahead):
    """Dropout included: the same bits, and the same history."""
    wanted = net.init(seed=0, dtype=np.float64)
    whole = train(net, wanted, X, T, SquaredLoss(), Adam(0.05), epochs=3, batch_size=6, shuffle=False, validation=(X, T))
    p, history = run(net, prefetch(in_order()) if ahead else in_order(), validation=(X, T))
    assert p.tobytes() == wanted.tobytes()
    np.testing.assert_allclose(history.loss, whole.loss, rtol=1e-14)
    assert history.validation_loss == whole.validation_loss
    assert history.steps == whole.steps == 12


# The state of a network


@pytest.mark.parametrize("ahead", [False, True])
def test_the_state_is_that_of_training_on_arrays(normal_net, dtype, ahead):
    """Twelve batches, the last of each pass smaller: the same bits of parameters, state and validation."""
    net, rest = normal_net, {"epochs": 3, "validation": (X, T), "seed": 5}
    wanted, wanted_state = net.init(seed=0, dtype=dtype), net.init_state(dtype)
    whole = train(net, wanted, X, T, SquaredLoss(), Adam(0.05), batch_size=6, shuffle=False, state=wanted_state, **rest)
    p, state, seen = net.init(seed=0, dtype=dtype), net.init_state(dtype), []
    source = prefetch(in_order()) if ahead else in_order()
    p, history = run(net, source, p, state=state, callbacks=[lambda now: seen.append(now.state)], **rest)
    assert p.tobytes() == wanted.tobytes()
    assert state.tobytes() == wanted_state.tobytes() != net.init_state(dtype).tobytes()
    assert history.validation_loss == whole.validation_loss
    assert len(seen) == 3
    assert all(now is state for now in seen)


def test_resuming_with_a_state_equals_one_long_run(normal_net):
    net, batches = normal_net, Batches(X, T, batch_size=6)
    state, whole = net.init_state(np.float64), net.init_state(np.float64)
    p, history = run(net, batches, epochs=2, state=state)
    run(net, batches, p, epochs=2, state=state, resume=history)
    assert p.tobytes() == run(net, Batches(X, T, batch_size=6), epochs=4, state=whole)[0].tobytes()
    assert state.tobytes() == whole.tobytes()


def test_a_batch_too_small_for_statistics_is_refused_before_its_step(normal_net):
    net, short = normal_net, [(X[:10], T[:10]), (X[10:19], T[10:19]), (X[19:], T[19:])]
    state, wanted = net.init_state(np.float64), net.init_state(np.float64)
    p = net.init(seed=0, dtype=np.float64)
    with pytest.raises(ValueError, match=r"`x` is a batch of 1, but layer 1, BatchNorm\(4\), needs at least 2") as caught:
        run(net, short, p, state=state)
    assert caught.value.__notes__ == ["in batch 2 of a pass, after 2 steps"]
    assert p.tobytes() == run(net, short[:2], epochs=1, state=wanted)[0].tobytes()
    assert state.tobytes() == wanted.tobytes()
    with pytest.raises(ValueError, match="`x` is a batch of 1, but") as caught:
        run(net, short[::-1], p, state=state)
    assert caught.value.__notes__ == ["in the first batch"]
    assert state.tobytes() == wanted.tobytes()


def test_a_wrong_state_is_refused_before_the_first_step(net, normal_net):
    p = normal_net.init(seed=0, dtype=np.float64)
    before = p.tobytes()
    for state, error, words in [
        (None, ValueError, "`state` is missing"),
        (normal_net.init_state(), TypeError, "`state` must be float64, as `p`, got float32"),
        (np.full(8, np.nan), ValueError, "`state` must be finite, got nan"),
        (p[:8], ValueError, "`state` overlaps `p`"),
    ]:
        with pytest.raises(error, match=words):
            run(normal_net, in_order(), p, state=state)
    with pytest.raises(ValueError, match="`state` must be left out"):
        run(net, in_order(), state=np.ones(8))
    assert p.tobytes() == before


# Sources of other kinds


def test_batches_of_many_sizes(normal_net):
    """More sizes than are kept bound, each of them twice, under a learning rate that is a setting of the program."""
    net, sizes = normal_net, [*range(2, 13)] * 2
    source = [(X[:size], T[-size:]) for size in sizes]
    p, state = net.init(seed=0, dtype=np.float64), net.init_state(np.float64)
    optimizer = Adam(schedules.stepwise(0.05, 0.5, every=3))
    run(net, source, p, epochs=1, state=state, optimizer=optimizer)
    own, own_state, history = net.init(seed=0, dtype=np.float64), net.init_state(np.float64), None
    for x, t in source:
        history = train(net, own, x, t, SquaredLoss(), optimizer, state=own_state, resume=history)
    assert p.tobytes() == own.tobytes()
    assert state.tobytes() == own_state.tobytes()


def test_batches_are_let_go(net):
    """While a batch is being made, none of those before it is in memory: neither the first one."""
    made, alive = [], []

    def source():
        for _ in range(5):
            alive.append(sum(reference() is not None for reference in made))
            x = X.copy()
            made.append(weakref.ref(x))
            yield x, T
            del x

    run(net, source(), epochs=1)
    assert alive == [0, 0, 0, 0, 0]


def test_weights_lists_and_other_types(net):
    weights = np.arange(20) % 3
    wanted = net.init(seed=0, dtype=np.float64)
    train(net, wanted, X, T, SquaredLoss(), Adam(0.05), epochs=3, batch_size=6, shuffle=False, weights=weights)
    assert run(net, list(Batches(X, T, weights, batch_size=6, shuffle=False)))[0].tobytes() == wanted.tobytes()
    small = [(np.round(x).astype(np.int8), t.astype(np.float32)) for x, t in in_order()]
    same = [(np.round(x), t.astype(np.float32).astype(np.float64)) for x, t in in_order()]
    assert run(net, small)[0].tobytes() == run(net, same)[0].tobytes()


def test_a_generator_gives_one_epoch(net):
    assert run(net, (batch for batch in in_order()), epochs=1)[1].steps == 4
    with pytest.raises(ValueError, match=r"`x` \(a generator\) yields one pass only, too few for 2 epochs"):
        run(net, (batch for batch in in_order()), epochs=2)


def test_resuming_equals_one_long_run(net):
    batches = Batches(X, T, batch_size=6)
    p, history = run(net, batches, epochs=2)
    run(net, batches, p, epochs=2, resume=history)
    assert p.tobytes() == run(net, Batches(X, T, batch_size=6), epochs=4)[0].tobytes()


def test_images_are_learnt_from_augmented_batches(backend_name):
    """Bright columns, and their mirror images, told apart by whether they are broken."""
    rng = np.random.default_rng(1)
    x, t = rng.integers(0, 30, (400, 1, 8, 8), np.uint8), rng.integers(0, 2, 400)
    x[np.arange(400), 0, 2:6, 3] = 200
    x[t == 1, 0, 3:5] = 0
    net = Chain(Flatten(), Dense(64, 16, tanh), Dense(16, 2), input_shape=(1, 8, 8), backend=backend_name)
    p = net.init(seed=0)
    batches = prefetch(Batches(x, t, batch_size=50, augment=Augment(shift=1)))
    history = train(net, p, batches, None, CrossEntropyLoss(), Adam(0.005), epochs=60, validation=(x, t), metrics=[accuracy])
    assert history.metrics["accuracy"][-1] > 0.9
    assert history.loss[-1] < history.loss[0] / 2


def test_the_bar_counts_steps(net, capsys):
    run(net, in_order(), progress=True)
    assert "12/12" in capsys.readouterr().err
    run(net, (batch for batch in in_order()), epochs=1, progress=True)  # a generator has no length
    assert "4 steps" in capsys.readouterr().err


def test_ctrl_c_in_the_middle_of_an_epoch_leaves_no_thread(net):
    def interrupted():
        yield from list(in_order())[:2]
        raise KeyboardInterrupt

    class Source:
        def __iter__(self):
            return interrupted()

    before = threading.active_count()
    p, history = run(net, prefetch(Source()))
    assert "interrupted" in history.stopped
    assert (history.steps, history.epochs) == (2, 0)
    assert np.isfinite(p).all()
    assert threading.active_count() == before


def test_a_loss_that_is_not_finite_leaves_no_thread(net):
    before = threading.active_count()
    source = [(X, T)] * 4 + [(X, T * 1e200)] + [(X, T)] * 100
    with pytest.raises(FloatingPointError, match=r"loss is (nan|inf) at step 5") as caught:
        run(net, prefetch(source), optimizer=SGD(1e-3))
    assert threading.active_count() == before
    # The error, which keeps the frames of training alive, is still there. On a GPU, four more steps were asked for.
    assert caught.value.history.steps == (9 if net.backend == "emulated" else 5)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([], ValueError, "`x` yielded no batches"),
        (X, TypeError, r"`t` is None, and `x` \(a ndarray\)"),
        (3, TypeError, r"`t` is None, and `x` \(a int\)"),
        ([X], TypeError, r"`x` must yield batches .*, got a ndarray"),
        ([(X, T[:3])], ValueError, r"`t` has shape \(3, 2\)"),
        ([(X[:, :2], T)], ValueError, r"`x` must have shape \(batch, 3\), .* got \(20, 2\)"),
        ([(X * np.nan, T)], ValueError, r"`x` must be finite, got nan"),
    ],
)
def test_a_bad_source_is_refused_before_the_first_step(net, source, error, words):
    p = net.init(seed=0, dtype=np.float64)
    with pytest.raises(error, match=words):
        run(net, source, p)
    assert p.tobytes() == net.init(seed=0, dtype=np.float64).tobytes()


def test_a_bad_batch_is_refused_before_its_step(net):
    p = net.init(seed=0, dtype=np.float64)
    with pytest.raises(ValueError, match="`x` must be finite, got nan") as caught:
        run(net, [(X, T), (X * np.nan, T)], p)
    assert caught.value.__notes__ == ["in batch 1 of a pass, after 1 step"]
    assert p.tobytes() == run(net, [(X, T)], epochs=1)[0].tobytes()
    with pytest.raises(ValueError, match="weights of batch 1 have another shape"):
        run(net, [(X, T), (X, T, np.ones(20))])


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"shuffle": False}, {"drop_last": True}, {"weights": np.ones(20)}])
def test_what_the_batches_decide_may_not_be_given(net, settings):
    with pytest.raises(ValueError, match=f"`{next(iter(settings))}` is decided by the source"):
        run(net, in_order(), **settings)
