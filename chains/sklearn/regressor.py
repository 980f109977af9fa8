"""Regression by least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from chains.losses import Loss, SquaredLoss
from chains.sklearn.estimator import ChainEstimator


class ChainRegressor(RegressorMixin, ChainEstimator):
    """A network for regression by least squares, with the parameters of `sklearn.neural_network.MLPRegressor`.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        The units of each hidden layer.
    activation : str or Activation
        That of the hidden layers: "identity", "logistic", "tanh", "relu", or any of this package.
    solver : {"adam", "sgd", "lbfgs"} or Optimizer
        How to train; "sgd" has Nesterov's momentum of 0.9. Another optimiser has its own learning rate and schedule.
    alpha : float
        The strength of the penalty: alpha / 2 times the sum of squares of the weights, divided by the samples of a batch.
    batch_size : int or "auto"
        Samples a step; "auto" is 200, or all where there are fewer.
    learning_rate_init : float
        The learning rate of "adam" and "sgd".
    max_iter : int
        Epochs at most, or iterations of "lbfgs".
    shuffle : bool
        Whether to take the samples in a new order in each epoch.
    random_state : int, RandomState or None
        Decides starting values, order and validation samples.
    tol : float
        What counts as progress of the loss, or of the validation score; for "lbfgs" the gradient's largest entry.
    verbose : bool
        Whether to show the progress.
    warm_start : bool
        Whether `fit` goes on from the parameters of the last call.
    early_stopping : bool
        Whether to hold out a part of the samples, stop when the score on them makes no progress, and keep the best epoch.
    validation_fraction : float
        How large a part.
    n_iter_no_change : int
        Training stops after more than so many epochs without progress.
    network : Chain or callable, optional
        The network, or a function of the numbers of features and outputs that gives one, in place of `hidden_layer_sizes` and
        `activation`.
    n_jobs : int, optional
        Threads of `fit`; None is one, as everywhere in scikit-learn, since it trains several networks at once.
    backend : str
        That of the network; see `chains.Chain`.

    Attributes
    ----------
    net_ : Chain
        The network.
    p_, state_ : arrays
        Its parameters and its state; the state is None for most networks.
    coefs_, intercepts_ : lists of arrays
        Weights and biases, views into `p_`.
    loss_curve_ : list of float
        The loss of each epoch, with the penalty.
    loss_, best_loss_ : float
        The last and the smallest one.
    n_iter_, t_ : int
        Epochs or iterations; samples seen.
    validation_scores_, best_validation_score_ : list of float, float
        With `early_stopping`: R^2 after each epoch, and the best.
    n_outputs_, n_features_in_ : int
        Numbers of outputs and of features.

    Notes
    -----
    Differences from MLPRegressor: no learning-rate schedules but those of an `Optimizer`; sparse matrices are refused; the loss
    of several outputs is their sum, as its gradient is there.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChainRegressor((32,), solver="lbfgs", alpha=1.0, max_iter=500, random_state=0).fit(X, y)
    """

    def _targets(self, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Loss]:
        t = np.asarray(y, dtype=np.float64)
        if first:
            self._flat = t.ndim == 1
            self.n_outputs_ = 1 if t.ndim == 1 else t.shape[1]
        t = t.reshape(len(t), -1)
        if t.shape[1] != self.n_outputs_:
            raise ValueError(f"`y` must have {self.n_outputs_} outputs, as in the first call, got {t.shape[1]}")
        return t, SquaredLoss()

    def _score(self, y: np.ndarray, outputs: np.ndarray) -> float:
        return float(r2_score(y, outputs))

    def predict(self, X: Any) -> np.ndarray:
        """The predictions, shape (n_samples,) or (n_samples, n_outputs), for samples `X` (n_samples, n_features)."""
        outputs = self._outputs(X)
        return outputs.ravel() if self._flat else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
