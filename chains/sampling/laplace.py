"""Laplace's approximation: the posterior of the parameters as a normal distribution around a trained network.

Its precision is the Gauss-Newton matrix of the log-likelihood plus that of the prior, ``sum J' L J + delta I``. J is the
Jacobian of a sample's outputs with respect to the parameters, L the Hessian of minus its log-likelihood with respect to the
outputs. The outputs of the linearised network are then normal too: no draws are needed. Sources: MacKay, "A practical Bayesian
framework for backpropagation networks", 1992; Daxberger et al., "Laplace redux", 2021.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import BCEWithLogitsLoss, CrossEntropyLoss, Loss, MSELoss, SquaredLoss
from chains.network import checks
from chains.network.call import Call, check_data
from chains.network.network import check_net, network_of
from chains.support import arguments, streams
from chains.support.checks import check_count, check_flags, check_number
from chains.support.deprecation import renamed_argument
from chains.support.memory import on_host

NUMBERS_AT_ONCE = 2**24  # of a Jacobian
MATRICES = 5  # of this size exist while it is decomposed: itself, two copies, and LAPACK's two
MAX_ROUNDS = 1000  # of MacKay's iteration
UNKNOWN_MEMORY = 2**33  # bytes, taken where the system does not tell
MAX_EXCESS = 1e-3  # of a sum of probabilities over one, as half types round


def memory_of_machine() -> int:
    """In bytes; a guess where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # such as Windows
        return UNKNOWN_MEMORY


