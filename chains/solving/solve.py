"""A residual problem solved in one call: Adam, then a quasi-Newton method in rounds, each with new points and weights.

A round is a function of the parameters, the matrix of the method, the weights and its number. A checkpoint holds these, so a
resumed run has the bits of one that was never interrupted.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.minimize.minimize import minimize
from chains.network.network import check_net
from chains.optimizers import Adam, Optimizer
from chains.residuals.problem import ResidualProblem, Term
from chains.residuals.weights import AdaptiveWeights
from chains.solving.causal import CausalWeights, time_axis
from chains.solving.second_points import Judge, Verdict, held_out, only_at
from chains.support import storage
from chains.support.arguments import check_seed, check_trained
from chains.support.arrays import as_numpy
from chains.support.axes import new_axes
from chains.support.checks import check_count, check_is, check_number, check_path, check_word, with_hints
from chains.support.messages import counted, listed, shown
from chains.support.progress import Progress
from chains.training.folder_lock import FolderLock
from chains.training.history import History
from chains.training.train import train

ADAM_STRETCH = 100  # steps of Adam between two updates of weights
FILE = "solve.safetensors"
LOST = 100.0  # the ratio of losses at second points at which a round is no part of the result
POOR = 0.1  # the residuals after the first round, as a share of their sizes, at which times are weighed
SHORT_ROUND = 100  # iterations between two updates of the weights of times, or two looks at unseen measurements
HEAVIER = 10.0  # the factor of the weight of a condition that a poor round has left behind
HEAVIEST = 1e4  # the largest such factor
SAME = 1.005  # the ratio of losses of unseen measurements that still counts as equal
NOISY = "; later rounds fitted unseen measurements worse, as they followed the noise of the others"
STATE = ("rounds", "failed", "done", "best", "long", "unseen", "renewed", "lost", "poor")  # of a run, in its checkpoint
TIMES = 4  # candidates between points, as a multiple of these
MAX_FAILED = 2  # rounds in a row without an iteration, each on other points


@dataclass
class Solution:
    """The result of `solve`: the parameters `p`, and a history with one entry for Adam and one for each round.

    `p` are the last parameters whose loss at second points, at which nothing is trained, is not a hundred times the least one,
    and which fit unseen measurements as well as those before.
    """

    p: np.ndarray
    problem: ResidualProblem  # at the last points, with the last weights
    loss: list[float] = field(default_factory=list)  # at the end of each round, on its points with its weights
    second: list[float] = field(default_factory=list)  # the loss at the second points, without adaptive weights
    terms: list[list[float]] = field(default_factory=list)  # each term's part of the loss at the second points
    iterations: list[int] = field(default_factory=list)  # of the quasi-Newton method, up to there
    seconds: list[float] = field(default_factory=list)
    weights: list[dict[str, float]] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    stopped: str = ""  # the reason for an early end, or empty
    success: bool = False  # whether the residuals at the second points are small, and the outputs have settled
    message: str = ""

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss and the metrics over the iterations with matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default on the axes of a new pyplot figure.

        Returns
        -------
        Axes
            The axes.
        """
        ax = new_axes() if ax is None else ax
        ax.semilogy(self.iterations, self.loss, label="loss")
        ax.semilogy(self.iterations, self.second, label="loss at second points")
        for name, values in self.metrics.items():
            ax.semilogy(self.iterations, values, label=name)
        ax.set(xlabel="iteration")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        columns = {"loss": self.loss, "second": self.second, **self.metrics}
        if self.terms and len(self.terms[0]) > 1:
            columns |= {
                name: [*values] for name, values in zip(self.problem.labels, zip(*self.terms, strict=True), strict=True)
            }
        for name in self.weights[-1] if self.weights else ():
            columns[name] = [each.get(name, 1.0) for each in self.weights]
        lines = ["  ".join(["iterations", f"{'seconds':>9}", *(f"{name:>12}" for name in columns)])]
        count = len(self.loss)
        shown_rows = range(count) if count <= 12 else [*range(6), *range(count - 6, count)]
        for k in shown_rows:
            if count > 12 and k == count - 6:
                lines.append("  ...")
            numbers = [f"{values[k]:12.4g}" for values in columns.values()]
            lines.append("  ".join([f"{self.iterations[k]:10}", f"{self.seconds[k]:9.1f}", *numbers]))
        lines += [f"stopped: {self.stopped}"] if self.stopped else []
        return "\n".join([*lines, f"success: {self.success}: {self.message}"])


