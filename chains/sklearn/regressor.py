"""Regression by least squares, of counts by Poisson's deviance, or of quantiles."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from chains.expr import log, maximum
from chains.losses import ElementwiseLoss, Loss, SquaredLoss, pinball, pinball_slope, poisson, poisson_slope
from chains.losses import loss as make_loss
from chains.sklearn.estimator import ChainEstimator
from chains.support.checks import check_number, check_word

SMALLEST = 1e-37  # of a count's logarithm, which is multiplied by the count


def _half_deviance(y: Any, t: Any) -> Any:
    """Half of Poisson's deviance, for the logarithm y of the mean."""
    return poisson(y, t) + t * (log(maximum(t, SMALLEST)) - 1.0)


@dataclass(eq=False, repr=False)
class ChainRegressor(RegressorMixin, ChainEstimator):
    """A network for regression, with the parameters of `sklearn.neural_network.MLPRegressor`.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        The units of each hidden layer.
    activation : str or Activation
        That of the hidden layers: "identity", "logistic", "tanh", "relu", or any of this package.
    solver : {"adam", "sgd", "lbfgs"} or Optimizer
        The method of training. "sgd" has Nesterov's momentum of 0.9; "lbfgs" takes all samples in each iteration.
    alpha : float
        The strength of the penalty: alpha / 2 times the sum of squares of the weights, divided by the samples of a batch.
    batch_size : int or "auto"
        Samples a step; "auto" is 200, or all of fewer samples.
    learning_rate_init : float
        The learning rate of "adam" and "sgd". An optimiser has its own: ``solver__learning_rate`` in searches.
    max_iter : int
        The largest number of epochs, or of iterations of "lbfgs".
    shuffle : bool
        Whether to take the samples in a new order in each epoch.
    random_state : int, RandomState or None
        The seed of starting values, order and validation samples.
    tol : float
        The least progress of the loss or of the validation score; for "lbfgs" the largest entry of the gradient at the end.
    verbose : bool
        Whether to show the progress.
    warm_start : bool
        Whether `fit` begins with the parameters of the last call.
    early_stopping : bool
        Whether to hold out a part of the samples, stop when the score on them makes no progress, and keep the best epoch.
    validation_fraction : float
        The size of this part.
    n_iter_no_change : int
        Training stops after more epochs than this without progress; inf for never.
    network : Chain or callable, optional
        The network, instead of `hidden_layer_sizes` and `activation`; or a function of the numbers of features and outputs that
        returns one.
    n_jobs : int, optional
        Threads of `fit`: None for one, as everywhere in scikit-learn, and -1 for all processors.
    backend : str
        That of the network; see `chains.Chain`.
    loss : {"squared_error", "poisson", "quantile"}
        "squared_error" is half the square; "poisson" is half of Poisson's deviance, for targets from zero, and the network
        gives the logarithm of the mean; "quantile" is the pinball loss, as in `sklearn.linear_model.QuantileRegressor`.
    quantile : float
        The quantile that "quantile" predicts, in (0, 1).

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
        Epochs or iterations of the last call; samples seen.
    validation_scores_, best_validation_score_ : list of float, float
        With `early_stopping`: R^2 after each epoch, and the best.
    n_layers_, n_outputs_, n_features_in_ : int
        Numbers of layers of units, of outputs and of features.
    out_activation_ : str
        "identity", or "exp" for "poisson".
    conformity_scores_ : array, shape (n_calibration_samples, n_outputs)
        After `conformalize`: the absolute errors, in ascending order.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ChainRegressor((32,), solver="lbfgs", alpha=1.0, max_iter=500, random_state=0).fit(X, y)
    """

    _: KW_ONLY
    loss: str = "squared_error"
    quantile: float = 0.5

    def _targets(self, y: Any, first: bool, partial: bool, classes: Any = None) -> tuple[np.ndarray, Loss]:
        check_word("loss", self.loss, "squared_error", "poisson", "quantile")
        check_number("quantile", self.quantile, "in (0, 1)")
        t = np.asarray(y, dtype=np.float64)
        if t.ndim == 2 and t.shape[1] == 1:
            t = column_or_1d(t, warn=True)
        t = t.reshape(len(t), -1)
        if self.loss == "poisson" and t.min() < 0:
            raise ValueError(f"`y` must not be negative with `loss` (='poisson'), got {t.min():g}")
        if hasattr(self, "conformity_scores_"):
            del self.conformity_scores_  # of the earlier network
        if first:
            self.n_outputs_ = t.shape[1]
        if t.shape[1] != self.n_outputs_:
            raise ValueError(f"`y` must have {self.n_outputs_} outputs, as in the first call, got {t.shape[1]}")
        self.out_activation_ = "exp" if self.loss == "poisson" else "identity"
        return t, self._loss()

    def _loss(self) -> Loss:
        if self.loss == "poisson":
            return ElementwiseLoss("poisson", _half_deviance, poisson_slope)
        if self.loss == "quantile":
            q = float(self.quantile)
            return make_loss("quantile", lambda y, t: pinball(y, t, q), derivative=lambda y, t: pinball_slope(y, t, q))
        return SquaredLoss()

    def _score(self, y: np.ndarray, outputs: np.ndarray, weights: np.ndarray | None) -> float:
        outputs = self._mean(outputs)
        return float(r2_score(y, outputs, sample_weight=weights)) if np.isfinite(outputs).all() else math.nan

    def _mean(self, outputs: np.ndarray) -> np.ndarray:
        return np.exp(outputs) if getattr(self, "out_activation_", "") == "exp" else outputs  # none in pickles of version 0.2

    def predict(self, X: Any) -> np.ndarray:
        """The predictions, shape (n_samples,) or (n_samples, n_outputs), for samples `X` (n_samples, n_features)."""
        outputs = self._mean(self._outputs(X))
        return outputs.ravel() if self.n_outputs_ == 1 else outputs

    def conformalize(self, X: Any, y: Any) -> ChainRegressor:
        """Keep the errors of samples that `fit` has not seen, for `predict_interval`: split conformal prediction.

        Parameters
        ----------
        X, y : arrays
            As of `fit`: samples that are exchangeable with those to predict.

        Returns
        -------
        self
        """
        targets, predicted = np.asarray(y, dtype=np.float64), np.reshape(self.predict(X), (-1, self.n_outputs_))
        if targets.shape not in (predicted.shape, predicted.shape[: 1 if self.n_outputs_ == 1 else 2]):
            raise ValueError(f"`y` must have {len(predicted)} samples of {self.n_outputs_} outputs, got {targets.shape}")
        errors = abs(targets.reshape(predicted.shape) - predicted)
        if not np.isfinite(errors).all():
            raise ValueError("`y` and the predictions for `X` must be finite")
        self.conformity_scores_: np.ndarray = np.sort(errors, axis=0)
        return self

    def predict_interval(self, X: Any, confidence_level: float = 0.9) -> np.ndarray:
        """Intervals around the predictions that contain a target with at least this probability.

        The probability is over the calibration samples and the new one together, whatever the network and the distribution:
        with n calibration samples it is between the level and ``level + 1 / (n + 1)``, if no two errors are equal. All
        intervals of an output have the same width. Sources: Papadopoulos et al. 2002; Lei et al. 2018.

        Parameters
        ----------
        X : array, shape (n_samples, n_features)
            The samples.
        confidence_level : float
            The probability, for each output separately, in (0, 1).

        Returns
        -------
        array, shape (n_samples, 2) or (n_samples, n_outputs, 2)
            The lower and the upper end. They are infinite if `conformalize` had too few samples for this level.
        """
        check_is_fitted(self)
        check_number("confidence_level", confidence_level, "in (0, 1)")
        if not hasattr(self, "conformity_scores_"):
            raise NotFittedError(
                "`predict_interval` needs errors of other samples than those of `fit`: call `conformalize` first"
            )
        scores = self.conformity_scores_
        rank = max(1, math.ceil((len(scores) + 1) * confidence_level - 1e-9))  # 1e-9: 0.9 * 10 is 9
        width = scores[rank - 1] if rank <= len(scores) else np.full(scores.shape[1], np.inf)
        y = self.predict(X).reshape(-1, self.n_outputs_)
        ends = np.stack([y - width, y + width], -1)
        return ends[:, 0] if self.n_outputs_ == 1 else ends

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
