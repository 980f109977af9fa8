"""The estimators of `chains.sklearn`: scikit-learn's own checks, and what goes beyond them."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest

import chains
from chains import SGD, Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, L2Penalty, Reshape, tanh

pytest.importorskip("sklearn", "1.6")

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from chains.sklearn import ChainClassifier, ChainRegressor
from chains.sklearn.watch import Watch

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
    with pytest.warns(ConvergenceWarning, match="3 epochs, and the loss still falls"):
        ChainClassifier(max_iter=3).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="L-BFGS has not converged"):
        ChainClassifier(solver="lbfgs", max_iter=3).fit(X, y)


def test_warm_start_goes_on():
    X, y = scaled(load_wine)
    model = ChainClassifier(max_iter=5, warm_start=True, random_state=0).fit(X, y)
    first = model.loss_curve_
    assert model.fit(X, y).loss_curve_[0] < first[-1]
    with pytest.raises(ValueError, match=r"`y` has classes \[0 1 7\] that were not there"):
        model.fit(X, np.where(y == 2, 7, y))
    again = clone(model).fit(X, y)
    assert again.loss_curve_ == first
    assert model.set_params(warm_start=False).fit(X, y).loss_curve_ == first


def test_partial_fit_is_an_epoch_each():
    X, y = scaled(load_wine)
    whole = ChainClassifier((10,), max_iter=6, random_state=0, shuffle=False).fit(X, y)
    model = ChainClassifier((10,), random_state=0, shuffle=False)
    for _ in range(6):
        model.partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_allclose(model.p_, whole.p_, rtol=1e-9)
    assert (model.n_iter_, len(model.loss_curve_), model.t_) == (6, 6, 6 * len(X))
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
