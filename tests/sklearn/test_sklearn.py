"""The estimators of `chains.sklearn`: scikit-learn's own checks, and what goes beyond them."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest

import chains
from chains import SGD, Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, L2Penalty, Reshape, schedules, tanh

pytest.importorskip("sklearn", "1.6")

import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_multilabel_classification
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from chains.sklearn import ChainClassifier, ChainRegressor
from chains.sklearn.estimator import Watch

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


KNOWN_REASONS = (  # for which scikit-learn leaves a check out
    "is not installed",
    "SCIPY_ARRAY_API is not set",
    "does not have a decision_function method",  # as MLPClassifier
)


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", [ChainRegressor(), ChainClassifier(), ChainRegressor(solver="lbfgs")], ids=str)
def test_scikit_learns_own_checks(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert [result["check_name"] for result in found if result["status"] not in ("passed", "skipped")] == []
    reasons = [str(result["exception"]) for result in found if result["status"] == "skipped"]
    assert [reason for reason in reasons if not any(known in reason for known in KNOWN_REASONS)] == []
    assert sum(result["status"] == "passed" for result in found) > 45


def scaled(load, dtype=np.float64):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(dtype), y


@pytest.mark.parametrize(
    ("load", "ours", "theirs"),
    [(load_diabetes, ChainRegressor, MLPRegressor), (load_wine, ChainClassifier, MLPClassifier),
     (load_breast_cancer, ChainClassifier, MLPClassifier)],
)  # fmt: skip
def test_scores_are_those_of_scikit_learns_networks(load, ours, theirs):
    X, y = scaled(load)
    settings = {"hidden_layer_sizes": 20, "learning_rate_init": 0.01, "max_iter": 100, "random_state": 1}
    own, other = (cross_val_score(kind(**settings), X, y, cv=3) for kind in (ours, theirs))
    assert own.mean() >= other.mean() - 2 * max(own.std(), other.std(), 0.01)


def test_the_loss_is_that_of_scikit_learn():
    """With the same weights, one full step: the loss with its penalty, and the gradient with its own."""
    X, y = scaled(load_diabetes)
    y = (y - y.mean()) / y.std()
    settings = {
        "hidden_layer_sizes": (7,),
        "activation": "tanh",
        "solver": "sgd",
        "alpha": 3.0,
        "batch_size": len(X),
        "max_iter": 1,
    }
    other = MLPRegressor(**settings, momentum=0.9, learning_rate_init=0.1, random_state=0).fit(X, y)
    own = ChainRegressor(**settings, learning_rate_init=0.1, random_state=0, warm_start=True).fit(X, y)
    start = MLPRegressor(**settings, momentum=0.9, learning_rate_init=1e-12, random_state=0).fit(X, y)
    for mine, theirs in zip((*own.coefs_, *own.intercepts_), (*start.coefs_, *start.intercepts_), strict=True):
        mine[...] = theirs.reshape(mine.shape)
    own.fit(X, y)
    assert own.loss_ == pytest.approx(other.loss_, rel=1e-9)
    for mine, theirs in zip(own.coefs_, other.coefs_, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_weights_stand_for_repetitions(solver):
    X, y = scaled(load_diabetes)
    X, y = X[:60], (y[:60] - 150.0) / 70.0
    w = np.random.default_rng(0).integers(0, 4, 60)
    settings = {
        "hidden_layer_sizes": 5,
        "activation": "tanh",
        "alpha": 2.0,
        "solver": solver,
        "max_iter": 30,
        "random_state": 0,
    }
    one = ChainRegressor(**settings).fit(X, y, sample_weight=w)
    two = ChainRegressor(**settings, batch_size=1000).fit(X.repeat(w, axis=0), y.repeat(w))
    np.testing.assert_allclose(one.predict(X), two.predict(X), rtol=1e-5, atol=1e-7)


def test_several_outputs():
    X, y = scaled(load_diabetes)
    both = np.column_stack([y, -2.0 * y]) / 100.0
    model = ChainRegressor((20,), solver="lbfgs", random_state=0, max_iter=300).fit(X, both)
    assert model.predict(X).shape == (len(X), 2)
    assert model.score(X, both) > 0.5
    with pytest.raises(ValueError, match="`y` must have 2 outputs"):
        model.set_params(warm_start=True).fit(X, y)


def test_labels_that_do_not_exclude_each_other():
    X, y = make_multilabel_classification(n_samples=120, n_classes=3, random_state=0)
    X = StandardScaler().fit_transform(X)
    model = ChainClassifier((30,), learning_rate_init=0.01, random_state=0).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert ((model.predict_proba(X) > 0.5) == (model.predict(X) == 1)).all()
    assert model.score(X, y) > 0.9


def test_classes_may_be_texts():
    X, y = scaled(load_wine)
    names = np.array(["red", "white", "rosé"])
    model = ChainClassifier((10,), solver="lbfgs", random_state=0).fit(X, names[y])
    assert set(model.predict(X)) == set(names)
    assert model.score(X, names[y]) == 1.0
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_early_stopping_keeps_the_best_epoch():
    X, y = scaled(load_digits)
    model = ChainClassifier((20,), early_stopping=True, learning_rate_init=0.01, random_state=0, n_iter_no_change=3).fit(X, y)
    assert model.n_iter_ < 200
    assert len(model.validation_scores_) == model.n_iter_ == len(model.loss_curve_)
    assert model.best_validation_score_ == max(model.validation_scores_) > 0.9
    assert model.best_loss_ is None
    assert max(model.validation_scores_[-4:]) < model.best_validation_score_ + model.tol
    assert model.score(X, y) > 0.93


def test_epochs_done_at_once_stop_where_single_ones_do():
    """Full batches: losses are looked at when they may end training, with the same results."""
    X, y = scaled(load_wine)
    settings = {"hidden_layer_sizes": 10, "learning_rate_init": 0.1, "n_iter_no_change": 3, "tol": 1e-3, "random_state": 0}
    model = ChainClassifier(**settings).fit(X, y)
    assert 10 < model.n_iter_ < 200
    calls = []
    watch = Watch(
        settings["tol"], settings["n_iter_no_change"], lambda state: calls.append(state.epoch) or -state.history.loss[-1]
    )
    seed = np.random.RandomState(0)
    p = model.net_.init(int(seed.randint(2**31)), X.dtype)
    problem = {"penalty": L2Penalty(0.5 * model.alpha / len(X), "*.weight"), "seed": int(seed.randint(2**31))}
    history = chains.train(
        model.net_, p, X, y, CrossEntropyLoss(), Adam(0.1), epochs=200, batch_size=len(X), callbacks=[watch], **problem
    )
    assert calls == list(range(1, model.n_iter_ + 1))
    assert history.loss == model.loss_curve_
    np.testing.assert_array_equal(p, model.p_)


def test_training_stops_where_the_loss_makes_no_progress():
    X, y = scaled(load_wine)
    settings = {"hidden_layer_sizes": 10, "learning_rate_init": 0.05, "n_iter_no_change": 4, "tol": 1e-2, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ChainClassifier(**settings).fit(X, y)
    assert model.n_iter_ < 200
    assert model.best_loss_ == min(model.loss_curve_)
    best = np.minimum.accumulate(model.loss_curve_)
    assert (np.array(model.loss_curve_[-5:]) > best[-6:-1] - 1e-2).all()
    for epochs, text in ((1, "1 epoch"), (3, "3 epochs")):
        with pytest.warns(ConvergenceWarning, match=f"{text}, and the loss still improves; raise `max_iter`"):
            ChainClassifier(max_iter=epochs).fit(X, y)
    with pytest.warns(ConvergenceWarning, match=r"'lbfgs' has not converged.*raise `max_iter` .=3."):
        ChainClassifier(solver="lbfgs", max_iter=3).fit(X, y)


def test_warm_start_goes_on():
    X, y = scaled(load_wine)
    model = ChainClassifier(max_iter=5, warm_start=True, random_state=0).fit(X, y)
    first = model.loss_curve_
    assert model.fit(X, y).loss_curve_[0] < first[-1]
    with pytest.raises(ValueError, match=r"`y` has the classes \[0 1 7\], but those of the first call are \[0 1 2\]"):
        model.fit(X, np.where(y == 2, 7, y))
    again = clone(model).fit(X, y)
    assert again.loss_curve_ == first
    assert model.set_params(warm_start=False).fit(X, y).loss_curve_ == first


def test_warm_start_with_fewer_classes_is_refused():
    """As by scikit-learn's networks; the classes that are missing would keep their probabilities."""
    X, y = scaled(load_wine)
    model = ChainClassifier((5,), max_iter=1, warm_start=True, random_state=0).fit(X, y)
    fewer = y < 2
    with pytest.raises(ValueError, match=r"`y` has the classes \[0 1\], but `warm_start` continues with .* \[0 1 2\]"):
        model.fit(X[fewer], y[fewer])
    assert list(model.set_params(warm_start=False).fit(X[fewer], y[fewer]).classes_) == [0, 1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("solver", ["sgd", "lbfgs"])
def test_a_fit_that_diverges_raises_value_error(solver):
    """As scikit-learn's networks do; it is a FloatingPointError too, as of `train`."""
    X, y = scaled(load_diabetes)
    model = ChainRegressor((5,), solver=solver, learning_rate_init=1e9, random_state=0)
    for kind in (ValueError, FloatingPointError):
        with pytest.raises(kind, match="training has diverged: "):
            model.fit(X, y * 1e160)


def states(thing, seen):
    """All that libraries find which save the states of objects, such as skops."""
    if id(thing) in seen or isinstance(thing, (str, bytes, np.ndarray, np.generic, type)):
        return
    seen[id(thing)] = thing
    if isinstance(thing, (dict, list, tuple)):
        inner = thing.values() if isinstance(thing, dict) else thing
    elif hasattr(thing, "__code__"):
        return
    else:
        kept = thing.__getstate__()
        inner = kept if isinstance(kept, tuple) else (kept or {}).values()
    for part in inner:
        states(part, seen)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fitted_estimators_have_no_state_that_cannot_be_saved(solver):
    X, y = scaled(load_diabetes)
    softsign = chains.activation("softsign", lambda x: x / (1 + abs(x)))
    for f in ("relu", "logistic", tanh, chains.activations.Elu(0.5), softsign):
        model, found = ChainRegressor((5,), f, solver=solver, max_iter=2, random_state=0).fit(X, y), {}
        states(model, found)
        functions = [each for each in found.values() if hasattr(each, "__code__")]
        assert all("<" not in function.__qualname__ for function in functions)
        assert any(isinstance(each, chains.activations.Activation) for each in found.values())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_skops_saves_estimators():
    skops = pytest.importorskip("skops.io")
    X, y = scaled(load_wine)
    model = ChainClassifier((5,), "logistic", max_iter=3, random_state=0).fit(X, y)
    data = skops.dumps(model)
    again = skops.loads(data, trusted=skops.get_untrusted_types(data=data))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.partial_fit(X, y).p_, model.partial_fit(X, y).p_)