@with_hints
def solve(
    net: Chain, p: np.ndarray, problem: ResidualProblem, *,
    adam: int = 1000, optimizer: Optimizer | None = None, iterations: int = 5000, every: int = 500,
    method: str = "SSBroyden", candidates: Any = None, k: float = 1.0, c: float = 1.0, weights: AdaptiveWeights | None = None,
    metrics: dict[str, Callable[[np.ndarray], float]] | None = None, seed: int = 0, seconds: float | None = None,
    progress: bool | None = None, checkpoint: str | os.PathLike[str] | None = None, resume: bool = False,
) -> Solution:  # fmt: skip
    """Solve a residual problem: Adam, then a quasi-Newton method on new points that are drawn by the residual.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,), float64
        The parameters to begin with. They are not changed.
    problem : ResidualProblem
        The equations and conditions.
    adam : int
        Steps of `optimizer` at the start, each on all points.
    optimizer : Optimizer, optional
        By default ``Adam(1e-3)``.
    iterations : int
        Iterations of the quasi-Newton method, in rounds of `every`; its matrix is kept from round to round.
    every : int
        Iterations of a round. Before each round points are drawn and weights updated. While weights follow time, and where
        measurements are held out, a round has at most 100.
    method : str
        "SSBroyden", "BFGS" or "L-BFGS".
    candidates : function, array or sequence, optional
        The points to draw from, as in `ResidualProblem.resampled`, or a function of a seed that returns them for each round.
        None keeps the problem's points.
    k, c : float
        The settings of the draws, see `ResidualProblem.resampled`.
    weights : AdaptiveWeights, optional
        Weights to update before each round, and every 100 steps of Adam. The object is updated in place.
    metrics : dict of functions, optional
        Functions of the parameters that return a number, such as an error; recorded after Adam and after each round.
    seed : int
        The seed of the points. The same seed gives the same run.
    seconds : float, optional
        No round begins after this time; a resumed run counts the time before.
    progress : bool, optional
        Whether to show a bar. None shows one on terminals and in notebooks, True lines of text elsewhere.
    checkpoint : path, optional
        A folder for the checkpoint, which is written after Adam and after each round. It belongs to one run.
    resume : bool
        Whether to continue, with identical bits, from the checkpoint in that folder, if there is one. `iterations` and
        `seconds` may be larger than before; all other arguments must be the same.

    Returns
    -------
    Solution
        The parameters and the history. Ctrl-C ends the run after an iteration: `p` is that of the last one, and ``stopped`` has
        the reason.

    Raises
    ------
    TypeError, ValueError
        For invalid arguments, for a checkpoint that is damaged or has other settings, and for a folder that another run writes
        to.
    """
    check_net(net)
    check_is("problem", problem, ResidualProblem, "a ResidualProblem")
    if optimizer is None:
        optimizer = Adam(1e-3)
    check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    check_count("adam", adam, 0)
    check_count("iterations", iterations, 0)
    check_count("every", every)
    check_word("method", method, "SSBroyden", "BFGS", "L-BFGS")
    check_seed(seed)
    if seconds is not None:
        check_number("seconds", seconds, "in (0, inf)")
    if weights is not None:
        check_is("weights", weights, AdaptiveWeights, "an AdaptiveWeights")
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise TypeError(f'`metrics` (={shown(metrics)}) must be functions of `p` by name, such as {{"error": error}}')
    _warn_of_units(problem)
    if resume and checkpoint is None:
        raise ValueError("`resume` needs `checkpoint`, the folder that the run before has written")
    p = np.array(as_numpy("p", p), np.float64)
    check_trained(p, net.n_params)
    settings = [
        repr(net), repr(problem.loss), problem.x, problem.t, p, repr(optimizer), adam, every, method, k, c, repr(weights), seed
    ]  # fmt: skip
    run = _Run(net, p, problem, weights, method, every, candidates, k, c, seed, metrics or {}, _digest(settings))
    folder = None if checkpoint is None else check_path("checkpoint", checkpoint, "folder")
    path = None if folder is None else folder / FILE
    with nullcontext() if folder is None else FolderLock(folder):
        if path is not None and resume and path.exists():
            run.load(path)
        with Progress(progress, adam + iterations, "iteration") as bar:
            run.go(adam, optimizer, iterations, seconds, bar, path)
    return run.solution


