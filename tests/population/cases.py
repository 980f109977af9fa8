"""Small populations with simulated data, of several kinds of models."""

from __future__ import annotations

import numpy as np

from chains import ODE, Chain, Dense, Equations, Select, softplus
from chains.expr import exp, log
from chains.population import Additive, Combined, Density, PopulationModel, Proportional

TWO = {"clearance": 0.08, "volume": 0.05}


def decay() -> Chain:
    """A bolus dose of 10 at time 0 in one compartment: (time, two effects)."""
    formula = Equations(
        lambda t, e1, e2, k, v: 10.0 * exp(-e2) / v * exp(-k * exp(e1 - e2) * t),
        ("t", "e1", "e2"),
        parameters={"k": 0.3, "v": 2.0},
        bounds={"k": (0.0, None), "v": (0.0, None)},
    )
    return Chain(formula)


def simulated(net: Chain, effects: np.ndarray, sd: float, times: int = 4, seed: int = 0, extra: np.ndarray | None = None):
    """Measurements with proportional errors: x, y, subjects; subjects have different numbers of samples."""
    rng = np.random.default_rng(seed)
    p = net.init(seed=seed, dtype=np.float64)
    number = np.concatenate([np.full(times - k % 2, k) for k in range(len(effects))])
    t = np.concatenate([np.sort(rng.uniform(0.3, 5.0, times - k % 2)) for k in range(len(effects))])
    x = t[:, None] if extra is None else np.column_stack([t, extra[number]])
    f = net(np.column_stack([x, effects[number]]), p)[:, 0]
    return x, f * (1.0 + sd * rng.standard_normal(len(f))), number


def closed_form(error, covariance="diagonal", subjects=12):
    rng = np.random.default_rng(1)
    net = decay()
    model = PopulationModel(net, TWO, error, covariance=covariance)
    return (model, *simulated(net, rng.normal(0.0, 0.25, (subjects, 2)), 0.12))


def with_network(subjects=8):
    """Clearance is a network of a covariate; one effect."""
    net = Chain(
        Equations(
            lambda t, z, e, rate: 5.0 * exp(-rate * exp(e) * t),
            ("t", "z", "e"),
            networks={"rate": (Chain(Dense(1, 3, softplus), Dense(3, 1, softplus)), ("z",))},
        )
    )
    rng = np.random.default_rng(2)
    model = PopulationModel(net, {"clearance": 0.06}, Proportional(0.02))
    return (model, *simulated(net, rng.normal(0.0, 0.25, (subjects, 1)), 0.12, extra=rng.uniform(-1.0, 1.0, subjects)))


def differential(subjects=6):
    """An `ODE` with a network inside; a sample is a subject with its times."""
    rhs = Equations(
        lambda a, e1, e2, uptake: (-uptake * exp(e1) - 0.1 * exp(e2) * a,),
        ("a", "e1", "e2"),
        networks={"uptake": (Chain(Dense(1, 3, softplus), Dense(3, 1, softplus)), ("a",))},
    )
    rng = np.random.default_rng(3)
    times = np.array([0.0, 0.7, 1.5])
    net = Chain(Select([0, 1, 2]), ODE(rhs, times, "midpoint", steps=2, given=2), input_shape=(3,))
    p = net.init(seed=0, dtype=np.float64)
    x, effects = rng.uniform(3.0, 5.0, (subjects, 1)), rng.normal(0.0, 0.2, (subjects, 2))
    y = net(np.column_stack([x, effects]), p)[..., 0]
    y = y + 0.1 * rng.standard_normal(y.shape)
    y[:, 0] = y[2, 2] = np.nan
    return PopulationModel(net, {"u": 0.04, "k": 0.04}, Additive(0.01), covariance="full"), x, y, None


def counts(subjects=10):
    """Counts with the density of Poisson; the method of Laplace alone."""
    net = Chain(Equations(lambda t, e, a, b: exp(a + b * t + e), ("t", "e"), parameters={"a": 1.0, "b": 0.2}))
    rng = np.random.default_rng(4)
    number = np.repeat(np.arange(subjects), 5)
    x = np.tile(np.arange(5.0), subjects)[:, None]
    f = net(np.column_stack([x, rng.normal(0.0, 0.4, subjects)[number]]), net.init(dtype=np.float64))[:, 0]
    model = PopulationModel(net, {"level": 0.16}, Density(lambda f, y: 2.0 * (f - y * log(f))))
    return model, x, rng.poisson(f).astype(float), number


def tails(subjects=8):
    """Errors with the density of Student and a scale, for the method of Laplace."""
    density = Density(lambda f, y, scale: 6.0 * log(1.0 + (y - f) * (y - f) / (5.0 * scale)) + log(scale), scale=0.02)
    net = decay()
    rng = np.random.default_rng(5)
    model = PopulationModel(net, TWO, density, covariance="full")
    return (model, *simulated(net, rng.normal(0.0, 0.25, (subjects, 2)), 0.05))


NORMAL = {
    "additive": lambda: closed_form(Additive(0.05)),
    "proportional": lambda: closed_form(Proportional(0.02), "full"),
    "combined": lambda: closed_form(Combined(0.01, 0.01), "full"),
    "network": with_network,
    "ode": differential,
}
DENSITIES = {"poisson": counts, "student": tails}