def test_partial_fit_is_an_epoch_each():
    X, y = scaled(load_wine)
    whole = ChainClassifier((10,), max_iter=6, random_state=0, shuffle=False).fit(X, y)
    model = ChainClassifier((10,), random_state=0, shuffle=False)
    for _ in range(6):
        model.partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_allclose(model.p_, whole.p_, rtol=1e-9)
    assert (model.n_iter_, len(model.loss_curve_), model.t_) == (1, 6, 6 * len(X))
    model.partial_fit(X[:50], y[:50])  # of which not all classes are
    with pytest.raises(ValueError, match="must be those of the first call"):
        model.partial_fit(X, y, classes=[0, 1])
    assert not hasattr(ChainRegressor(solver="lbfgs"), "partial_fit")


def test_float32_stays_float32():
    X, y = scaled(load_diabetes, np.float32)
    model = ChainRegressor(max_iter=3).fit(X, y)
    assert model.p_.dtype == model.predict(X).dtype == np.float32
    model.partial_fit(X.astype(np.float64), y)
    assert model.p_.dtype == np.float64


def images(inputs: int, outputs: int) -> Chain:
    return Chain(Reshape(1, 8, 8), chains.Conv(1, 4, 3, "relu", stride=2), BatchNorm(4), chains.Flatten(), Dense(36, outputs),
                 input_shape=(inputs,))  # fmt: skip