class _Run:
    """The rounds of a run, and the numbers that each passes to the next."""

    def __init__(
        self, net: Chain, p: np.ndarray, problem: ResidualProblem, weights: AdaptiveWeights | None, method: str, every: int,
        candidates: Any, k: float, c: float, seed: int, metrics: dict[str, Callable[[np.ndarray], float]], digest: str,
    ) -> None:  # fmt: skip
        self.net, self.problem, self.weights, self.method, self.every = net, problem, weights, method, every
        self.candidates, self.k, self.c, self.seed, self.metrics, self.digest = candidates, k, c, seed, metrics, digest
        pools, whole = self._pools(0), problem
        held = held_out(problem, seed, [k for k, pool in enumerate(pools) if pool is None])
        if any(rows is not None for rows in held):
            self.problem = problem = only_at(whole, [None if rows is None else ~rows for rows in held])
        self.solution, self.start, self.p, self.at = Solution(p, problem), p.copy(), p, problem
        self.solution.metrics = {name: [] for name in metrics}
        self.matrix: np.ndarray | None = None
        self.rounds = self.failed = self.done = 0
        self.ended_adam = False
        self.judge = Judge(net, p, whole, pools, seed, held)
        self.renewed: list[int] = []  # terms whose points are drawn anew since residuals between them are larger
        self.best = self.unseen = np.inf  # the least losses at second points: of all but unseen measurements, and of these
        self.factors = np.ones(len(problem.terms))  # of the weights of conditions that poor rounds have left behind
        self.causal: CausalWeights | None = None  # weights that follow time, once the first round was poor
        self.poor = False  # whether times should be weighed
        self.long = 0  # iterations up to the last look that ended a long stretch
        self.cut = False  # whether the last round was ended by the number of iterations or by Ctrl-C, not by the method
        self.lost = False  # whether the last round made the second residuals much larger
        self.before = 0.0  # seconds of the runs before

    def go(
        self, adam: int, optimizer: Optimizer, iterations: int, seconds: float | None, bar: Progress, path: Path | None
    ) -> None:
        solution, begun = self.solution, time.perf_counter()

        def clock() -> float:
            return self.before + time.perf_counter() - begun

        try:
            if self.ended_adam:
                bar.update(adam + self.done)
            else:
                loss = self._adam(adam, optimizer, bar)
                self._record(loss, clock(), path)
            while self.done < iterations and not solution.stopped:
                axis = time_axis(self.problem) if self.poor and self.rounds == 1 and self.causal is None else None
                if axis is not None:
                    self._begin_again(axis, adam, optimizer, bar)
                if seconds is not None and clock() >= seconds:
                    solution.stopped = f"{seconds:g} seconds are over"
                    break
                loss = self._round(min(self.every, iterations - self.done), bar)
                self._record(loss, clock(), path)
        except KeyboardInterrupt:
            solution.p = self.p
            verdict = self._look()
            solution.success, solution.message = verdict.success, verdict.sentence()
            solution.stopped = f"interrupted after {counted(self.done, 'iteration')}"

    def _begin_again(self, axis: int, steps: int, optimizer: Optimizer, bar: Progress) -> None:
        """Return to the start, with weights that follow time."""
        self.causal, self.matrix, self.p = CausalWeights(axis, self.judge.unit), None, self.start.copy()
        self._add_points()
        self._adam(steps, optimizer, bar)

    def _add_points(self) -> None:
        """Take points beside those of other terms too, where a jump can hide."""
        pools = self.judge.spread(self.judge.renewable, self._seed(1), 1)
        self.problem = self.problem.resampled(self.net, self.p, pools, self._seed(1), k=0.0)

    def _seed(self, number: int) -> int:
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def _pools(self, number: int) -> list[Any]:
        """The candidates of each term in a round; None for a term that keeps its points."""
        given = self.candidates(self._seed(number)) if callable(self.candidates) else self.candidates
        if given is None:
            given = [None] * len(self.problem.terms)
        elif isinstance(given, Term) or hasattr(given, "shape"):
            given = [given]
        return list(given)

    def _adam(self, steps: int, optimizer: Optimizer, bar: Progress) -> float:
        """Steps of Adam; returns the last loss, NaN without steps."""
        history: History | None = None
        done, self.at, self.solution.problem = 0, self.problem, self.problem
        while done < steps:
            stretch = min(ADAM_STRETCH if self.weights or self.causal else steps, steps - done)
            if self.weights is not None:
                self.solution.problem = self.weights.update(self.net, self.p, self.problem)
            if self.causal is not None:
                self.solution.problem = self.causal.update(self.net, self.p, self.solution.problem)

            def count(state: Any) -> None:
                bar.update()
                if bar.due():
                    bar.show({"loss": f"{state.history.loss[-1]:.3g}"})

            at, callbacks = self.solution.problem, [count] if bar.begun else []
            history = train(
                self.net, self.p, at.x, at.t, at.loss, optimizer, epochs=stretch, batch_size=None, shuffle=False,
                progress=False, callbacks=callbacks, resume=history,
            )  # fmt: skip
            if history.stopped:
                raise KeyboardInterrupt
            done += stretch
        self.ended_adam = True
        return float("nan") if history is None else history.loss[-1]

    def _round(self, iterations: int, bar: Progress) -> float:
        """Iterations on new points and with new weights; returns the last loss."""
        solution = self.solution
        self.rounds, self.cut = self.rounds + 1, True
        causal = None if self.causal is None or self.causal.settled else self.causal
        renewed = self._renew(causal)
        if causal is not None or self.judge.held:
            iterations = min(iterations, SHORT_ROUND)
        at = solution.problem
        objective = self.net.objective(at.x, at.t, at.loss)
        latest, first = self.p, self.done

        def follow(p: np.ndarray) -> None:
            nonlocal latest
            latest = p
            self.done += 1
            bar.update()
            if bar.due():
                bar.show({"loss": f"{solution.loss[-1]:.3g}"} if solution.loss else {})

        try:
            found = minimize(
                objective, self.p, self.method, state=self.matrix, maxiter=iterations, gtol=0.0, ftol=0.0,
                callback=follow, progress=False,
            )  # fmt: skip
        finally:
            self.p = latest
        self.matrix, self.cut = found.state, self.done - first >= iterations
        self.failed = 0 if self.done > first else self.failed + 1
        if self.failed >= (MAX_FAILED if renewed else 1):
            solution.stopped = found.message
        return found.fun

    def _renew(self, causal: CausalWeights | None) -> bool:
        """Draw points and update weights for a round. Returns whether there is anything new."""
        at = self.problem
        pools = self._pools(self.rounds) if causal is None else [None] * len(at.terms)
        between = self.judge.spread(self.renewed if causal is None else [], self._seed(self.rounds), TIMES)
        pools = [pool if other is None else other for pool, other in zip(pools, between, strict=True)]
        if any(pool is not None for pool in pools):
            at = at.resampled(self.net, self.p, pools, self._seed(self.rounds), k=self.k, c=self.c)
        self.at = at
        if causal is not None:
            at = causal.update(self.net, self.p, at)
        elif self.lost and self.renewed:
            self.p, self.matrix = self.solution.p.copy(), None
        if self.weights is not None:
            at = self.weights.update(self.net, self.p, at)
        self.solution.problem = self._heavier(at)
        return self.weights is not None or any(pool is not None for pool in pools)

    def _heavier(self, at: ResidualProblem) -> ResidualProblem:
        """The problem with the factors of weights."""
        if (self.factors == 1.0).all():
            return at
        at = copy.copy(at)
        at.t = at.t.copy()
        at.t[:, : len(self.factors)] *= self.factors
        return at

    def _raise_weights(self, verdict: Verdict) -> None:
        """Give more weight to the conditions that a poor round has left behind."""
        if not (self.poor and self.rounds) or self.weights is not None or not (self.causal is None or self.causal.settled):
            return  # while times count differently, the residuals at all times cannot be compared
        behind = [k for k in self.judge.behind(verdict) if self.factors[k] < HEAVIEST]
        if behind:
            self.factors[behind] *= HEAVIER
            self.matrix = None

    def _numbers(self) -> dict[str, float]:
        """The weights for the history."""
        if self.weights is not None:
            return self.weights.numbers()
        return {f"factor {k}": float(self.factors[k]) for k in np.flatnonzero(self.factors != 1.0)}

    def _look(self) -> Verdict:
        short = self.rounds > 0 and self.cut and self.done - self.long < SHORT_ROUND
        if not short:
            self.long = self.done
        return self.judge.look(self.p, self.at, self.rounds, short=short)

    def _record(self, loss: float, seconds: float, path: Path | None) -> None:
        solution = self.solution
        numbers: dict[str, Any] = {name: metric(self.p) for name, metric in self.metrics.items()}
        for name, number in numbers.items():
            if not hasattr(number, "__float__") or np.shape(number):
                raise TypeError(f"the metric {name} must return a number, got {shown(number)}")
        verdict = self._look()
        self.renewed = sorted({*self.renewed, *(k for k in verdict.differing if k in self.judge.renewable)})
        second, measured = float(verdict.second.sum()), float(verdict.second[self.judge.held].sum())
        self.lost = second - measured > LOST * self.best
        noisy = not self.lost and verdict.unseen > SAME * self.unseen  # the round has followed the noise of measurements
        if not (self.lost or noisy):
            solution.p = self.p.copy()
            self.unseen = min(self.unseen, verdict.unseen)
        if noisy:
            solution.message = solution.message.removesuffix(NOISY) + NOISY
        elif not (self.lost and verdict.success):  # a run that loses its result has none to rely on
            solution.success, solution.message = verdict.success, verdict.sentence()
        self.best = min(self.best, second - measured)
        self.poor = self.lost or not verdict.relative <= POOR
        self._raise_weights(verdict)
        solution.second.append(second)
        solution.terms.append(verdict.second.tolist())
        solution.loss.append(loss)
        solution.iterations.append(self.done)
        solution.seconds.append(seconds)
        solution.weights.append(self._numbers())
        for name, number in numbers.items():
            solution.metrics[name].append(float(number))
        if path is not None:
            self._save(path)

    def _save(self, path: Path) -> None:
        s = self.solution
        causal = self.causal and (self.causal.axis, self.causal.settled)
        known = {name: getattr(self, name) for name in STATE} | {
            "digest": self.digest, "causal": causal, "factors": self.factors.tolist(), "loss": s.loss, "second": s.second,
            "terms": s.terms, "iterations": s.iterations, "seconds": s.seconds, "weights": s.weights, "metrics": s.metrics,
            "success": s.success, "message": s.message,
        }  # fmt: skip
        arrays: dict[str, Any] = {
            "p": self.p, "best": s.p, "x": s.problem.x, "t": s.problem.t, "outputs": self.judge.outputs,
            "earlier": self.judge.earlier,
        }  # fmt: skip
        if self.matrix is not None:
            arrays["matrix"] = self.matrix
        if self.weights is not None:
            arrays |= {f"weights {name}": array for name, array in self.weights.state().items()}
        storage.write(path, arrays, {"solve": json.dumps(known)})

    def load(self, path: Path) -> None:
        """Continue from a checkpoint. Raises ValueError for one that is damaged or of other settings."""
        try:
            arrays, texts = storage.read(path)
            known = dict(json.loads(texts["solve"]))
        except (storage.DamagedFileError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"`checkpoint` (={str(path.parent)!r}) has a damaged file {FILE!r}: {error}") from error
        if known.pop("digest") != self.digest:
            raise ValueError(f"`checkpoint` (={str(path.parent)!r}) is of a run with other settings, problem or start")
        s, self.ended_adam = self.solution, True
        absent = sorted({*STATE, "factors"} - known.keys())
        if absent:
            raise ValueError(
                f"`checkpoint` (={str(path.parent)!r}) is of another version of chains: it has no {listed(absent)}"
            )
        for name in STATE:
            setattr(self, name, known.pop(name))
        self.factors = np.array(known.pop("factors"))
        causal = known.pop("causal")
        if causal is not None:
            self.causal = CausalWeights(causal[0], self.judge.unit, causal[1])
            self._add_points()
        for name, values in known.items():
            setattr(s, name, values)
        self.p, s.p = arrays["p"], arrays["best"]
        self.judge.outputs, self.judge.earlier = arrays["outputs"], arrays.get("earlier", arrays["outputs"])
        s.problem = copy.copy(self.problem)
        s.problem.x, s.problem.t = arrays["x"], arrays["t"]
        self.before = s.seconds[-1]
        self.matrix = arrays.get("matrix")
        if self.weights is not None:
            self.weights.restore({name[8:]: array for name, array in arrays.items() if name.startswith("weights ")})


def _warn_of_units(problem: ResidualProblem) -> None:
    """Warn where a network would have to work on numbers far from one."""
    if problem.scales is None:
        extreme = problem.guessed_scales().extreme((*problem.coordinates, *problem.outputs))
        if extreme:
            warnings.warn(
                f"networks learn from numbers of about one, but the sizes of variables are far from it: {', '.join(extreme)}; "
                "ResidualProblem(..., scales={}) scales them",
                stacklevel=4,
            )


def _digest(settings: list[Any]) -> str:
    found = hashlib.sha256()
    for each in settings:
        found.update(each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode())
    return found.hexdigest()
