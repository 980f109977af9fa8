"""The code that regressor and classifier share: settings, the network and its training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from chains.activations import Activation, identity
from chains.chain import Chain
from chains.initializers import Uniform
from chains.layers import Dense
from chains.losses import Loss
from chains.minimize.minimize import minimize
from chains.optimizers import SGD, Adam, Optimizer
from chains.penalties import L2Penalty
from chains.sklearn.sparse import SparseBatches, outputs_of, summed
from chains.support.checks import check_count, check_flags, check_number, check_word, whole
from chains.support.messages import counted, shown
from chains.support.threads import num_threads
from chains.training.history import History
from chains.training.run import TrainingState
from chains.training.train import train

LEARNING_RATE = 0.001  # the default of `learning_rate_init`


def with_settings(optimizer: Any, settings: dict[str, Any]) -> Optimizer:
    """The same optimiser with other settings; "optimizer__eps" is a setting of its setting `optimizer`.

    Raises ValueError for an unknown setting.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"`solver` (={optimizer!r}) must be an optimiser, such as Adam(), to have the parameters {sorted(settings)}"
        )
    known = optimizer.get_params()
    inner: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        head, _, rest = name.partition("__")
        if head not in known:
            raise ValueError(f"{name!r} is no parameter of {optimizer!r}; there are {', '.join(sorted(known))}")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, those in inner.items():
        own[head] = with_settings(own.get(head, getattr(optimizer, head)), those)
    return replace(optimizer, **own)


class Watch:
    """Counts the epochs of a run without progress, keeps the best parameters, and decides when to stop.

    `score` gives the number to watch of the validation samples; larger is better. By default it is the negative loss.
    """

    def __init__(self, tol: float, patience: int, score: Callable[[TrainingState], float] | None) -> None:
        self.tol, self.patience, self.score = tol, patience, score
        self.scores: list[float] = []
        self.best, self.waited = -math.inf, 0
        self.kept: tuple[np.ndarray, np.ndarray | None] | None = None

    @property
    def epochs_at_once(self) -> int:
        """The number of epochs up to the next check: losses that cannot end training are checked later."""
        return self.patience + 1 - self.waited if self.score is None else 1

    def __call__(self, state: TrainingState) -> str | None:
        if self.score is not None:
            self._look(self.score(state), state)
        else:
            for loss in state.history.loss[len(self.scores) :]:
                self._look(-loss, state)
        return f"no progress by {self.tol:g} in {self.patience} epochs" if self.waited > self.patience else None

    def _look(self, value: float, state: TrainingState) -> None:
        self.scores.append(value)
        self.waited = 0 if value >= self.best + self.tol else self.waited + 1
        if value > self.best:
            self.best = value
            if self.score is not None:
                self.kept = state.p.copy(), None if state.state is None else state.state.copy()


class DivergedError(ValueError, FloatingPointError):
    """A fit whose loss is not finite: a ValueError, as of scikit-learn's networks, which searches over parameters score."""


Factory = Callable[[int, int], Chain]


def is_stochastic(estimator: Any) -> bool:
    if isinstance(estimator.solver, str) and estimator.solver == "lbfgs":
        raise AttributeError("partial_fit needs a solver that takes steps, such as 'adam', not 'lbfgs'")
    return True