def test_any_network():
    X, y = scaled(load_digits)
    model = ChainClassifier(network=images, solver=Adam(0.01), max_iter=15, random_state=0).fit(X, y)
    assert repr(model.net_) == repr(images(64, 10))
    assert model.score(X, y) > 0.93
    assert not np.array_equal(model.state_, model.net_.init_state(np.float64))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    net = Chain(Dense(64, 5, tanh), Dense(5, 10))
    assert clone(ChainClassifier(network=net, solver=SGD(0.1), max_iter=2)).fit(X, y).net_.n_params == net.n_params
    with pytest.raises(
        ValueError, match=r"`network` must turn samples of shape \(64,\) into outputs \(10,\), got \(64,\) and \(3,\)"
    ):
        ChainClassifier(network=lambda inputs, outputs: Chain(Dense(inputs, 3))).fit(X, y)
    with pytest.raises(TypeError, match="`network` must be a Chain, or a function"):
        ChainClassifier(network=lambda inputs, outputs: 3).fit(X, y)


def test_pipelines_grids_and_names_of_features():
    pandas = pytest.importorskip("pandas")
    X, y = load_wine(return_X_y=True, as_frame=True)
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), ChainClassifier(solver="lbfgs", random_state=0))
    grid = GridSearchCV(pipeline, {"chainclassifier__hidden_layer_sizes": [(5,), (20, 10)]}, n_jobs=2, cv=3)
    grid.fit(X, y)
    assert grid.best_score_ > 0.8
    model = grid.best_estimator_[-1]
    assert list(model.feature_names_in_) == list(X.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pandas.DataFrame(np.ones((2, 13)), columns=range(13)).rename(columns=str))


