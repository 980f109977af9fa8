"""Compartments in closed form: against matrix exponentials, an `ODE`, sixty digits, and with rates that are equal."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from chains import ODE, Chain, Equations
from chains.layers import Compartments
from chains.layers.compartments import mean2, mean3

NONE = np.empty(0)
SETTINGS = [
    {"compartments": 1},
    {"compartments": 1, "infusion": True, "bioavailability": True},
    {"compartments": 1, "absorption": True, "lag": True},
    {"compartments": 1, "infusion": True, "steady": True, "lag": True},
    {"compartments": 1, "absorption": True, "steady": True, "lag": True},
    {"compartments": 2},
    {"compartments": 2, "infusion": True},
    {"compartments": 2, "absorption": True, "bioavailability": True, "lag": True},
    {"compartments": 2, "infusion": True, "steady": True},
    {"compartments": 2, "absorption": True, "steady": True, "lag": True},
]


def divided(rates: list[float], t: float) -> float:
    """The divided difference of exp(-r t) over its value at rates of zero, with rates that differ by 1e-30 at least."""
    with localcontext() as context:
        context.prec = 110
        r = [Decimal(rate) + k * Decimal("1e-30") for k, rate in enumerate(rates)]
        values = [(-rate * Decimal(t)).exp() for rate in r]
        for order in range(1, len(r)):
            pairs = zip(values[1:], values, r[order:], r, strict=False)
            values = [(high - low) / (top - bottom) * -order / Decimal(t) for high, low, top, bottom in pairs]
        return float(values[0])


@pytest.mark.parametrize(("function", "count"), [(mean2, 2), (mean3, 3)])
def test_means_of_exponentials_have_all_digits(function, count):
    rng = np.random.default_rng(2)
    for _ in range(500):
        t = 10.0 ** rng.uniform(-3, 2)
        base = min(10.0 ** rng.uniform(-3, 2), 100.0 / t)
        rates = base * (1.0 + 10.0 ** rng.uniform(-14, 1, count) * rng.integers(0, 2, count))
        wanted = divided(rates.tolist(), t)
        if wanted > 1e-300:
            scale = max(1.0, rates.min() * t)  # of the rounding of exponents
            assert abs(function(*rates, t) - wanted) <= 1e-14 * scale * wanted


def drawn(layer, rng, samples):
    """Samples: rates of a drug, doses every few hours, and times from before the first dose to long after."""
    ranges = {"clearance": (0.5, 3.0), "volume": (2.0, 8.0), "exchange": (0.2, 3.0), "second volume": (2.0, 9.0)}
    ranges |= {"absorption": (0.2, 3.0), "bioavailability": (0.3, 1.0), "lag": (0.1, 1.5), "time": (-1.0, 30.0)}
    ranges |= {"amount": (0.0, 9.0), "duration": (0.0, 4.0), "interval": (6.0, 12.0), "time of dose": (0.0, 20.0)}
    names = [name.rstrip("0123456789 ").removesuffix(" of dose") for name in layer.features]
    names = ["time of dose" if "time of" in full else name for full, name in zip(layer.features, names, strict=True)]
    x = np.stack([rng.uniform(*ranges[name], samples) for name in names], 1)
    for k, name in enumerate(names):
        if name in ("duration", "interval"):
            x[rng.uniform(size=samples) < 0.3, k] = 0.0
    return x


def by_matrices(layer, sample):
    """The concentrations by matrix exponentials of each dose, and by 300 doses before it in a steady state."""
    linalg = pytest.importorskip("scipy").linalg
    at = dict(zip(layer.features, sample, strict=True))
    k10 = at["clearance"] / at["volume"]
    k12, k21 = (at["exchange"] / at["volume"], at["exchange"] / at["second volume"]) if layer.compartments == 2 else (0, 1)
    ka, lag = at.get("absorption", 0.0), at.get("lag", 0.0)
    rates = np.array([[-ka, 0.0, 0.0], [ka, -k10 - k12, k21], [0.0, k12, -k21]])
    into = np.array([1.0, 0.0, 0.0] if layer.absorption else [0.0, 1.0, 0.0])

    def response(since, duration):
        if since < 0.0:
            return 0.0
        if duration == 0.0:
            return (linalg.expm(rates * since) @ into)[1]
        both = np.zeros((4, 4))
        both[:3, :3], both[:3, 3] = rates, into / duration
        ended = min(since, duration)
        return (linalg.expm(rates * (since - ended)) @ (linalg.expm(both * ended) @ [0.0, 0.0, 0.0, 1.0])[:3])[1]

    found = []
    for j in range(layer.times):
        total = 0.0
        for k in range(layer.doses):
            given, amount = at[f"time of dose {k + 1}"], at[f"amount of dose {k + 1}"]
            duration, interval = at.get(f"duration of dose {k + 1}", 0.0), at.get(f"interval of dose {k + 1}", 0.0)
            elapsed = at[f"time {j + 1}"] - given
            if elapsed >= 0.0:
                repeats = range(300 if interval else 1)
                total += amount * sum(response(elapsed - lag + n * interval, duration) for n in repeats)
        found.append(total * at.get("bioavailability", 1.0) / at["volume"])
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_random_regimens_are_matrix_exponentials(settings):
    layer, rng = Compartments(doses=3, times=2, **settings), np.random.default_rng(4)
    x = drawn(layer, rng, 3 if settings.get("steady") else 20)
    wanted = np.array([by_matrices(layer, sample) for sample in x])
    found = Chain(layer, backend="numpy")(x, NONE)
    assert (wanted > 0.0).mean() > 0.5
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("lag", [5.5, 9.5, 25.0])
@pytest.mark.parametrize("absorption", [False, True])
def test_a_steady_state_may_lag_by_more_than_its_interval(absorption, lag):
    layer = Compartments(1, 1, 5, absorption=absorption, infusion=not absorption, steady=True, lag=True)
    own = {"clearance": 1.0, "volume": 5.0, "absorption": 0.7, "lag": lag, "amount of dose 1": 10.0, "interval of dose 1": 6.0}
    own |= {"duration of dose 1": 1.5, **{f"time {k + 1}": t for k, t in enumerate([-0.5, 0.25, 4.0, 8.0, 31.0])}}
    x = np.array([own.get(name, 0.0) for name in layer.features])
    found = Chain(layer, backend="numpy")(x[None], NONE)[0]
    np.testing.assert_allclose(found, by_matrices(layer, x), rtol=1e-12, atol=1e-13)


def test_infusions_of_a_steady_state_that_overlap_are_nan():
    net = Chain(Compartments(1, 1, infusion=True, steady=True), backend="numpy")
    # Clearance, volume, time; then the time, the amount, the duration and the interval of the dose.
    found = net(
        np.array([[1.0, 5.0, 2.0, 0.0, 10.0, duration, interval] for duration, interval in ((6, 6), (7, 6), (7, 0))]), NONE
    )
    assert np.isnan(found[:, 0]).tolist() == [False, True, False]


def test_an_ode_with_fine_steps_has_the_same_solution():
    rates = Equations(
        lambda depot, a, b, cl, v, q, w, ka: (-ka * depot, ka * depot - (cl + q) / v * a + q / w * b, q / v * a - q / w * b),
        ["depot", "a", "b", "cl", "v", "q", "w", "ka"],
    )
    times, drug = np.linspace(0.0, 12.0, 9), np.array([1.2, 4.0, 0.7, 6.0, 0.9])
    ode = Chain(ODE(rates, times, steps=60, given=5), backend="numpy")
    wanted = ode(np.array([[100.0, 0.0, 0.0, *drug]]), NONE)[0, :, 1] / drug[1]
    layer = Compartments(2, 1, 9, absorption=True)
    np.testing.assert_allclose(
        Chain(layer, backend="numpy")(np.array([[*drug, *times, 0.0, 100.0]]), NONE)[0], wanted, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-9, 1e-5])
def test_absorption_as_fast_as_elimination(gap):
    """The limit of two equal rates k is dose k t exp(-k t) / volume; derivatives are those of its expansion in the gap."""
    net, k, t = Chain(Compartments(1, 1, absorption=True), backend="numpy"), 0.5, 3.0
    value, first, second = net.derivatives(NONE, np.array([[1.0, 2.0, k + gap, t, 0.0, 8.0]]), order=2)
    decay = 4.0 * np.exp(-k * t)
    by_ka = decay * (t - 0.5 * k * t * t)
    assert value.item() == pytest.approx(decay * k * t + by_ka * gap, rel=1e-9)
    np.testing.assert_allclose(first[0, 0, 2], by_ka, rtol=1e-4)
    np.testing.assert_allclose(second[0, 0, 2], decay * (-t * t + k * t**3 / 3.0), rtol=1e-4)
    if gap < 1e-12:
        np.testing.assert_allclose([value.item(), first[0, 0, 2]], [decay * k * t, by_ka], rtol=1e-12)
        np.testing.assert_allclose(second[0, 0, 2], decay * (-t * t + k * t**3 / 3.0), rtol=1e-12)


@pytest.mark.parametrize("settings", [SETTINGS[4], SETTINGS[6], SETTINGS[7]], ids=str)
def test_derivatives_of_order_two_are_those_of_the_first(settings):
    layer, rng = Compartments(doses=2, times=1, **settings), np.random.default_rng(7)
    net, x = Chain(layer, backend="numpy"), drawn(layer, rng, 4)
    x[:, layer.features.index("time 1")] += 2.0
    n, step = len(layer.parameters), 1e-5
    _, _, second = net.derivatives(NONE, x, order=2)
    for k in range(n):
        shift = step * np.eye(x.shape[1])[k]
        high, low = (net.derivatives(NONE, x + sign * shift, order=1)[1][..., k] for sign in (1.0, -1.0))
        np.testing.assert_allclose(second[..., k], (high - low) / (2.0 * step), rtol=1e-6, atol=1e-7)


def test_features_are_named_in_their_order():
    layer = Compartments(2, 2, absorption=True, steady=True, lag=True)
    assert layer.parameters == ("clearance", "volume", "exchange", "second volume", "absorption", "lag")
    assert layer.features[6:] == (
        "time 1", "time of dose 1", "time of dose 2", "amount of dose 1", "amount of dose 2", "interval of dose 1",
        "interval of dose 2",
    )  # fmt: skip
