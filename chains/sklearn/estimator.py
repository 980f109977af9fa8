"""What the regressor and the classifier share: settings, the network, how it is trained."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from chains.activations import Activation, identity
from chains.chain import Chain
from chains.checks import check_count, check_flags, check_number, check_word
from chains.initializers import Uniform
from chains.layers import Dense
from chains.losses import Loss
from chains.messages import shown
from chains.minimize import minimize
from chains.optimizers import SGD, Adam, Optimizer
from chains.penalties import L2Penalty
from chains.sklearn.watch import Watch
from chains.threads import num_threads
from chains.training.history import History
from chains.training.run import TrainingState
from chains.training.train import train

Factory = Callable[[int, int], Chain]


def is_stochastic(estimator: Any) -> bool:
    if isinstance(estimator.solver, str) and estimator.solver == "lbfgs":
        raise AttributeError("partial_fit needs a solver that takes steps, such as 'adam', not 'lbfgs'")
    return True


class ChainEstimator(BaseEstimator):
    """What regressor and classifier share. Their docstrings say what the parameters are."""

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str | Activation = "relu",
        *,
        solver: str | Optimizer = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.001,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool = False,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        network: Chain | Factory | None = None,
        n_jobs: int | None = None,
        backend: str = "auto",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.network = network
        self.n_jobs = n_jobs
        self.backend = backend

    net_: Chain
    p_: np.ndarray
    state_: np.ndarray | None
    loss_curve_: list[float]
    _history: History | None  # what partial_fit goes on from

    # What differs

    def _targets(self, y: Any, first: bool, classes: Any = None) -> tuple[np.ndarray, Loss]:
        """The targets of the network, and the loss; sets what there is to know of the outputs where it is the `first` call."""
        raise NotImplementedError

    def _score(self, y: np.ndarray, outputs: np.ndarray) -> float:
        """The score of the network's outputs, larger is better."""
        raise NotImplementedError

    # What is called

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train the network.

        Parameters
        ----------
        X : array, shape (n_samples, n_features)
            Float32 stays float32, anything else becomes float64; the type is that of the computation.
        y : array, shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array, shape (n_samples,), optional
            Weights of the samples' losses, divided by their sum. A whole number has the effect of so many equal samples.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, first=not (self.warm_start and hasattr(self, "net_")))

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, first: bool, partial: bool = False, classes: Any = None) -> Any:
        self._check_settings()
        X, y = validate_data(
            self, X, y, reset=first, multi_output=True, dtype=(np.float64, np.float32), order="C", y_numeric=False
        )
        weights = (
            None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        )
        t, loss = self._targets(y, first, classes)
        random = check_random_state(self.random_state)
        if first:
            self._begin(X, random)
        elif self.p_.dtype != X.dtype:
            self.p_ = self.p_.astype(X.dtype)
            self.state_ = None if self.state_ is None else self.state_.astype(X.dtype)
            self._history = None  # of another type
        if not partial:
            self._history = None
            self.loss_curve_ = []
            self.n_iter_ = 0
        with num_threads(self.n_jobs or 1):
            if self.solver == "lbfgs":
                self._minimize(X, t, loss, weights)
            else:
                self._train(X, y, t, loss, weights, random, partial)
        return self

    @available_if(is_stochastic)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one epoch on these samples, from where the last call has left off.

        Parameters
        ----------
        X : array, shape (n_samples, n_features)
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
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32), order="C")
        return self.net_(X, self.p_, state=self.state_)

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
        check_count("max_iter", self.max_iter)
        check_count("n_iter_no_change", self.n_iter_no_change)
        if self.n_jobs is not None:
            check_count("n_jobs", self.n_jobs, also=", or None for 1")
        if self.batch_size != "auto":
            check_count("batch_size", self.batch_size, also=", or 'auto'")
        if not isinstance(self.solver, Optimizer):
            check_word("solver", self.solver, "adam", "sgd", "lbfgs")
        if self.early_stopping and not 0 < self.validation_fraction < 1:
            raise ValueError(f"`validation_fraction` (={self.validation_fraction!r}) must be in (0, 1)")
        if self.early_stopping and self.solver == "lbfgs":
            raise ValueError("`early_stopping` needs a `solver` that takes steps, such as 'adam', not 'lbfgs'")

    def _begin(self, X: np.ndarray, random: np.random.RandomState) -> None:
        """Make the network and its first parameters."""
        self.net_ = self._network(X.shape[1], self.n_outputs_)
        self.p_ = self.net_.init(int(random.randint(2**31)), X.dtype)
        self.state_ = self.net_.init_state(X.dtype) if self.net_.n_state else None
        self.t_ = self.n_iter_ = 0
        self.loss_curve_ = []
        self._history = None

    def _network(self, inputs: int, outputs: int) -> Chain:
        if self.network is None:
            sizes = self.hidden_layer_sizes
            sizes = [inputs, *(sizes if isinstance(sizes, (list, tuple, np.ndarray)) else [sizes]), outputs]
            f = "sigmoid" if self.activation == "logistic" else self.activation
            layers = []
            for k, (before, after) in enumerate(pairwise(sizes)):
                bound = math.sqrt(6.0 / (check_count("hidden_layer_sizes", before) + check_count("hidden_layer_sizes", after)))
                chosen = f if k < len(sizes) - 2 else identity
                layers.append(Dense(before, after, chosen, weight_init="glorot_uniform", bias_init=Uniform(-bound, bound)))
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

    def _problem(self, X: np.ndarray, weights: np.ndarray | None, batch: int, scale: float) -> dict[str, Any]:
        """Weights that add up to the number of samples, times `scale`, and the penalty that goes with them.

        As in scikit-learn, alpha / 2 times the sum of squares of the weights is divided by the samples of a batch.
        """
        total = float(len(X)) if weights is None else float(weights.sum())
        if total <= 0:
            raise ValueError("`sample_weight` must have a positive sum")
        if weights is not None:
            weights = weights * X.dtype.type(scale * len(X) / total)
        elif scale != 1.0:
            weights = np.full(len(X), scale, X.dtype)
        has_weights = any(entry.name.endswith(".weight") for entry in self.net_.layout)
        strength = 0.5 * self.alpha / (batch * total / len(X))
        return {"weights": weights, "penalty": L2Penalty(strength, "*.weight") if self.alpha and has_weights else None}

    def _minimize(self, X: np.ndarray, t: np.ndarray, loss: Loss, weights: np.ndarray | None) -> None:
        problem = self._problem(X, weights, len(X), self._scale)
        objective = self.net_.objective(X, t, loss, state=self.state_, **problem)
        found = minimize(objective, self.p_, "L-BFGS", gtol=self.tol, maxiter=self.max_iter, progress=bool(self.verbose))
        self.p_ = found.x.astype(X.dtype)
        self.loss_, self.n_iter_ = float(found.fun), found.nit
        if not found.success:
            warnings.warn(f"L-BFGS has not converged: {found.message}", ConvergenceWarning, stacklevel=4)

    def _train(
        self, X: np.ndarray, y: np.ndarray, t: np.ndarray, loss: Loss, weights: np.ndarray | None,
        random: np.random.RandomState, partial: bool,
    ) -> None:  # fmt: skip
        score: Callable[[TrainingState], float] | None = None
        if self.early_stopping and not partial:
            split = train_test_split(
                np.arange(len(X)), test_size=self.validation_fraction, random_state=random, stratify=self._strata(y)
            )
            kept, held = (np.sort(part) for part in split)
            xv, yv = X[held], y[held]
            score = lambda state: self._score(yv, self.net_(xv, state.p, state=state.state))  # noqa: E731
            X, t, weights = X[kept], t[kept], None if weights is None else weights[kept]
        batch = min(self.batch_size if isinstance(self.batch_size, int) else 200, len(X))
        watch = Watch(self.tol, self.n_iter_no_change, score)
        history = train(
            self.net_, self.p_, X, t, loss, self._optimizer(),
            epochs=1 if partial else self.max_iter, batch_size=batch, seed=int(random.randint(2**31)), shuffle=self.shuffle,
            state=self.state_, progress=bool(self.verbose), callbacks=() if partial else [watch],
            resume=self._history if partial else None, **self._problem(X, weights, batch, self._scale),
        )  # fmt: skip
        self._history = history
        self.loss_curve_ += history.loss
        self.loss_ = history.loss[-1]
        self.n_iter_ += history.epochs
        self.t_ += history.epochs * len(X)
        self.best_loss_ = None if self.early_stopping else min(self.loss_curve_)
        self.validation_scores_ = watch.scores if self.early_stopping and not partial else None
        self.best_validation_score_ = watch.best if self.early_stopping and not partial else None
        if watch.kept is not None:
            self.p_, self.state_ = watch.kept
        if not partial and not history.stopped:
            warnings.warn(f"{self.max_iter} epochs, and the loss still falls", ConvergenceWarning, stacklevel=4)

    def _strata(self, y: np.ndarray) -> np.ndarray | None:
        return None

    _scale = 1.0  # of the loss

    def _optimizer(self) -> Optimizer:
        if isinstance(self.solver, Optimizer):
            return self.solver
        return (
            Adam(self.learning_rate_init)
            if self.solver == "adam"
            else SGD(self.learning_rate_init, momentum=0.9, nesterov=True)
        )
