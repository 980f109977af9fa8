"""Random regimens of doses for linear compartments, and their exact solutions by superposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains import Doses, Equations

ABSORBED = Equations(lambda d, c, ka, k: (-ka * d, ka * d - k * c), ("d", "c", "ka", "k"))
CENTRAL = Equations(lambda c, p, k, k12, k21: (k21 * p - (k + k12) * c, k12 * c - k21 * p), ("c", "p", "k", "k12", "k21"))
BOTH = Equations(
    lambda d, c, p, ka, k, k12, k21: (-ka * d, ka * d + k21 * p - (k + k12) * c, k12 * c - k21 * p),
    ("d", "c", "p", "ka", "k", "k12", "k21"),
)  # fmt: skip
MODELS: dict[str, tuple[Equations, int, Any]] = {  # the equations, the length of the state, and the matrix of the rates
    "absorbed": (ABSORBED, 2, lambda ka, k: [[-ka, 0.0], [ka, -k]]),
    "central": (CENTRAL, 2, lambda k, k12, k21: [[-k - k12, k21], [k12, -k21]]),
    "both": (BOTH, 3, lambda ka, k, k12, k21: [[-ka, 0.0, 0.0], [ka, -k - k12, k21], [0.0, k12, -k21]]),
}


class Regimens:
    """Doses and times of some subjects; `x` are the samples of an `ODE` with `doses`, and own times."""

    def __init__(self, rng: np.random.Generator, subjects: int, model: str, infusion: str | None, several: bool) -> None:
        self.rhs, self.n, self.matrix = MODELS[model]
        into = tuple(range(self.n)) if several else int(rng.integers(self.n))
        count, self.observed = int(rng.integers(1, 5)), int(rng.integers(2, 6))
        self.doses = Doses(count, into, infusion=infusion, lag=True, bioavailability=True)
        given = len(self.rhs.inputs) - self.n
        rates = rng.uniform(0.3, 1.0, (subjects, given)) * np.array([2.0, 0.7, 0.5, 0.3])[-given:]
        states = len(self.doses.states)
        times, amounts = np.sort(rng.uniform(0.0, 4.0, (subjects, count)), axis=1), rng.uniform(0.5, 4.0, (subjects, count))
        amounts[rng.random(amounts.shape) < 0.2] = 0.0
        lasting = rng.uniform(0.3, 2.0, times.shape) * (rng.random(times.shape) < 0.6)
        places = rng.choice(self.doses.states, times.shape)
        own = np.concatenate([np.zeros((subjects, 1)), np.sort(rng.uniform(0.1, 6.0, (subjects, self.observed - 1)))], axis=1)
        if rng.random() < 0.3:
            own[:, -1] = np.maximum(own[:, -2] + 0.1, times[:, -1] + 0.2)  # some doses come after the last time
        self.x = np.concatenate(
            [rng.uniform(0.0, 1.0, (subjects, self.n)), rates, rng.uniform(0.05, 0.6, (subjects, states)),
             rng.uniform(0.4, 1.0, (subjects, states)),
             self.doses.columns(times, amounts, lasting if infusion else None, places if several else None), own],
            axis=1,
        )  # fmt: skip
        self.given = given
        self.free = np.ones(self.x.shape[1], bool)  # the features by which there is a derivative
        if several:
            self.free[-self.observed - count : -self.observed] = False
        self.free[-self.observed :] = False

    def solution(self) -> np.ndarray:
        """The exact states at the times."""
        return np.array([self._of_subject(row) for row in self.x])

    def _of_subject(self, row: np.ndarray) -> np.ndarray:
        count, states, n = self.doses.count, len(self.doses.states), self.n
        start, rates, rest = row[:n], row[n : n + self.given], row[n + self.given : -self.observed]
        lags, shares, rest = rest[:states], rest[states : 2 * states], rest[2 * states :]
        times, amounts = rest[:count], rest[count : 2 * count]
        lasting = rest[2 * count : 3 * count] if self.doses.infusion else np.zeros(count)
        places = rest[-count:].astype(int) if isinstance(self.doses.into, tuple) else np.full(count, self.doses.into)
        own = row[-self.observed :]
        values, vectors = np.linalg.eig(np.array(self.matrix(*rates)))

        def grown(place: np.ndarray, since: np.ndarray) -> np.ndarray:
            return (vectors @ (np.exp(np.outer(values, since)) * np.linalg.solve(vectors, place)[:, None])).T.real

        def infused(place: np.ndarray, since: np.ndarray) -> np.ndarray:
            factors = np.expm1(np.outer(values, np.maximum(since, 0.0))) / values[:, None]
            return (vectors @ (factors * np.linalg.solve(vectors, place)[:, None])).T.real

        y = grown(start, own)
        for time, amount, lasts, place in zip(times, amounts, lasting, places.tolist(), strict=True):
            if amount == 0.0:
                continue
            k, unit = self.doses.states.index(place), np.eye(n)[place]
            since, arrived = own - time - lags[k], shares[k] * amount
            if lasts == 0.0:
                y += arrived * grown(unit, np.maximum(since, 0.0)) * (since > 0.0)[:, None]
                continue
            rate, duration = (lasts, arrived / lasts) if self.doses.infusion == "rate" else (arrived / lasts, lasts)
            y += rate * (infused(unit, since) - infused(unit, since - duration))
        return y