def test_copies_and_threads():
    X, y = scaled(load_wine)
    before = chains.get_num_threads()
    model = ChainClassifier(max_iter=4, random_state=np.random.RandomState(3), n_jobs=2).fit(X, y)
    assert chains.get_num_threads() == before
    np.testing.assert_array_equal(copy.deepcopy(model).predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"alpha": -1.0}, "`alpha`"), ({"tol": None}, "`tol`"), ({"max_iter": 0}, "`max_iter`"), ({"n_jobs": 0}, "`n_jobs`"),
        ({"batch_size": 0}, "`batch_size`.*or 'auto'"), ({"solver": "newton"}, "`solver` .='newton'. must be 'adam', 'sgd' or"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "`validation_fraction`"),
        ({"early_stopping": True, "solver": "lbfgs"}, "`early_stopping` needs"),
        ({"hidden_layer_sizes": (3, 0)}, "`hidden_layer_sizes`"), ({"activation": "swish"}, "did you mean `silu`"),
        ({"hidden_layer_sizes": "poisson"}, "`hidden_layer_sizes` .='poisson'"),
        ({"n_iter_no_change": 0}, "`n_iter_no_change`"), ({"shuffle": 1}, "`shuffle`"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings, reason):
    X, y = scaled(load_wine)
    with pytest.raises((TypeError, ValueError), match=reason):
        ChainRegressor(**settings).fit(X, y)


def test_bad_data_are_refused():
    X, y = scaled(load_wine)
    with pytest.raises(NotFittedError):
        ChainClassifier().predict(X)
    with pytest.raises(ValueError, match="one class"):
        ChainClassifier().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match=r"positive sum|non-zero"):
        ChainClassifier().fit(X, y, sample_weight=np.zeros(len(X)))
    with pytest.warns(DataConversionWarning):
        ChainClassifier(max_iter=1).fit(X, y[:, None])


def sparse_samples(samples=500, features=40, density=0.1):
    rng = np.random.default_rng(0)
    X = sp.csr_array(rng.random((samples, features)) * (rng.random((samples, features)) < density))
    return X, {ChainRegressor: rng.normal(size=samples), ChainClassifier: rng.integers(0, 3, samples)}, rng.random(samples)


@pytest.mark.parametrize("kind", [ChainRegressor, ChainClassifier])
@pytest.mark.parametrize(
    "settings",
    [{}, {"early_stopping": True}, {"solver": "lbfgs"}, {"batch_size": 500}, {"solver": Adam(0.01), "shuffle": False}],
    ids=str,
)
def test_sparse_samples_give_what_dense_ones_give(kind, settings):
    X, targets, w = sparse_samples()
    y = targets[kind]
    one = kind(random_state=0, max_iter=5, **settings).fit(X, y, w)
    two = kind(random_state=0, max_iter=5, **settings).fit(X.toarray(), y, w)
    np.testing.assert_array_equal(one.p_, two.p_)
    np.testing.assert_array_equal(one.predict(X), two.predict(X.toarray()))
    assert one.score(X, y) == pytest.approx(two.score(X.toarray(), y))
    assert one.loss_ == pytest.approx(two.loss_)


@pytest.mark.parametrize("form", ["csc_array", "coo_array", "lil_array", "dok_array", "bsr_array", "csr_matrix", "csc_matrix"])
def test_every_form_of_sparse_samples(form):
    X, targets, _ = sparse_samples(60)
    y = targets[ChainRegressor]
    other = getattr(sp, form)(X)
    model = ChainRegressor(max_iter=2, random_state=0).fit(other, y)
    np.testing.assert_array_equal(model.predict(other), ChainRegressor(max_iter=2, random_state=0).fit(X, y).predict(X))