class Laplace:
    """The normal approximation of a posterior, at the parameters of a trained network.

    The prior is normal, with mean 0 and the same precision for all parameters. With `SquaredLoss` or `MSELoss` the targets have
    normal noise; `BCEWithLogitsLoss` and `CrossEntropyLoss` are likelihoods of classes. By default, `noise` and
    `prior_precision` are chosen by the evidence, the marginal likelihood of the data.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,)
        Its trained parameters, at the mode of the posterior; float64 is advised.
    x, t : array, shapes (samples, *input_shape) and as the loss takes it
        The data of training. Rows of probabilities for `CrossEntropyLoss` must sum to one.
    loss : Loss
        `SquaredLoss()`, `MSELoss()`, `BCEWithLogitsLoss()` or `CrossEntropyLoss()`.
    parameters : str
        A pattern of the names of uncertain parameters, "*" for all. "2.*" is the layer 2 alone, as in the last-layer Laplace
        approximation. Frozen parameters are never among them. Their matrix and its decomposition must fit into memory.
    noise : float, optional
        The standard deviation of the noise of a target; not for classes.
    prior_precision : float, optional
        One over the variance of a parameter.
    state : array, optional
        That of the network.
    weights : array, shape (samples,) or that of the targets, optional
        Zero or positive weights, as of `net.objective`: the variance of the noise of a target is ``noise**2 / weight``, and a
        class counts as often as its weight says. A missing target has the weight 0, and may be NaN.

    Attributes
    ----------
    noise, prior_precision : float
        The values given or chosen; the noise is 1 for classes.
    log_evidence : float
        The logarithm of the evidence. Compare networks by it.
    effective_parameters : float
        The number of parameters that the data determine: between 0 and the number of uncertain ones.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    """

    def __init__(
        self, net: Chain, p: Any, x: Any, t: Any, loss: Loss | None = None, *, parameters: str = "*",
        noise: float | None = None, prior_precision: float | None = None, state: Any = None,
        weights: Any = None,
    ) -> None:  # fmt: skip
        check_net(net)
        for name, value in (("noise", noise), ("prior_precision", prior_precision)):
            if value is not None:
                check_number(name, value, "in (0, inf)")
        loss = SquaredLoss() if loss is None else loss
        if type(loss) not in (SquaredLoss, MSELoss, BCEWithLogitsLoss, CrossEntropyLoss):
            raise ValueError(f"`loss` (={loss!r}) must be SquaredLoss, MSELoss, BCEWithLogitsLoss or CrossEntropyLoss")
        self._is_normal = isinstance(loss, (SquaredLoss, MSELoss))
        if noise is not None and not self._is_normal:
            raise ValueError(f"`noise` (={noise:g}) must be None with {loss!r}: classes have no noise")
        self._net, self._loss, self._state = net, loss, state
        self._p = on_host(arguments.check_params(p, net.n_params))
        uncertain = net.layout.names(parameters) - net.frozen
        self._where = np.concatenate(
            [np.empty(0, int), *(np.arange(e.start, e.stop) for e in net.layout if e.name in uncertain)]
        )
        if not self._where.size:
            raise ValueError(f"`parameters` (={parameters!r}) must name a parameter that is not frozen")
        self._check_size(parameters)
        data = self._checked(x, t, weights)
        counts, start = self._output_weights(data), 0
        matrix = np.zeros((self._where.size, self._where.size))
        for y, j in self._linearised(net, data["x"]):
            rows = self._roots(y) @ j
            if counts is not None:
                rows *= np.sqrt(counts[start : start + len(y), :, None])
            matrix += np.einsum("bop,boq->pq", rows, rows, optimize=True)
            start += len(y)
        if not np.isfinite(matrix).all():
            raise ValueError("the Jacobian of `net` at `p` and `x` is infinite or NaN")
        eigenvalues, self._axes = np.linalg.eigh(matrix)
        self._eigenvalues = np.maximum(eigenvalues, 0.0)
        self._choose(data, counts, noise, prior_precision)

    def _check_size(self, parameters: str) -> None:
        """Raise ValueError where the decomposition of the matrix takes more memory than the machine has."""
        size, memory = 8 * self._where.size**2, memory_of_machine()
        if MATRICES * size > memory:
            raise ValueError(
                f"`parameters` (={parameters!r}) must name fewer: the matrix of {self._where.size:,} parameters needs "
                f"{size / 1e9:.1f} GB, and its decomposition {MATRICES} times as much, of {memory / 1e9:.1f} GB here. "
                'Take a layer, such as parameters="2.*"'
            )

    def _checked(self, x: Any, t: Any, weights: Any) -> dict[str, np.ndarray]:
        """The data by name. Raises TypeError or ValueError if they do not fit."""
        call = Call(network_of(self._net), {"x": x, "t": t, "loss": self._loss, "weights": weights})
        check_data(call)
        data = call.data
        w = data.get("weights")
        if w is not None:
            arguments.check_finite(np.dtype(np.float64), weights=w)
            if not (w >= 0.0).all() or not w.any():
                raise ValueError("`weights` must be zero or positive, and at least one of them positive")
        arguments.check_finite(np.dtype(np.float64), t=checks.with_counted_targets(call.network.declaration, data)["t"])
        if isinstance(self._loss, CrossEntropyLoss) and data["t"].ndim > len(self._net.output_shape):
            t = data["t"] if w is None else data["t"][_at_targets(w, data["t"]).all(-1)]
            sums = np.asarray(t, np.float64).sum(-1)
            if (wrong := abs(sums - 1.0) > MAX_EXCESS).any():
                raise ValueError(f"`t` must have rows of probabilities that sum to one, got a sum of {sums[wrong][0]:g}")
        return data

    def _output_weights(self, data: dict[str, np.ndarray]) -> np.ndarray | None:
        """The weights of the likelihood of each output, (samples, outputs); None if there are none.

        The outputs of classes share that of their target. With weights of the classes of a target's probabilities t it is their
        mean by t.
        """
        if "weights" not in data:
            return None
        t = data["t"]
        w = _at_targets(data["weights"], t)
        if isinstance(self._loss, CrossEntropyLoss):
            if t.ndim > len(self._net.output_shape):
                w = (w * np.where(w > 0.0, t, 0.0)).sum(-1)
            w = np.repeat(w[..., None], self._classes, axis=-1)
        return w.reshape(len(t), -1)

    def _linearised(self, net: Chain, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Outputs (batch, outputs) and their Jacobian by the uncertain parameters, for some samples at a time, in float64."""
        count = max(1, NUMBERS_AT_ONCE // (net.n_params * math.prod(net.output_shape)))
        for start in range(0, len(x), count):
            part = x[start : start + count]
            y = net(part, self._p, state=self._state).reshape(len(part), -1)
            j = net.jacobian(self._p, part, state=self._state).reshape(*y.shape, -1)
            yield y.astype(np.float64), j[..., self._where].astype(np.float64)

    def _roots(self, y: np.ndarray) -> np.ndarray:
        """Matrices R whose R'R is the Hessian of minus the log-likelihood with respect to the outputs, for a noise of 1."""
        if self._is_normal:
            return np.eye(y.shape[1])
        p = self._probabilities(y)
        if isinstance(self._loss, BCEWithLogitsLoss):
            return np.sqrt(p * (1.0 - p))[:, :, None] * np.eye(y.shape[1])
        by_class = (len(y), -1, self._classes)
        p = p.reshape(by_class)
        blocks = np.sqrt(p)[..., None] * (np.eye(self._classes) - p[..., None, :])  # (batch, places, classes, classes)
        places = blocks.shape[1]
        return np.einsum("bkij,kl->bkilj", blocks, np.eye(places)).reshape(len(y), y.shape[1], y.shape[1])

    @property
    def _classes(self) -> int:
        return int(self._net.output_shape[-1])

    def _probabilities(self, y: np.ndarray) -> np.ndarray:
        """Those of logits (batch, outputs)."""
        if isinstance(self._loss, BCEWithLogitsLoss):
            return 0.5 * (1.0 + np.tanh(0.5 * y))
        logits = y.reshape(-1, self._classes)
        p = np.exp(logits - logits.max(1, keepdims=True))
        return (p / p.sum(1, keepdims=True)).reshape(y.shape)

    @np.errstate(all="ignore")
    def _choose(
        self, data: dict[str, np.ndarray], counts: np.ndarray | None, noise: float | None, prior_precision: float | None
    ) -> None:
        """Noise and prior precision at a maximum of the evidence, by MacKay's iteration, and the evidence there."""
        theta = self._p[self._where].astype(np.float64)
        x, t, w = data["x"], data["t"], data.get("weights")
        size, squares = len(x) * math.prod(self._net.output_shape), float(theta @ theta)
        value = self._net.loss(self._p, x, t, self._loss, weights=w, state=self._state)
        errors = value * (2.0 * len(x) if isinstance(self._loss, SquaredLoss) else size)  # of normal noise: the sum of squares
        likelihood = -value * (size // self._classes if isinstance(self._loss, CrossEntropyLoss) else size)  # of classes
        size = size if counts is None else int(np.count_nonzero(counts))
        if self._is_normal and noise is None and errors == 0.0:
            raise ValueError(
                "`noise` (=None) must be given where a network fits all targets exactly: no noise can be estimated"
            )
        if prior_precision is None and squares == 0.0:
            raise ValueError("`prior_precision` (=None) must be given where all parameters are zero")
        self.noise = noise or (math.sqrt(errors / size) if self._is_normal else 1.0)
        self.prior_precision = prior_precision or 1.0
        for _ in range(MAX_ROUNDS):
            before = self.noise, self.prior_precision
            effective = self.effective_parameters
            if prior_precision is None:
                self.prior_precision = max(effective, 1e-9) / squares
            if noise is None and self._is_normal:
                self.noise = math.sqrt(errors / max(size - effective, 1e-3 * size))
            if np.allclose((self.noise, self.prior_precision), before, rtol=1e-10, atol=0.0):
                break
        if self._is_normal:
            likelihood = -size * math.log(math.sqrt(2.0 * math.pi) * self.noise) - 0.5 * errors / self.noise / self.noise
            likelihood += 0.0 if counts is None else 0.5 * np.log(counts[counts > 0.0]).sum()
        shares = np.log1p(self._eigenvalues / (self.noise**2 * self.prior_precision))
        self.log_evidence = float(likelihood - 0.5 * (shares.sum() + self.prior_precision * squares))
        if not math.isfinite(self.log_evidence):
            raise ValueError(
                f"the log evidence is {self.log_evidence} for a noise of {self.noise:g} and a prior precision of "
                f"{self.prior_precision:g}: their squares must be numbers, so choose other units of `t`"
            )

    @property
    def effective_parameters(self) -> float:
        """How many parameters the data determine."""
        certain = self._eigenvalues / self.noise**2
        return float((certain / (certain + self.prior_precision)).sum())

    @property
    def _variances(self) -> np.ndarray:
        """Along the axes."""
        return 1.0 / (self._eigenvalues / self.noise**2 + self.prior_precision)

    def predict(
        self, x: Any, *, net: Chain | None = None, with_noise: bool = True, joint: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the predictive distribution, by the network linearised at its parameters.

        Parameters
        ----------
        x : array, shape (samples, *input_shape)
            The inputs.
        net : Chain, optional
            Another network of the same parameters, for a band on its outputs: ``Chain(rhs)`` is the right side of the fitted
            ``Chain(ODE(rhs, times))``. Parameters frozen in it count as certain.
        with_noise : bool
            Whether the variance is that of a new target, or that of the output alone. For classes it is always that of the
            logits, and for another `net` that of its outputs.
        joint : bool
            Whether to return the covariance of all outputs of all samples instead of their variances: for the error of a sum,
            a difference or a mean of predictions, and for drawing whole curves.

        Returns
        -------
        mean, variance : array, shape (samples, *output_shape), float64
            For classes the mean is their probabilities, by MacKay's probit formula; another `net` has its plain outputs. With
            `joint`, the covariance has the shape (samples, *output_shape, samples, *output_shape).

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, such as a `net` with other parameters.
        """
        check_flags(with_noise=with_noise, joint=joint)
        other = net is not None
        net = self._net if net is None else net
        check_net(net)
        shapes, wanted = ([entry.shape for entry in each.layout] for each in (net, self._net))
        if shapes != wanted:
            raise ValueError(f"`net` must have arrays of the shapes of the fitted network's, {wanted}, got {shapes}")
        x = arguments.check_input(x, net.input_shape, ids=network_of(net).id_count)
        shape = (len(x), *net.output_shape)
        found = [(y, (j @ self._axes) * np.sqrt(self._variances)) for y, j in self._linearised(net, x)]
        y, roots = (np.concatenate(part) for part in zip(*found, strict=True))  # (samples, outputs, uncertain parameters)
        variance = np.square(roots).sum(-1)
        noise = self.noise**2 if with_noise and self._is_normal and not other else 0.0
        if not self._is_normal and not other:
            y = self._probabilities(y / np.sqrt(1.0 + (math.pi / 8.0) * variance))
        if not joint:
            return y.reshape(shape), (variance + noise).reshape(shape)
        rows = roots.reshape(y.size, -1)
        return y.reshape(shape), (rows @ rows.T + noise * np.eye(y.size)).reshape(2 * shape)

    @renamed_argument("n", "draws", end="2.0")
    def draw(self, draws: int, *, seed: int = 0) -> np.ndarray:
        """Parameters drawn from the approximation, shape (draws, n_params), for networks that are linear in them.

        In other networks, ``net(x, laplace.draw(100))`` spreads much further than the posterior, since the approximation holds
        for the linearised network only: take `predict`. Draws are right where the uncertain parameters act linearly, as those
        of a last layer of weights do (``parameters="2.*"``). Source: Immer et al., "Improving predictions of Bayesian neural
        nets via local linearization", 2021.

        Parameters
        ----------
        draws : int
            How many.
        seed : int
            The seed of the draws.
        """
        rng = streams.generator("posterior", arguments.check_seed(seed))
        z = rng.normal(size=(check_count("draws", draws), self._where.size))
        drawn = np.tile(self._p, (len(z), 1))
        drawn[:, self._where] += (z * np.sqrt(self._variances)) @ self._axes.T
        return drawn

    def __repr__(self) -> str:
        noise = f"noise {self.noise:.4g}, " if self._is_normal else ""
        return (
            f"<Laplace approximation of {self._where.size} parameters, {self.effective_parameters:.1f} of them determined by "
            f"the data: {noise}prior precision {self.prior_precision:.4g}, log evidence {self.log_evidence:.6g}>"
        )


def _at_targets(weights: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Weights of samples or of targets as those of targets, in float64."""
    w = np.asarray(weights, np.float64)
    return np.broadcast_to(w.reshape(w.shape + (1,) * (t.ndim - w.ndim)), t.shape)
