"""Classification by the cross-entropy."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import column_or_1d, compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from chains.losses import BCEWithLogitsLoss, CrossEntropyLoss, Loss
from chains.sklearn.estimator import ChainEstimator, is_stochastic


@dataclass(eq=False, repr=False)
class ChainClassifier(ClassifierMixin, ChainEstimator):
    """A network for classification by the cross-entropy, with the parameters of `sklearn.neural_network.MLPClassifier`.

    The network gives logits: one for two classes, else one for each class. Targets of rows of zeros and ones (n_samples,
    n_classes) are labels that do not exclude each other.

    Parameters
    ----------
    hidden_layer_sizes, activation, solver, alpha, batch_size, learning_rate_init, max_iter, shuffle, random_state, tol, verbose
        As of `ChainRegressor`.
    warm_start, early_stopping, validation_fraction, n_iter_no_change, network, n_jobs, backend
        As of `ChainRegressor`.
    class_weight : dict, "balanced" or None
        Factors of the losses of each class, by class; "balanced" takes n_samples / (n_classes * the samples of the class), with
        samples counted by their `sample_weight`. They are multiplied by `sample_weight`.

    Attributes
    ----------
    classes_ : array
        The classes.
    validation_scores_, best_validation_score_ : list of float, float
        With `early_stopping`: the accuracy after each epoch, and the best.
    out_activation_ : str
        The function from outputs of the network to probabilities: "softmax" for several classes, else "logistic".
    net_, p_, state_, coefs_, intercepts_, loss_curve_, loss_, best_loss_, n_iter_, t_, n_layers_, n_outputs_, n_features_in_
        As of `ChainRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ChainClassifier((32,), max_iter=50, random_state=0).fit(X / 16, y)
    """

    _: KW_ONLY
    class_weight: dict[Any, float] | str | None = None

    def _targets(self, y: Any, first: bool, partial: bool, classes: Any = None) -> tuple[np.ndarray, Loss]:
        check_classification_targets(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if first:
            self._labels = LabelBinarizer().fit(y if classes is None else classes)
            if classes is not None and type_of_target(y) == "multilabel-indicator":
                self._labels = LabelBinarizer().fit(np.vstack([np.ones((1, len(classes)), int), np.asarray(y)]))
            self.classes_ = self._labels.classes_
            if len(self.classes_) < 2:
                raise ValueError(f"a classifier needs two classes at least, got one class: {self.classes_[0]}")
            self.n_outputs_ = 1 if self._labels.y_type_ == "binary" else len(self.classes_)
            self.out_activation_ = "softmax" if self._labels.y_type_ == "multiclass" else "logistic"
        several = self._labels.y_type_ == "multilabel-indicator"
        if several != (type_of_target(y) == "multilabel-indicator"):
            wanted = f"rows of {self.n_outputs_} zeros and ones" if several else "a vector of classes"
            raise ValueError(f"`y` must be {wanted}, as in the first call, got shape {y.shape}")
        if not np.isin(found := unique_labels(y), self.classes_).all():
            raise ValueError(f"`y` has the classes {found}, but those of the first call are {self.classes_}")
        if not partial and not several and len(found) < len(self.classes_):
            raise ValueError(
                f"`y` has the classes {found}, but `warm_start` continues with those of the call before, {self.classes_}: set "
                "it to False, or call `partial_fit`, which takes some of the classes"
            )
        if self._labels.y_type_ == "multiclass":
            return np.searchsorted(self.classes_, y), CrossEntropyLoss()
        return np.asarray(self._labels.transform(y), dtype=np.float64), BCEWithLogitsLoss()

    def _class_weights(self, y: np.ndarray, weights: np.ndarray | None, partial: bool) -> np.ndarray | None:
        if self.class_weight is None:
            return None
        if not isinstance(self.class_weight, dict) and self.class_weight != "balanced":
            raise ValueError(f"`class_weight` (={self.class_weight!r}) must be a dict of numbers by class, 'balanced' or None")
        if self._labels.y_type_ == "multilabel-indicator":
            raise ValueError("`class_weight` is for classes that exclude each other; weigh samples by `sample_weight`")
        index = np.searchsorted(self.classes_, np.ravel(y))
        if isinstance(self.class_weight, dict):
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_)
            if not (np.isfinite(factors) & (factors >= 0)).all():
                raise ValueError(f"`class_weight` (={self.class_weight}) must have finite numbers, zero or positive")
            return factors[index]
        if partial:
            raise ValueError(
                "`class_weight` (='balanced') is not for partial_fit, which does not know how many samples there are of each "
                "class: pass a dict, such as of sklearn.utils.compute_class_weight('balanced', classes=..., y=...)"
            )
        counts = np.bincount(index, weights, len(self.classes_))
        if not counts.all():
            raise ValueError(
                f"`class_weight` (='balanced') needs samples of each class, but {self.classes_[counts == 0]} has none"
            )
        return (counts.sum() / (len(counts) * counts))[index]

    @property
    def _scale(self) -> float:  # type: ignore[override]
        """BCEWithLogitsLoss is a mean over labels; scikit-learn's loss is a sum."""
        return float(self.n_outputs_) if self._labels.y_type_ == "multilabel-indicator" else 1.0

    def _strata(self, y: np.ndarray) -> np.ndarray | None:
        if self._labels.y_type_ == "multilabel-indicator":
            return None
        y = np.ravel(y)
        counts = np.unique(y, return_counts=True)[1]
        held = math.ceil(self.validation_fraction * len(y))
        return y if min(counts) > 1 and len(counts) <= min(held, len(y) - held) else None  # few samples are drawn from all

    def _score(self, y: np.ndarray, outputs: np.ndarray, weights: np.ndarray | None) -> float:
        return float(accuracy_score(y, self._decided(outputs), sample_weight=weights))

    def _decided(self, outputs: np.ndarray) -> np.ndarray:
        if self._labels.y_type_ == "multiclass":
            return self.classes_[outputs.argmax(axis=1)]
        if self._labels.y_type_ == "binary":
            return self.classes_[(outputs[:, 0] > 0).astype(int)]
        return (outputs > 0).astype(int)

    @available_if(is_stochastic)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Train for one epoch on these samples, continuing the last call.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            The samples.
        y : array, shape (n_samples,)
            Their classes.
        classes : array, optional
            All classes; needed in the first call.
        sample_weight : array, shape (n_samples,), optional
            As in `fit`.

        Returns
        -------
        self
        """
        first = not hasattr(self, "net_")
        if first and classes is None:
            raise ValueError("`classes` must be given in the first call of partial_fit: all classes there are")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"`classes` ({classes}) must be those of the first call, {self.classes_}")
        return self._fit(X, y, sample_weight, first=first, partial=True, classes=classes)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each of the samples `X` (n_samples, n_features)."""
        return self._decided(self._outputs(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the classes, shape (n_samples, n_classes), in the order of `classes_`."""
        outputs = self._outputs(X)
        if self._labels.y_type_ == "multiclass":
            e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            return e / e.sum(axis=1, keepdims=True)
        e = np.exp(-abs(outputs))
        p = np.where(outputs >= 0, 1.0, e) / (1.0 + e)
        return np.hstack([1.0 - p, p]) if self._labels.y_type_ == "binary" else p

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.class_weight is None
        return tags