@dataclass(eq=False, repr=False)
class ChainEstimator(BaseEstimator):
    """The base class of regressor and classifier. Their docstrings describe the parameters."""

    hidden_layer_sizes: int | Sequence[int] = (100,)
    activation: str | Activation = "relu"
    _: KW_ONLY
    solver: str | Optimizer = "adam"
    alpha: float = 0.0001
    batch_size: int | str = "auto"
    learning_rate_init: float = LEARNING_RATE
    max_iter: int = 200
    shuffle: bool = True
    random_state: Any = None
    tol: float = 1e-4
    verbose: bool = False
    warm_start: bool = False
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    network: Chain | Factory | None = None
    n_jobs: int | None = None
    backend: str = "auto"

    def _begin(self, X: np.ndarray, random: np.random.RandomState) -> None:
        """Make the network and its first parameters."""
        self.net_ = self._network(X.shape[1], self.n_outputs_)
        self.p_: np.ndarray = self.net_.init(int(random.randint(2**31)), X.dtype)
        self.state_: np.ndarray | None = self.net_.init_state(X.dtype) if self.net_.n_state else None
        self.t_ = self.n_iter_ = 0
        self.loss_curve_: list[float] = []
        self._history: History | None = None  # that partial_fit resumes

    # What differs

    def _targets(self, y: Any, first: bool, partial: bool, classes: Any = None) -> tuple[np.ndarray, Loss]:
        """The targets of the network, and the loss. In the `first` call it sets the attributes of the outputs.

        A `partial` call may lack some of the classes.
        """
        raise NotImplementedError

    def _score(self, y: np.ndarray, outputs: np.ndarray, weights: np.ndarray | None) -> float:
        """The score of the network's outputs, larger is better."""
        raise NotImplementedError

    def _class_weights(self, y: np.ndarray, weights: np.ndarray | None, partial: bool) -> np.ndarray | None:
        """Factors of the samples' losses from their classes; `weights` are those of the samples."""
        return None

    # Public methods

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train the network.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            Float32 stays float32, anything else becomes float64; the type is that of the computation. Of a sparse matrix, only
            the rows of a batch are made dense.
        y : array, shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array, shape (n_samples,), optional
            Weights of the samples' losses, divided by their sum. A weight of 2 has the effect of two equal samples.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For data that do not fit, and if training diverges.
        """
        return self._fit(X, y, sample_weight, first=not (self.warm_start and hasattr(self, "net_")))

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, first: bool, partial: bool = False, classes: Any = None) -> Any:
        self._check_settings()
        if partial and self.early_stopping:
            raise ValueError("`early_stopping` (=True) is for `fit`: `partial_fit` holds no samples out")
        X, y = validate_data(
            self, X, y, reset=first, accept_sparse="csr", multi_output=True, dtype=(np.float64, np.float32), order="C",
            y_numeric=False,
        )  # fmt: skip
        y = y.toarray() if issparse(y) else y
        weights = (
            None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        )
        t, loss = self._targets(y, first, partial, classes)
        class_weights = self._class_weights(y, weights, partial)
        random = check_random_state(self.random_state)
        self._continue(X, random, first, partial)
        self.best_loss_: float | None = None
        self.best_validation_score_: float | None = None
        self.validation_scores_: list[float] | None = None
        score: Callable[[TrainingState], float] | None = None
        if self.early_stopping:
            kept, held = self._split(y, random)
            xv, yv, wv = X[held], y[held], None if weights is None else weights[held]
            score = lambda state: self._score(yv, outputs_of(self.net_, state.p, xv, state.state), wv)  # noqa: E731
            X, t = X[kept], t[kept]
            weights, class_weights = (None if w is None else w[kept] for w in (weights, class_weights))
        if class_weights is not None:
            weights = (class_weights if weights is None else weights * class_weights).astype(X.dtype)
        try:
            with num_threads(effective_n_jobs(self.n_jobs)):
                if self.solver == "lbfgs":
                    self._minimize(X, t, loss, weights)
                else:
                    self._train(X, t, loss, weights, score, random, partial)
        except FloatingPointError as error:
            raise DivergedError(f"training has diverged: {error}") from error
        return self

    def _continue(self, X: Any, random: Any, first: bool, partial: bool) -> None:
        """Begin with fresh parameters, or from those of the last call in the type of `X`."""
        if first:
            self._begin(X, random)
        elif self.p_.dtype != X.dtype:
            self.p_ = self.p_.astype(X.dtype)
            self.state_ = None if self.state_ is None else self.state_.astype(X.dtype)
            self._history = None  # of another type
        if not partial:
            self._history = None
            self.loss_curve_ = []

    @available_if(is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one epoch on these samples, from where the last call has left off.

        Parameters
        ----------
        X : array or sparse matrix, shape (n_samples, n_features)
            The samples.
        y : array, shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array, shape (n_samples,), optional
            As in `fit`.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, first=not hasattr(self, "net_"), partial=True)

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "net_")
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=(np.float64, np.float32), order="C")
        return outputs_of(self.net_, self.p_, X, self.state_)

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of an optimiser: `solver__learning_rate` changes the learning rate of `solver`.

        Parameters
        ----------
        **params
            Parameters by name.

        Returns
        -------
        self
        """
        solver = {name.removeprefix("solver__"): value for name, value in params.items() if name.startswith("solver__")}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith("solver__")})
        if solver:
            self.solver = with_settings(self.solver, solver)
        return self

    @property
    def n_layers_(self) -> int:
        """The number of layers of units, including inputs and outputs."""
        return len(self.coefs_) + 1

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The weights of all layers, views into `p_`."""
        return [view for name, view in self.net_.views(self.p_).items() if name.endswith(".weight")]

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The biases of all layers, views into `p_`."""
        return [view for name, view in self.net_.views(self.p_).items() if name.endswith(".bias")]

    # How it is done

    def _check_settings(self) -> None:
        check_flags(shuffle=self.shuffle, warm_start=self.warm_start, early_stopping=self.early_stopping)
        check_number("alpha", self.alpha, "in [0, inf)")
        check_number("tol", self.tol, "in [0, inf)")
        check_number("learning_rate_init", self.learning_rate_init, "in (0, inf)")
        check_count("max_iter", self.max_iter)
        if self.n_iter_no_change != math.inf:
            check_count("n_iter_no_change", self.n_iter_no_change, also=", or inf")
        if self.n_jobs is not None and (whole(self.n_jobs, -math.inf) or 0) == 0:
            raise ValueError(
                f"`n_jobs` (={shown(self.n_jobs)}) must be a number of threads, -1 for all processors, or None for 1"
            )
        if not isinstance(self.batch_size, str) or self.batch_size != "auto":
            check_count("batch_size", self.batch_size, also=", or 'auto'")
        if isinstance(self.solver, Optimizer):
            if self.learning_rate_init not in (LEARNING_RATE, self.solver.learning_rate):
                raise ValueError(
                    f"`learning_rate_init` (={self.learning_rate_init!r}) is for the solvers 'adam' and 'sgd', but `solver` is "
                    f"{self.solver!r}: set its learning rate, by `solver__learning_rate` in searches"
                )
        else:
            check_word("solver", self.solver, "adam", "sgd", "lbfgs")
        if self.early_stopping and not 0 < self.validation_fraction < 1:
            raise ValueError(f"`validation_fraction` (={self.validation_fraction!r}) must be in (0, 1)")
        if self.early_stopping and self.solver == "lbfgs":
            raise ValueError("`early_stopping` needs a `solver` that takes steps, such as 'adam', not 'lbfgs'")

    def _network(self, inputs: int, outputs: int) -> Chain:
        if self.network is None:
            sizes = self.hidden_layer_sizes
            sizes = [inputs, *(sizes if np.iterable(sizes) and not isinstance(sizes, str) else [sizes]), outputs]
            f = "sigmoid" if self.activation == "logistic" else self.activation
            layers = []
            for k, (before, after) in enumerate(pairwise(sizes)):
                units = check_count("hidden_layer_sizes", before) + check_count("hidden_layer_sizes", after)
                bound = math.sqrt((2.0 if self.activation == "logistic" else 6.0) / units)  # as in scikit-learn
                init = Uniform(-bound, bound)
                layers.append(Dense(before, after, f if k < len(sizes) - 2 else identity, weight_init=init, bias_init=init))
            return Chain(*layers, backend=self.backend)
        net = self.network if isinstance(self.network, Chain) else self.network(inputs, outputs)
        if not isinstance(net, Chain):
            raise TypeError(
                f"`network` must be a Chain, or a function (n_features, n_outputs) that gives one, got {shown(net)}"
            )
        if (net.input_shape, net.output_shape) != ((inputs,), (outputs,)):
            raise ValueError(
                f"`network` must turn samples of shape ({inputs},) into outputs ({outputs},), got {net.input_shape} and "
                f"{net.output_shape}; begin with a Reshape for images"
            )
        return net

    def _problem(self, X: np.ndarray, weights: np.ndarray | None, batch: int) -> dict[str, Any]:
        """Weights that add up to the number of samples times `_scale`, and the penalty for them.

        As in scikit-learn, alpha / 2 times the sum of squares of the weights is divided by the samples of a batch.
        """
        samples, scale = X.shape[0], self._scale
        total = float(samples) if weights is None else float(weights.sum())
        if total <= 0:
            raise ValueError("the weights of the samples must have a positive sum")
        if weights is not None:
            weights = weights * X.dtype.type(scale * samples / total)
        elif scale != 1.0:
            weights = np.full(samples, scale, X.dtype)
        has_weights = any(entry.name.endswith(".weight") for entry in self.net_.layout)
        strength = 0.5 * self.alpha / (batch * total / samples)
        return {"weights": weights, "penalty": L2Penalty(strength, "*.weight") if self.alpha and has_weights else None}

    def _minimize(self, X: Any, t: np.ndarray, loss: Loss, weights: np.ndarray | None) -> None:
        problem = self._problem(X, weights, X.shape[0])
        make = summed if issparse(X) else type(self.net_).objective
        objective = make(self.net_, X, t, loss, state=self.state_, **problem)
        found = minimize(objective, self.p_, "L-BFGS", gtol=self.tol, maxiter=self.max_iter, progress=bool(self.verbose))
        if not math.isfinite(found.fun):
            raise FloatingPointError(found.message)
        self.p_ = found.x.astype(X.dtype)
        self.loss_, self.n_iter_ = float(found.fun), found.nit
        if not found.success:
            advice = f"raise `max_iter` (={self.max_iter})" if found.nit >= self.max_iter else f"raise `tol` (={self.tol:g})"
            warnings.warn(
                f"'lbfgs' has not converged: {found.message}; {advice}, or scale the data", ConvergenceWarning, stacklevel=4
            )

    def _split(self, y: np.ndarray, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the samples to train on, and of those held out."""
        shares = {"test_size": self.validation_fraction, "stratify": self._strata(y)}
        kept, held = train_test_split(np.arange(len(y)), random_state=random, **shares)
        if len(held) < 2:
            raise ValueError(
                f"`early_stopping` holds out {len(held)} of {len(y)} samples, too few for a score: raise `validation_fraction` "
                f"(={self.validation_fraction:g})"
            )
        return np.sort(kept), np.sort(held)

    def _train(
        self, X: Any, t: np.ndarray, loss: Loss, weights: np.ndarray | None,
        score: Callable[[TrainingState], float] | None, random: np.random.RandomState, partial: bool,
    ) -> None:  # fmt: skip
        samples = len(t)
        batch = min(200 if isinstance(self.batch_size, str) else int(self.batch_size), samples)
        watch = Watch(self.tol, min(self.n_iter_no_change, self.max_iter), score)
        problem = self._problem(X, weights, batch)
        batches: dict[str, Any] = {"batch_size": batch, "shuffle": self.shuffle}
        seed = int(random.randint(2**31))
        data: dict[str, Any] = {"x": X, "t": t, **batches, **problem}
        if issparse(X):
            epoch = len(self.loss_curve_) if self._history is not None else 0
            source = SparseBatches(X, t, problem["weights"], **batches, seed=seed, epoch=epoch)
            data = {"x": source, "t": None, "penalty": problem["penalty"]}
        history = train(
            self.net_, self.p_, loss=loss, optimizer=self._optimizer(), epochs=1 if partial else self.max_iter, seed=seed,
            state=self.state_, progress=bool(self.verbose), callbacks=() if partial else [watch],
            resume=self._history if partial else None, **data,
        )  # fmt: skip
        self._history = history
        self.loss_curve_ += history.loss
        self.loss_ = history.loss[-1]
        self.n_iter_ = history.epochs
        self.t_ += history.epochs * samples
        if score is None:
            self.best_loss_ = min(self.loss_curve_)
        else:
            self.validation_scores_, self.best_validation_score_ = watch.scores, watch.best
        if watch.kept is not None:
            self.p_, self.state_ = watch.kept
        if partial or watch.waited > watch.patience:
            return
        watched = "loss" if score is None else "validation score"
        advice = "raise `max_iter`, or the learning rate" if not history.stopped else "call `fit` again"
        reason = history.stopped or f"{counted(self.max_iter, 'epoch')}, and the {watched} still improves"
        warnings.warn(f"training has not converged: {reason}; {advice}", ConvergenceWarning, stacklevel=4)

    def _strata(self, y: np.ndarray) -> np.ndarray | None:
        return None

    _scale = 1.0  # of the loss

    def _optimizer(self) -> Optimizer:
        if isinstance(self.solver, Optimizer):
            return self.solver
        rate = self.learning_rate_init
        return Adam(rate) if self.solver == "adam" else SGD(rate, momentum=0.9, nesterov=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
