"""A model of a population: a network whose last inputs are random effects, and the residual errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.layers import Append
from chains.network.agreement import agreement
from chains.network.network import network_of
from chains.population.covariance import CovarianceFactor
from chains.population.data import Subjects
from chains.population.diagnostics import simulate
from chains.population.errors import METHODS, ErrorModel
from chains.population.fitting import descend
from chains.population.likelihood import PopulationObjective, Split
from chains.population.result import PopulationFit
from chains.support.arrays import as_array
from chains.support.checks import check_is, check_number, check_word
from chains.support.messages import shown


class PopulationModel:
    """A nonlinear mixed effects model: predictions of a network, random effects of each subject, residual errors.

    Parameters
    ----------
    net : Chain
        A network of samples (features,). The last features are the effects of the sample's subject. A sample is a measurement,
        or a subject with all its times, as for an `ODE`. A single output, or several: one for each measurement of the sample.
    effects : mapping of str to float
        The effects by name, in the order of the inputs, each with the starting value of its variance.
    error : ErrorModel
        `Additive`, `Proportional`, `Combined` or a `Density`, with starting values.
    covariance : str
        "diagonal" for independent effects, or "full".

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    """

    def __init__(self, net: Chain, effects: Mapping[str, float], error: ErrorModel, *, covariance: str = "diagonal") -> None:
        network = network_of(net)
        if not isinstance(effects, Mapping) or not effects or not all(isinstance(name, str) for name in effects):
            raise TypeError(f'`effects` (={shown(effects)}) must be variances by name, such as {{"clearance": 0.1}}')
        for name, value in effects.items():
            check_number(f"effects[{name!r}]", value, "in (0, inf)")
        check_is("error", error, ErrorModel, "a residual error, such as Proportional(0.1)")
        check_word("covariance", covariance, "diagonal", "full")
        if len(network.input_shape) != 1 or network.input_shape[0] < len(effects) or network.id_count is not None:
            raise ValueError(
                f"`net` takes samples of shape {network.input_shape}: wanted a vector that ends with the {len(effects)} effects"
            )
        if not network.is_stateless:
            raise ValueError("`net` has a state, such as running statistics, which mixes subjects")
        self.net, self.error, self.covariance = net, error, covariance
        self.effects = {name: float(value) for name, value in effects.items()}
        self._split = Split(network.n_params, CovarianceFactor(len(effects), covariance == "full"), len(error.start))
        self.n_params = self._split.size

    def init(self, p: Any = None, seed: int = 0) -> np.ndarray:
        """A flat vector: the network's parameters, then the starting values of variances and errors.

        Parameters
        ----------
        p : array, shape (net.n_params,), optional
            The network's parameters. By default ``net.init(seed)``.
        seed : int
            The seed of the network's parameters.
        """
        p = self.net.init(seed=seed, dtype=np.float64) if p is None else np.asarray(as_array("p", p), np.float64)
        if p.shape != (self._split.network,):
            raise ValueError(f"`p` has shape {p.shape}, but the network has {self._split.network} parameters")
        return self.vector(p, np.diag([*self.effects.values()]), [*self.error.start.values()])

    def vector(self, p: Any, covariance: Any, errors: Any) -> np.ndarray:
        """The flat vector of these values.

        Parameters
        ----------
        p : array, shape (net.n_params,)
            The network's parameters.
        covariance : array, shape (effects, effects)
            The covariance of the effects.
        errors : sequence of float
            The parameters of the residual errors.
        """
        covariance, errors = np.asarray(covariance, np.float64), np.asarray(errors, np.float64)
        n, full = len(self.effects), self.covariance == "full"
        if covariance.shape != (n, n) or not np.allclose(covariance, covariance.T):
            raise ValueError(f"`covariance` must be a symmetric matrix ({n}, {n}), got shape {covariance.shape}")
        if not full and np.count_nonzero(covariance - np.diag(np.diag(covariance))):
            raise ValueError("`covariance` must be diagonal, as the model's is")
        if errors.shape != (self._split.errors,) or not (errors > 0.0).all():
            raise ValueError(f"`errors` (={shown(errors)}) must be {self._split.errors} positive numbers")
        try:
            numbers = self._split.covariance.numbers(covariance)
        except np.linalg.LinAlgError:
            raise ValueError("`covariance` must be positive definite") from None
        return np.concatenate([np.asarray(p, np.float64), numbers, np.log(errors)])

    def values(self, theta: Any) -> dict[str, Any]:
        """The values in a flat vector: the network's parameters by name, the covariance, and the errors' parameters by name.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        p, numbers, errors = self._split(self.checked(theta))
        factor = self._split.covariance.factor(numbers)
        found: dict[str, Any] = dict(self.net.values(p))
        found["covariance"] = factor @ factor.T
        return found | dict(zip(self.error.start, np.exp(errors).tolist(), strict=True))

    def checked(self, theta: Any) -> np.ndarray:
        """The flat vector in float64. Raises ValueError for another shape.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        return self._split.checked(theta)

    def simulate(self, theta: Any, x: Any, subjects: Any = None, *, draws: int = 1, seed: int = 0) -> np.ndarray:
        """Measurements of new subjects, with effects and errors drawn at random: (draws, samples, outputs).

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        x, subjects
            The samples, as of `objective`.
        draws : int
            How many.
        seed : int
            The seed of the draws.

        Raises
        ------
        ValueError
            For a density, and for arguments that do not fit.
        FloatingPointError
            If drawn effects have no prediction, as where the solution of an `ODE` fails.
        """
        x = np.asarray(as_array("x", x))
        outputs = int(np.prod(network_of(self.net).output_shape))
        data = self.data(x, np.zeros((len(x), outputs)), subjects)
        return simulate(self, self.checked(theta), data, draws, seed)

    def individual(self, theta: Any, effects: Any) -> tuple[Chain, np.ndarray]:
        """The network of one subject, without inputs for the effects, and its parameters; `chains.export` takes both.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        effects : array, shape (effects,)
            The subject's effects, such as a row of ``fit.effects``.
        """
        effects = np.asarray(as_array("effects", effects), np.float64)
        width = network_of(self.net).input_shape[0] - len(self.effects)
        if effects.shape != (len(self.effects),) or not width:
            raise ValueError(
                f"`effects` has shape {effects.shape}: wanted ({len(self.effects)},), for a network of other inputs too"
            )
        values = {f"effect{k}": value for k, value in enumerate(effects.tolist())}
        net = Chain(Append(**values), *self.net.layers, input_shape=(width,), backend=self.net.backend)
        return net, np.concatenate([effects, self._split(self.checked(theta))[0]])

    def data(self, x: Any, y: Any, subjects: Any = None) -> Subjects:
        """The checked data, sorted by subject; see `objective`."""
        network = network_of(self.net)
        outputs = int(np.prod(network.output_shape))
        return Subjects.of(x, y, subjects, network.input_shape[0] - len(self.effects), outputs)

    def objective(
        self, x: Any, y: Any, subjects: Any = None, *, method: str = "FOCEI", comm: Any = None
    ) -> PopulationObjective:
        """Minus two times the logarithm of the marginal likelihood, as a function of the flat vector.

        Parameters
        ----------
        x : array, shape (samples, features without effects)
            The inputs.
        y : array, shape (samples,) or (samples, outputs)
            The measurements, NaN where there is none.
        subjects : array, shape (samples,), optional
            The subject of each sample, numbers or strings. By default each sample is a subject.
        method : str
            "FO", "FOCE", "FOCEI" (with interaction) or "Laplace".
        comm : communicator of mpi4py, optional
            Each process passes its own subjects; values and gradients are those of all.
        """
        with agreement(comm) as processes:
            check_word("method", method, *METHODS)
            found = self.data(x, y, subjects)
            made = PopulationObjective(self, method, found, processes)
            if processes is not None:
                processes.part_of(found.count)
            return made

    def fit(
        self, x: Any, y: Any, subjects: Any = None, *, method: str = "FOCEI", theta: Any = None, gtol: float = 1e-4,
        ftol: float = 1e-9, maxiter: int = 500, seed: int = 0, comm: Any = None, progress: bool | None = None,
    ) -> PopulationFit:  # fmt: skip
        """Minimise the objective by BFGS, in units of standard errors, which the subjects' gradients estimate.

        Parameters
        ----------
        x, y, subjects, method
            As of `objective`.
        theta : array, shape (n_params,), optional
            The start. By default ``model.init(seed=seed)``.
        gtol : float
            The method has converged when the gradient's largest entry is at most this, in units of standard errors.
        ftol : float
            It has also converged when an iteration lowers the value by at most `ftol` times the value. The steps of an `ODE`
            with step control change the value by about its `rtol`.
        maxiter : int
            The largest number of iterations.
        seed : int
            The seed of the start.
        comm : communicator of mpi4py, optional
            As of `objective`.
        progress : bool, optional
            Whether to show a bar.
        """
        objective = self.objective(x, y, subjects, method=method, comm=comm)
        theta = self.init(seed=seed) if theta is None else self.checked(theta)
        best, found = descend(objective, theta, (gtol, ftol), maxiter, progress)
        return PopulationFit(self, objective, best, found.fun, found.success, found.message, found.nit, found.nfev)

    def __repr__(self) -> str:
        effects = ", ".join(f"{name}={value:g}" for name, value in self.effects.items())
        return f"PopulationModel({self.net!r}, effects({effects}), {self.error!r}, covariance={self.covariance!r})"