def test_partial_fit_takes_sparse_and_dense_samples():
    X, targets, _ = sparse_samples()
    y = targets[ChainRegressor]
    one, two = ChainRegressor(random_state=0), ChainRegressor(random_state=0)
    for k in range(4):
        one.partial_fit(X if k != 2 else X.toarray(), y)
        two.partial_fit(X.toarray(), y)
    np.testing.assert_array_equal(one.p_, two.p_)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_sparse_samples_are_never_dense_as_a_whole(solver):
    X, targets, _ = sparse_samples(10_000, 2_000, 0.001)  # 160 MB if they were dense
    tracemalloc.start()
    try:
        model = ChainClassifier((4,), solver=solver, max_iter=2).fit(X, targets[ChainClassifier])
        model.score(X, targets[ChainClassifier])
        model.predict_proba(X)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 40e6


def test_settings_of_an_optimizer_can_be_searched():
    X, y = scaled(load_wine)
    search = GridSearchCV(
        make_pipeline(ChainClassifier((8,), solver=Adam(1e-6), random_state=0, max_iter=30)),
        {"chainclassifier__solver__learning_rate": [1e-6, 0.05, schedules.cosine(0.01, 20)]},
        cv=3,
    )
    assert search.fit(X, y).best_params_["chainclassifier__solver__learning_rate"] != 1e-6
    model = ChainRegressor(solver=Adam(0.1))
    before = model.solver
    model.set_params(solver__beta1=0.5, alpha=0.0)
    assert model.solver == Adam(0.1, beta1=0.5)
    assert before == Adam(0.1)
    assert model.get_params()["solver__beta1"] == 0.5
    assert clone(model).solver == model.solver
    assert model.set_params(solver=SGD(0.1), solver__momentum=0.5).solver == SGD(0.1, momentum=0.5)
    assert Adam(0.1).get_params() == Adam(0.1).get_params(deep=False)
    with pytest.raises(ValueError, match=r"'speed' is no parameter of SGD.*learning_rate, momentum"):
        model.set_params(solver__speed=1.0)
    with pytest.raises(ValueError, match=r"`solver` .='adam'. must be an optimiser"):
        ChainRegressor().set_params(solver__learning_rate=1.0)


def test_two_learning_rates_are_refused():
    X, y = scaled(load_diabetes)
    with pytest.raises(
        ValueError, match=r"`learning_rate_init` .=0.01. is for the solvers 'adam' and 'sgd', but `solver` is Adam"
    ):
        ChainRegressor(solver=Adam(0.1), learning_rate_init=0.01).fit(X, y)
    ChainRegressor(solver=Adam(0.01), learning_rate_init=0.01, max_iter=1).fit(X, y)


def test_partial_fit_needs_all_classes_at_first():
    X, y = scaled(load_wine)
    with pytest.raises(ValueError, match="`classes` must be given in the first call"):
        ChainClassifier().partial_fit(X, y)
    ChainClassifier(max_iter=1).fit(X, y).partial_fit(X, y)
    with pytest.raises(ValueError, match=r"`early_stopping` .=True. is for `fit`"):
        ChainRegressor(early_stopping=True).partial_fit(X, y)


@pytest.mark.parametrize("classes", [["a", "c"], ["a", "c", "d"]])
def test_classes_that_were_not_named_are_refused(classes):
    """ "b" would be sorted in before "c" and count as it."""
    model = ChainClassifier()
    with pytest.raises(ValueError, match=r"`y` has the classes \['a' 'b'\], but those of the first call are \['a' 'c'"):
        model.partial_fit(np.eye(4), np.array(["a", "b", "a", "b"]), classes=classes)
    with pytest.raises(NotFittedError):
        model.predict(np.eye(4))


def test_labels_after_classes_are_refused():
    X, y = scaled(load_wine)
    model = ChainClassifier((5,), max_iter=1, warm_start=True)
    with pytest.raises(ValueError, match=r"`y` must be a vector of classes, as in the first call, got shape \(178, 3\)"):
        model.fit(X, y).fit(X, np.eye(3, dtype=int)[y])
    with pytest.raises(ValueError, match="`y` must be rows of 3 zeros and ones"):
        clone(model).fit(X, np.eye(3, dtype=int)[y]).fit(X, y)


