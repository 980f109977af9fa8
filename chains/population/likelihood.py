"""The marginal likelihood of a population, and its exact gradient.

A subject's objective at effects e is l(e) = sum over its measurements of rho(f(e)), plus e' P e + log det Omega, where rho is
minus two times the logarithm of the density, and P the inverse of Omega. Minus two times the logarithm of the marginal
likelihood is approximately min l + log det H, where H is half the Hessian matrix of l, exact ("Laplace") or expected. Constants
with log 2 pi are left out.

The gradient follows from the effects' optimum e(theta), where the derivative of l by e is zero. With S the inverse of H, and
w the gradient of log det H by e times the inverse Hessian matrix of l, it is that of l + log det H - w' (gradient of l by e)
for constant e and w. Source: Almquist, Leander and Jirstrand, "Using sensitivity equations for computing gradients of the
FOCE and FOCEI approximations to the population likelihood", J. Pharmacokinet. Pharmacodyn. 42, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import record
from chains.network.derivatives import jacobian
from chains.network.network import network_of
from chains.objectives.free import FreeObjective
from chains.objectives.trained_arguments import minimize_trained
from chains.population import programs
from chains.population.covariance import CovarianceFactor
from chains.population.data import Subjects
from chains.population.effects import LARGEST_FALL, find_modes
from chains.population.errors import deviance_of
from chains.support.arrays import as_array
from chains.support.messages import counted

F64 = np.dtype(np.float64)
BLOCK = 2048  # subjects that are worked on together: programs take memory for each
OF_SUBJECTS = ("newton", "laplace", "implicit")  # programs of which a sample is a subject


@dataclass(frozen=True)
class Split:
    """A flat vector: the network's parameters, the numbers of the covariance, the logarithms of the errors' parameters."""

    network: int
    covariance: CovarianceFactor
    errors: int

    @property
    def size(self) -> int:
        return self.network + self.covariance.size + self.errors

    def checked(self, theta: Any) -> np.ndarray:
        """The flat vector in float64. Raises ValueError for another shape."""
        theta = np.asarray(as_array("theta", theta), np.float64)
        if theta.shape != (self.size,):
            raise ValueError(f"`theta` has shape {theta.shape}, but must have shape ({self.size},)")
        return theta

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, second = self.network, self.network + self.covariance.size
        return theta[..., :first], theta[..., first:second], theta[..., second:]


class Arrays:
    """The arrays of one call at a time, and the programs bound to them."""

    def __init__(self, network: Any, recipe: programs.Recipe, subjects: Subjects) -> None:
        self.network, self.recipe, self.subjects = network, recipe, subjects
        samples, n = len(subjects.x), recipe.effects
        self.known: dict[str, np.ndarray] = {name: getattr(subjects, name).copy() for name in ("x", "t", "weights")}
        self.known |= {"p": np.zeros(network.n_params), "s": np.ones(max(recipe.deviance.count, 1))}
        shapes = {"effects": n, "w": n, "inverse": n * (n + 1) // 2, "at": subjects.t.shape[1]}
        self.known |= {name: np.zeros((samples, width)) for name, width in shapes.items()}
        many = (("sums", 1 + 2 * n + n * n), ("effects", n), ("inverse", n * (n + 1) // 2), ("slopes", n))
        self.subject: dict[str, np.ndarray] = {name: np.zeros((subjects.count, width)) for name, width in many}
        self.subject["precision"] = np.zeros(n * (n + 1) // 2)
        self._bound: dict[str, Any] = {}

    def load(self, subjects: Subjects) -> None:
        """Take other subjects, as many with as many samples."""
        if subjects is not self.subjects:
            self.subjects = subjects
            for name in ("x", "t", "weights"):
                self.known[name][...] = getattr(subjects, name)

    def run(self, name: str, **given: np.ndarray) -> dict[str, np.ndarray]:
        """Run a program; `given` are further arrays to copy. Returns all its arrays, which the next run overwrites."""
        binding = self._bound.get(name) or self._bind(name, given)
        for key, array in given.items():
            if key in binding.arrays:  # a gradient that does not depend on the inputs has none
                binding.arrays[key][...] = array
        binding()
        return binding.arrays

    def _bind(self, name: str, given: dict[str, np.ndarray]) -> Any:
        executable = self._executable(name)
        buffers, known = executable.program.buffers, self.subject if name in OF_SUBJECTS else self.known
        arrays = {**known, **{key: np.array(array, F64) for key, array in given.items()}, **executable.settings}
        batch = self.subjects.count if name in OF_SUBJECTS else len(self.subjects.x)
        if name == "curvature" and "rows" in buffers:
            arrays["rows"] = self.run("terms")["rows"]
        fitting = {key: array for key, array in arrays.items() if key in buffers}
        self._bound[name] = executable.backend.bind(executable.program, batch, fitting)
        return self._bound[name]

    def _executable(self, name: str) -> Executable:
        network, recipe = self.network, self.recipe
        make = {
            **{each: partial(getattr(programs, each), recipe, F64) for each in OF_SUBJECTS},
            "terms": partial(programs.terms, network, recipe, F64),
            "curvature": partial(programs.curvature, network, recipe, F64),
            "gradient": partial(programs.gradient, network, recipe, F64),
            "gradients": partial(programs.gradient, network, recipe, F64, each=True),
            "typical": partial(record.forward, network, F64, False),
            "pullback": partial(record.vjp, network, F64, False, ("g",)),
        }[name]
        own = None if name in ("typical", "pullback") else recipe
        found: Executable = network.program(self.known["p"], ("population", name, own), make)
        return found

    def spread(self, name: str, rows: np.ndarray) -> None:
        """Give each sample the numbers of its subject, (subjects, numbers)."""
        self.subjects.spread(rows, out=self.known[name])


class PopulationObjective:
    """``objective(theta)``: minus two times the logarithm of the marginal likelihood, and its exact gradient.

    `theta` has the network's parameters, the numbers of the covariance's Cholesky factor and the logarithms of the errors'
    parameters. Made by ``model.objective``. Effects are sought from those of the call before. Calls from several threads are
    safe.
    """

    def __init__(self, model: Any, method: str, subjects: Subjects, comm: Any = None) -> None:
        self.model, self.method, self.subjects = model, method, subjects
        self.split: Split = model._split
        self.n_params = self.split.size
        self._network, self._comm = network_of(model.net), comm
        self._recipe = programs.Recipe(self.split.covariance.n, deviance_of(model.error, method), method == "FO")
        self._trained = [*self._network.trainable, (self.split.network, self.split.size)]
        self._blocks = subjects.blocks(BLOCK)
        self._idle: dict[tuple[int, ...], list[Arrays]] = {}
        self._start = np.zeros((subjects.count, self.split.covariance.n))

    def __call__(self, theta: Any) -> tuple[float, np.ndarray]:
        """The value and the gradient; infinity and NaN if the effects of a subject are not found.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        theta, value, g = self.split.checked(theta), 0.0, np.zeros(self.n_params)
        starts = []
        for point in self._points(theta):
            if not (np.isfinite(point.values).all() and point.converged.all()):
                value, g = math.inf, np.full(self.n_params, np.nan)
                break
            value, g = value + float(point.values.sum()), g + point.gradient()
            starts.append(point.effects)
        else:
            self._start = np.concatenate(starts)
        total = self._over_processes(np.append(g, value))
        return float(total[-1]), total[:-1]

    def values(self, theta: Any) -> np.ndarray:
        """The value of each subject, in the order of ``objective.subjects.ids``.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        return np.concatenate([point.values for point in self._points(self.split.checked(theta))])

    def effects(self, theta: Any) -> np.ndarray:
        """The effects of each subject, (subjects, effects): the minima of their objectives.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        return np.concatenate([point.effects for point in self._points(self.split.checked(theta))])

    def gradients(self, theta: Any) -> np.ndarray:
        """The gradient of each subject's value, (subjects, n_params).

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        return np.concatenate([point.gradients() for point in self._points(self.split.checked(theta))])

    def products(self, theta: Any) -> np.ndarray:
        """The sum over all subjects of g g', for their gradients g by the numbers that are not frozen.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The flat vector.
        """
        g = self.free.select(self.gradients(theta))
        return self._over_processes(g.T @ g)

    def minimize(self, theta: Any, method: str = "BFGS", *, progress: bool | None = None, **options: Any) -> Any:
        """``scipy.optimize.minimize`` of the objective, with its options; frozen parameters of the network keep their bits.

        Parameters
        ----------
        theta : array, shape (n_params,)
            The starting point.
        method : str
            A method of SciPy.
        progress : bool, optional
            Whether to show a bar.
        **options
            SciPy's own keyword arguments.
        """
        return minimize_trained(self, theta, method, progress, options)

    @property
    def free(self) -> FreeObjective:
        """The objective as a function of the numbers that are not frozen."""
        return FreeObjective(self, self._trained)

    def __reduce__(self) -> tuple[Any, ...]:
        """When copied or sent to another process, it is made again from the model and the data."""
        return PopulationObjective, (self.model, self.method, self.subjects, self._comm)

    def __repr__(self) -> str:
        return f"<population objective, {self.method}: {self.subjects}, {counted(self.n_params, 'parameter')}>"

    def _points(self, theta: np.ndarray) -> Iterator[Point]:
        """The subjects of each block; the next one overwrites the arrays of the one before."""
        first = 0
        for block in self._blocks:
            idle = self._idle.setdefault(block.x.shape + block.ids.shape, [])
            try:
                arrays = idle.pop()
            except IndexError:  # other threads may have them all
                arrays = Arrays(self._network, self._recipe, block)
            try:
                arrays.load(block)
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    yield Point(self, theta, arrays, self._start[first : first + block.count])
            finally:
                idle.append(arrays)
            first += block.count

    def _over_processes(self, numbers: np.ndarray) -> np.ndarray:
        """The sum of these numbers over all processes."""
        if self._comm is None:
            return numbers
        total = np.empty_like(numbers)
        self._comm.comm.Allreduce(np.ascontiguousarray(numbers), total)
        return total


class Point:
    """The subjects of a block at one vector: effects, values, matrices."""

    def __init__(self, objective: PopulationObjective, theta: np.ndarray, arrays: Arrays, start: np.ndarray) -> None:
        self.split, self.recipe, self.arrays = objective.split, objective._recipe, arrays
        self.subjects = arrays.subjects
        p, self.numbers, q = self.split(theta)
        self.errors = np.exp(q)
        arrays.known["p"][...] = p
        arrays.known["s"][: len(q)] = self.errors
        self.factor = self.split.covariance.factor(self.numbers)
        self.precision = self.split.covariance.precision(self.factor)
        if not (self.recipe.deviance.interaction or self.recipe.linear):
            typical = arrays.run("typical", x=self.subjects.without_effects(self.recipe.effects))
            arrays.known["at"][...] = typical["y"].reshape(arrays.known["at"].shape)
        triangle = np.array([self.precision[i, j] for i, j in programs.pairs(len(self.precision))])
        arrays.subject["precision"][...] = triangle
        self.effects, self.sums, self.fall, self._has_rows = find_modes(self._newton, start)
        self.converged = self.fall <= LARGEST_FALL * (1.0 + abs(self.sums[:, 0]))
        arrays.subject["effects"][...], arrays.subject["sums"][...] = self.effects, self.sums
        found = arrays.run("laplace")
        self.inverse = found["inverse"].copy()
        self.values: np.ndarray = found["value"][:, 0] + 2.0 * np.log(np.diag(self.factor)).sum()

    def gradient(self) -> np.ndarray:
        """The gradient of the sum of all values."""
        self._prepare()
        found = self.arrays.run("gradient")
        g, errors = found["g"], found.get("errors")
        if "dat" in found and len(g):
            x, dy = self.subjects.without_effects(self.recipe.effects), found["dat"]
            g = g + self.arrays.run("pullback", x=x, dy=dy.reshape(-1, *self.arrays.network.output_shape))["g"]
        parts = [g, self._by_covariance(self._by_precision.sum(0), self.subjects.count)]
        parts += [] if errors is None else [errors.sum(0) * self.errors]
        return np.concatenate(parts)

    def gradients(self) -> np.ndarray:
        """The gradient of each value, (subjects, n_params)."""
        self._prepare()
        found = self.arrays.run("gradients")
        g = found.get("j", np.zeros((len(self.subjects.x), 0)))  # a network without parameters has none
        if "dat" in found and g.shape[1]:
            x = self.subjects.without_effects(self.recipe.effects)
            by_p = jacobian(self.arrays.network, self.arrays.known["p"], x, None, "auto", None, None)
            g = g + np.einsum("so,sop->sp", found["dat"], by_p.reshape(*found["dat"].shape, -1))
        parts = [self.subjects.sums(g), self._by_covariance(self._by_precision, 1)]
        parts += [self.subjects.sums(found["errors"]) * self.errors] if "errors" in found else []
        return np.concatenate(parts, axis=1)

    def _prepare(self) -> None:
        """Give the programs S and w."""
        arrays = self.arrays
        arrays.subject["effects"][...], arrays.subject["sums"][...] = self.effects, self.sums
        arrays.subject["inverse"][...] = self.inverse
        arrays.spread("effects", self.effects)
        arrays.spread("inverse", self.inverse)
        if programs.keeps_rows(self.recipe):
            if not self._has_rows:
                arrays.run("terms")
            self._has_rows = True
        if not self.recipe.linear:
            arrays.subject["slopes"][...] = self.subjects.sums(arrays.run("curvature")["slopes"])
        found = arrays.run("implicit")
        arrays.spread("w", found["w"])
        self._by_precision = found["by_precision"]

    def _newton(self, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        arrays = self.arrays
        arrays.spread("effects", effects)
        sums = self.subjects.sums(arrays.run("terms")["sums"])
        arrays.subject["effects"][...], arrays.subject["sums"][...] = effects, sums
        found = arrays.run("newton")
        return sums, found["step"].copy(), found["fall"][:, 0].copy(), found["value"][:, 0].copy()

    def _by_covariance(self, by_precision: np.ndarray, subjects: int) -> np.ndarray:
        """The gradients by the covariance's numbers of sums over so many subjects, from those by the precision."""
        n = len(self.precision)
        q = np.empty((*by_precision.shape[:-1], n, n))
        for k, (i, j) in enumerate(programs.pairs(n)):
            q[..., i, j] = q[..., j, i] = by_precision[..., k]
        slopes = subjects * self.precision - self.precision @ q @ self.precision
        return self.split.covariance.pulled(self.numbers, slopes)