def test_class_weights_are_weights_of_samples():
    X, y = scaled(load_wine)
    X, y = X[:140], y[:140]
    settings = {"hidden_layer_sizes": 5, "max_iter": 5, "random_state": 0, "solver": "lbfgs", "backend": "numpy"}
    factors = np.array([1.0, 2.5, 0.5])
    w = np.random.default_rng(0).random(140)
    one = ChainClassifier(**settings, class_weight={0: 1.0, 1: 2.5, 2: 0.5}).fit(X, y, w)
    np.testing.assert_allclose(one.p_, ChainClassifier(**settings).fit(X, y, w * factors[y]).p_, rtol=1e-6)
    names = np.array(["a", "b", "c"])[y]
    counts = np.bincount(y, weights=w)
    balanced = ChainClassifier(**settings, class_weight="balanced").fit(X, names, w)
    np.testing.assert_allclose(
        balanced.p_, ChainClassifier(**settings).fit(X, names, w * (w.sum() / (3 * counts))[y]).p_, rtol=1e-6
    )
    with pytest.raises(ValueError, match=r"`class_weight` .='balanced'. is not for partial_fit"):
        ChainClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    ChainClassifier(class_weight={1: 3.0}).partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"`class_weight` .='even'. must be"):
        ChainClassifier(class_weight="even").fit(X, y)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"`class_weight` .=.2: .*. must have finite numbers, zero or positive"):
            ChainClassifier(class_weight={2: wrong}).fit(X, y)
    with pytest.raises(ValueError, match="for classes that exclude each other"):
        ChainClassifier(class_weight="balanced").fit(X, np.eye(3, dtype=int)[y])


def test_counts():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = rng.poisson(np.exp(0.5 + X[:, 0]))
    model = ChainRegressor((), loss="poisson", solver="lbfgs", alpha=0.0, max_iter=500, tol=1e-8).fit(X, y)
    from sklearn.linear_model import PoissonRegressor

    other = PoissonRegressor(alpha=0.0, tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=1e-4)
    with pytest.raises(ValueError, match=r"`y` must not be negative with `loss` .='poisson'., got -1"):
        ChainRegressor(loss="poisson").fit(X, y - 1.0)
    with pytest.raises(ValueError, match=r"`loss` .='gamma'. must be 'squared_error', 'poisson' or 'quantile'"):
        ChainRegressor(loss="gamma").fit(X, y)


def test_quantiles():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = X[:, 0] + rng.exponential(size=400) * (1.5 + np.tanh(X[:, 1]))
    settings = {"solver": Adam(schedules.cosine(0.05, 1000)), "batch_size": 400, "alpha": 0.0, "max_iter": 1000}
    from sklearn.linear_model import QuantileRegressor
    from sklearn.metrics import mean_pinball_loss

    for q in (0.1, 0.9):
        model = ChainRegressor((), loss="quantile", quantile=q, n_iter_no_change=np.inf, random_state=0, **settings).fit(X, y)
        other = QuantileRegressor(quantile=q, alpha=0.0).fit(X, y)
        mine, theirs = (mean_pinball_loss(y, each.predict(X), alpha=q) for each in (model, other))
        assert theirs <= mine * (1 + 1e-9)
        assert mine == pytest.approx(theirs, rel=1e-3)
        assert np.mean(y <= model.predict(X)) == pytest.approx(q, abs=0.01)
    with pytest.raises(ValueError, match=r"`quantile` .=1.0. must be in .0, 1."):
        ChainRegressor(loss="quantile", quantile=1.0).fit(X, y)


def test_settings_of_numpys_types_count():
    X, y = scaled(load_diabetes)
    settings = {"max_iter": 3, "random_state": 0}
    one, two = (ChainRegressor(batch_size=size, **settings).fit(X, y) for size in (13, np.int64(13)))
    np.testing.assert_array_equal(one.p_, two.p_)
    ChainRegressor(n_iter_no_change=np.inf, n_jobs=-1, **settings).fit(X, y)
    assert [c.shape[1] for c in ChainRegressor(range(2, 4), max_iter=1).fit(X, y).coefs_] == [2, 3, 1]


def test_warnings_say_what_to_do():
    """One for each fit, of the same text for the same settings, where the user called."""
    X, y = scaled(load_diabetes)
    for settings, reason in (
        ({}, "2 epochs, and the loss still improves; raise `max_iter`"),
        ({"early_stopping": True}, "2 epochs, and the validation score still improves; raise `max_iter`"),
        ({"solver": "lbfgs"}, r"raise `max_iter` .=2., or scale the data"),
    ):
        with pytest.warns(ConvergenceWarning, match=reason) as found:
            BaggingRegressor(ChainRegressor(max_iter=2, **settings), n_estimators=3).fit(X, y)
        assert len(found) == 3
        assert len({str(each.message) for each in found}) == 1
        with pytest.warns(ConvergenceWarning) as found:
            ChainRegressor(max_iter=2, **settings).fit(X, y)
        assert [each.filename for each in found] == [__file__]


SETTINGS = [
    (kind, dtype, seed)
    for seed, kind in enumerate(["one", "two", "column", "poisson", "binary", "classes", "labels"] * 7 + ["poisson"])
    for dtype in ([np.float32] if seed % 7 == 3 else [np.float64])
]


@pytest.mark.few(12)
@pytest.mark.parametrize(("kind", "dtype", "seed"), SETTINGS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_random_settings_train_as_in_scikit_learn(kind, dtype, seed):
    """From the same weights: the same losses, weights, epochs, shapes and types.

    Not compared: weights of samples with several batches, whose sum scikit-learn takes for each batch.
    """
    rng = np.random.default_rng(seed)
    n, features = 12 * int(rng.integers(2, 6)), int(rng.integers(1, 8))
    X = rng.normal(size=(n, features)).astype(dtype)
    y = {
        "one": rng.normal(size=n),
        "two": rng.normal(size=(n, 2)),
        "column": rng.normal(size=(n, 1)),
        "poisson": rng.poisson(2.0, n),
        "binary": np.where(np.arange(n) % 3 == 1, "yes", "no"),
        "classes": np.arange(n) % 3,
        "labels": rng.integers(0, 2, (n, 3)),
    }[kind]
    batch = ["auto", n, n // 3][rng.integers(3)]
    settings = {
        "hidden_layer_sizes": [(), (5,), 7, [4, 3]][rng.integers(4)],
        "activation": str(rng.choice(["identity", "logistic", "tanh", "relu"])),
        "solver": str(rng.choice(["adam", "sgd"])),
        "alpha": float(rng.choice([0.0, 1e-4, 1.0, 30.0])),
        "batch_size": batch,
        "learning_rate_init": float(rng.choice([1e-3, 1e-2])),
        "max_iter": int(rng.integers(1, 25)),
        "shuffle": False,
        "tol": 0.0 if kind == "two" else float(rng.choice([0.0, 1e-4, 1e-2])),
        "n_iter_no_change": int(rng.integers(1, 6)),
        "warm_start": True,
        "random_state": seed,
    }
    w = rng.random(n) if batch != n // 3 and seed % 2 else None
    if kind == "poisson":
        settings["loss"] = "poisson"
    classifies = kind in ("binary", "classes", "labels")
    begin = settings | {"max_iter": 1, "learning_rate_init": 1e-30}
    one, two = (kind(**begin) for kind in ((ChainClassifier, MLPClassifier) if classifies else (ChainRegressor, MLPRegressor)))
    one.fit(X, y)
    two.fit(X, y)
    for mine, theirs in zip((*one.coefs_, *one.intercepts_), (*two.coefs_, *two.intercepts_), strict=True):
        mine[...] = theirs
    two.loss_curve_, two.best_loss_, two._no_improvement_count = [], np.inf, 0  # of the call before
    one.set_params(**settings).fit(X, y, w)
    two.set_params(**settings).fit(X, y, w)
    rounded = dtype == np.float32 or settings["solver"] == "adam"  # which divides by the size of the gradient, 0 too
    close = {"rtol": 1e-2, "atol": 1e-3} if rounded else {"rtol": 1e-8, "atol": 1e-8}
    for mine, theirs in zip((*one.coefs_, *one.intercepts_), (*two.coefs_, *two.intercepts_), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, **close)
    for name in ("n_iter_", "t_", "n_layers_", "n_outputs_", "n_features_in_", "out_activation_"):
        assert getattr(one, name) == getattr(two, name)
    if kind != "two":  # of which scikit-learn's loss is a mean, and its gradient that of the sum
        np.testing.assert_allclose(one.loss_curve_, two.loss_curve_, **close)
        assert one.loss_ == pytest.approx(two.loss_, rel=1e-3)
        assert one.best_loss_ == pytest.approx(two.best_loss_, rel=1e-3)
    for call in ("predict", *(["predict_proba", "predict_log_proba"] if classifies else [])):
        mine, theirs = getattr(one, call)(X), getattr(two, call)(X)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, theirs, **close)
    assert one.score(X, y) == pytest.approx(two.score(X, y), abs=0.05 if classifies else 1e-3)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, lambda X, y: (X[:0], y[:0])),
        ({}, lambda X, y: (X[:, :0], y)),
        ({}, lambda X, y: (X, y[:5])),
        ({}, lambda X, y: (np.where(X > 1, np.nan, X), y)),
        ({}, lambda X, y: (sp.csr_array(np.where(X > 1, np.inf, X)), y)),
        ({}, lambda X, y: (X, np.where(y > 0, np.nan, y))),
        ({}, lambda X, y: (X[:, 0], y)),
        ({}, lambda X, y: (X.astype(complex), y)),
        ({}, lambda X, y: (X, None)),
        ({"hidden_layer_sizes": (0,)}, None),
        ({"alpha": -1.0}, None),
        ({"batch_size": 0}, None),
        ({"max_iter": 0}, None),
        ({"learning_rate_init": 0.0}, None),
        ({"tol": -1.0}, None),
        ({"solver": "newton"}, None),
        ({"activation": "swish"}, None),
        ({"n_iter_no_change": 0}, None),
        ({"validation_fraction": 1.5, "early_stopping": True}, None),
        ({"validation_fraction": 0.001, "early_stopping": True}, None),
    ],
)
@pytest.mark.parametrize("kinds", [(ChainRegressor, MLPRegressor), (ChainClassifier, MLPClassifier)])
def test_what_scikit_learn_refuses_is_refused(settings, change, kinds):
    X, y = scaled(load_breast_cancer)
    X, y = (X, y) if change is None else change(X, y.astype(np.float64))
    for kind in kinds:
        with pytest.raises((ValueError, TypeError)):
            kind(**settings).fit(X, y)


def test_tags_say_which_targets_fit():
    assert not ChainRegressor().__sklearn_tags__().target_tags.positive_only
    assert ChainRegressor(loss="poisson").__sklearn_tags__().target_tags.positive_only
    assert not ChainClassifier(class_weight="balanced").__sklearn_tags__().classifier_tags.multi_label


def test_intervals_contain_as_many_targets_as_they_say():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    model = ChainRegressor((4,), solver="lbfgs", max_iter=20, random_state=0).fit(x, np.sin(x[:, 0]))
    n, level, rounds = 24, 0.9, 400
    new = rng.normal(size=(rounds, n + 200, 2))
    noise = rng.exponential(1.0, new.shape[:2]) * np.exp(new[..., 1])  # skewed, and of different widths
    inside = []
    for x, t in zip(new, np.sin(new[..., 0]) + noise, strict=True):
        ends = model.conformalize(x[:n], t[:n]).predict_interval(x[n:], level)
        inside.append(np.mean((ends[:, 0] <= t[n:]) & (t[n:] <= ends[:, 1])))
    expected = 23 / 25  # of 24 errors the 23rd is above a new one with this probability: between level and level + 1 / 25
    assert abs(np.mean(inside) - expected) < 3 * np.std(inside) / rounds**0.5
    assert level <= expected <= level + 1 / (n + 1)


def test_intervals_of_several_outputs():
    rng = np.random.default_rng(0)
    x, errors = rng.normal(size=(9, 2)), np.arange(9.0)[:, None] * [1.0, 10.0]
    model = ChainRegressor((3,), solver="lbfgs", max_iter=3).fit(x, x)
    y = model.predict(x)
    assert model.conformalize(x, y - errors[::-1]) is model
    ends = model.predict_interval(x, 0.9)  # of ten places the ninth: the largest error
    np.testing.assert_allclose(ends, np.stack([y - errors[-1], y + errors[-1]], -1))
    np.testing.assert_allclose(model.predict_interval(x, 0.5)[..., 1], y + errors[4])
    assert np.isinf(model.predict_interval(x, 0.91)).all()
    np.testing.assert_allclose(model.predict_interval(x, 1e-12)[..., 1], y + errors[0])  # at least the smallest error


def test_intervals_need_errors_of_the_present_network():
    x = np.arange(12.0).reshape(6, 2)
    model = ChainRegressor((3,), solver="lbfgs", max_iter=3)
    with pytest.raises(NotFittedError):
        model.conformalize(x, x[:, 0])
    with pytest.raises(NotFittedError):
        model.predict_interval(x)
    model.fit(x, x[:, 0]).conformalize(x, x[:, 0])
    with pytest.raises(ValueError, match=r"`confidence_level` \(=1.0\)"):
        model.predict_interval(x, 1.0)
    with pytest.raises(ValueError, match="`y` must have 6 samples of 1 outputs"):
        model.conformalize(x, x)
    with pytest.raises(ValueError, match=r"`y` must have 6 samples of 1 outputs, got \(\)"):
        model.conformalize(x, 3.0)
    with pytest.raises(ValueError, match="must be finite"):
        model.conformalize(x, np.full(6, np.nan))
    with pytest.raises(NotFittedError, match="call `conformalize` first"):
        model.fit(x, x[:, 0]).predict_interval(x)
