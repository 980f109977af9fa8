"""Doses of an `ODE`: linear compartments against closed forms, gradients by all features, ties, padding and refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Doses, Equations, MSELoss, ode_steps, tanh
from tests.harness import BACKENDS
from tests.regimens import Regimens

STEPS = {
    "equal": {"steps": 60},
    "checkpoints": {"steps": 60, "checkpoint_every": 7},
    "control": {"rtol": 1e-11, "max_steps": 600},
}
DECAY = Equations(lambda c, k: -k * c, ("c", "k"))
CURVED = Equations(lambda c, k, t: -k * c * c / (1.0 + c) + 0.1 * t, ("c", "k", "t"))


def difference(f, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The derivative of a function of each sample by all of its features, by central differences."""
    out = np.zeros_like(x)
    for i in range(x.shape[1]):
        moved = np.zeros_like(x)
        moved[:, i] = step
        with np.errstate(invalid="ignore"):
            out[:, i] = (f(x + moved) - f(x - moved)) / (2.0 * step)
    return out


@pytest.mark.parametrize("how", STEPS)
@pytest.mark.parametrize(
    ("model", "infusion", "several"),
    [("absorbed", None, False), ("central", "rate", True), ("both", "duration", False), ("both", "rate", True)],
)
def test_compartments_are_those_of_closed_forms_with_their_gradients(how, model, infusion, several):
    rng = np.random.default_rng([len(how), len(model)])
    drawn = Regimens(rng, 3, model, infusion, several)
    net = Chain(
        ODE(drawn.rhs, drawn.observed, given=drawn.given, doses=drawn.doses, **STEPS[how]), input_shape=drawn.x.shape[1:]
    )
    p = net.init(seed=0, dtype=np.float64)
    exact = drawn.solution()
    np.testing.assert_allclose(net(drawn.x, p), exact, rtol=0.0, atol=1e-9)
    dy = rng.normal(size=exact.shape)
    dx = net.vjp(p, drawn.x, dy)[1]

    def product(x: np.ndarray) -> np.ndarray:
        held, drawn.x = drawn.x, x
        y, drawn.x = drawn.solution(), held
        return (y * dy).sum((1, 2))

    free = drawn.free & np.isfinite(drawn.x) & (drawn.x != 0.0)
    np.testing.assert_allclose(dx[free], difference(product, drawn.x)[free], rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("how", [{"steps": 3}, {"steps": 3, "checkpoint_every": 2}, {"steps": 5, "checkpoint_every": 2},
                                 {"method": "kvaerno3", "steps": 2}], ids=str)  # fmt: skip
@pytest.mark.parametrize("infusion", [None, "rate", "duration"])
def test_the_gradient_is_that_of_the_computed_numbers(how, infusion):
    doses = Doses(3, infusion=infusion, lag=True, bioavailability=True)
    net = Chain(ODE(CURVED, 3, given=1, time=True, doses=doses, **how), input_shape=(1 + 1 + doses.width + 3,))
    p = net.init(seed=0, dtype=np.float64)
    lasting = [[0.0, 1.5]] if infusion else None
    columns = doses.columns([[0.0, 1.0]], [[1.0, 2.0]], lasting)
    x = np.concatenate([[[0.5, 0.7, 0.2, 0.8]], columns, [[0.0, 0.9, 2.0]]], axis=1)
    dy = np.array([[[1.0], [-0.7], [2.0]]])
    dx = net.vjp(p, x, dy)[1]
    wanted = difference(lambda x: (net(x, p) * dy).sum((1, 2)), x, 1e-6)
    free = np.isfinite(x[0])
    free[-3] = False  # the first time
    if infusion:
        free[4 + 6 : 4 + 9] = columns[0, 6:] > 0.0  # a dose at once may not become an infusion
    np.testing.assert_allclose(dx[0][free], wanted[0][free], rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("how", [{"steps": 20}, {"rtol": 1e-10, "max_steps": 100}], ids=["equal", "control"])
def test_an_observation_sees_the_state_before_a_dose_at_its_time(name, how):
    net = Chain(ODE(DECAY, 4, given=1, doses=Doses(4), **how), input_shape=(14,), backend=name)
    p = net.init(seed=0, dtype=np.float64)
    times = (0.0, 1.0, 2.0, 2.0)
    x = np.array([[1.0, 0.5, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, *times],
                  [1.0, 0.5, np.inf, np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0.0, *times]])  # fmt: skip
    e = np.exp(-0.5)
    at_one = 3.0 * e
    at_two = (at_one + 7.0) * e
    np.testing.assert_allclose(net(x, p)[:, :, 0], [[1.0, at_one, at_two, at_two], [1.0, e, e * e, e * e]], atol=1e-8)
    later = net.vjp(p, x, np.array([[[0.0], [0.0], [1.0], [0.0]]] * 2))[1]
    np.testing.assert_allclose(later[0, [2, 3]], [0.5 * 2.0 * e * e, 0.5 * 3.0 * e], atol=1e-7)  # later doses decay less


def test_lags_and_bioavailability_come_from_a_network_and_are_found():
    doses = Doses(2, lag=True, bioavailability=True)
    parts = Equations(
        lambda c, k, t0, t1, a0, a1, lag, share: (c, k, lag, share, t0, t1, a0, a1), ("c", "k", "t0", "t1", "a0", "a1"),
        parameters={"lag": 0.3, "share": 0.5},
    )  # fmt: skip
    net = Chain(parts, ODE(DECAY, np.linspace(0.0, 4.0, 5), given=1, rtol=1e-8, max_steps=96, doses=doses), backend="numpy")
    x = np.concatenate([[[0.0, 0.8], [0.0, 0.5]], doses.columns([[0.0, 1.6]] * 2, [[1.0, 2.0]] * 2)], axis=1)
    t = net(x, np.array([0.7, 0.9]))
    fit = net.objective(x, t, MSELoss()).minimize(np.array([0.6, 0.6]), options={"gtol": 1e-9})
    np.testing.assert_allclose(fit.x, [0.7, 0.9], atol=1e-5)
    hessian = [net.hvp(fit.x, x, t, MSELoss(), v) for v in np.eye(2)]
    slopes = [net.value_and_grad(fit.x + d, x, t, MSELoss())[1] for d in (1e-5 * np.eye(2)).tolist()]
    before = [net.value_and_grad(fit.x - d, x, t, MSELoss())[1] for d in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(hessian, (np.array(slopes) - before) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize("how", [{"steps": 10}, {"rtol": 1e-7, "max_steps": 48}], ids=["equal", "control"])
def test_lengths_cut_times_and_doses_after_them(how):
    doses = Doses(3, lag=True)
    net = Chain(ODE(Dense(2, 2, tanh), 4, doses=doses, **how), input_shape=(2 + doses.width + 4,), backend="numpy")
    p = net.init(seed=1, dtype=np.float64)
    row = [0.3, -0.2, 0.1, 0.0, 0.4, 1.7, 1.0, 0.5, 2.0, 0.0, 0.8, 1.5, 2.0]
    short = Chain(ODE(Dense(2, 2, tanh), 3, doses=doses, **how), input_shape=(2 + doses.width + 3,), backend="numpy")
    x, dy = np.array([row, [*row[:-1], np.nan]]), np.ones((2, 4, 2))
    y = net(x, p, lengths=np.array([4, 3]))
    np.testing.assert_allclose(y[1, :3], short(x[1:, :-1], p)[0], rtol=1e-5)
    assert not y[1, 3].any()
    g, dx = net.vjp(p, x, dy, lengths=np.array([4, 3]))
    a, b = net.vjp(p, x[:1], dy[:1]), short.vjp(p, x[1:, :-1], dy[1:, :3])
    np.testing.assert_allclose(g, a[0] + b[0], rtol=1e-5)
    np.testing.assert_allclose(dx[1, :-4], b[1][0, :-3], rtol=1e-5, atol=1e-7)
    assert dx[1, -1] == 0.0


def test_steps_have_times_as_people_count_them_and_a_dose_that_does_not_fit_is_named():
    for how in ({"steps": 2}, {"rtol": 1e-4, "max_steps": 40}):
        doses = Doses(2, (0, 1), lag=True)
        net = Chain(
            ODE(Dense(2, 2, tanh), (1.0, 2.0, 4.0), doses=doses, **how), input_shape=(2 + doses.width,), backend="numpy"
        )
        p = net.init(seed=0, dtype=np.float64)
        x = np.array([[0.1, 0.2, 0.5, 0.0, 1.0, 2.5, 1.0, 2.0, 0.0, 1.0]])
        (way,) = ode_steps(net, p, x)
        assert not way.problem
        assert (way.times[0], way.times[-1]) == (1.0, 4.0)
        assert {1.5, 2.0, 2.5} <= set(way.times.tolist())
        np.testing.assert_allclose(way.states[-1], net(x, p)[0, -1])
        early, elsewhere = x.copy(), x.copy()
        early[0, 4], elsewhere[0, -1] = 0.25, 2.0
        assert "dose 0 comes at 0.75, but the solution begins at 1" in ode_steps(net, p, early)[0].problem
        assert "number 2 of the state, which is not among" in ode_steps(net, p, elsewhere)[0].problem
        assert np.isnan(net.loss(p, early, np.zeros((1, 3, 2)), MSELoss()))
    with pytest.raises(FloatingPointError, match=r"trajectory 0: dose 0 comes at 0\.75"):
        net(early, p)


def test_settings_and_columns_are_refused_by_name():
    for settings, message in (
        ({"count": 0}, "`count`"), ({"count": 2, "into": -1}, r"`into` \(=-1\)"), ({"count": 2, "into": (0, 0)}, "twice"),
        ({"count": 2, "into": ()}, "`into`"), ({"count": 2, "infusion": "slow"}, "`infusion`"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Doses(**settings)
    with pytest.raises(TypeError, match="`lag`"):
        Doses(2, lag=1.5)
    doses = Doses(2, (0, 2), infusion="rate")
    for arrays, message in (
        (([[0.0, np.nan]], [[1.0, 1.0]]), "`times` must be finite, but dose 1 of subject 0 has nan"),
        (([[0.0, 1.0]], [[1.0, -1.0]]), "`amounts` must be finite and not negative, but dose 1 of subject 0 has -1"),
        (([[0.0, 1.0]], [[1.0, 1.0]], [[-2.0, 0.0]]), "`infusion` must be finite and not negative"),
        (([[0.0, 1.0]], [[1.0, 1.0]], None, [[0, 1]]), r"`into` must be among \(0, 2\), but dose 1 of subject 0 has 1"),
        (([[0.0, 1.0, 2.0]], [[1.0, 1.0, 1.0]]), "3 doses of each subject, but there is place for 2"),
        (([0.0, 1.0], [1.0, 1.0]), r"`times` has shape \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            doses.columns(*arrays)
    for more, message in (
        ({"adjoint": True}, "adjoint"),
        ({"event": Dense(2, 1)}, "event"),
        ({"forcing": ([0], [1])}, "forcing"),
    ):
        with pytest.raises(ValueError, match=f"`{message}` .* does not go with `doses`"):
            ODE(Dense(2, 2), (0.0, 1.0), doses=Doses(1), **more)
    with pytest.raises(TypeError, match="`doses`"):
        ODE(Dense(2, 2), (0.0, 1.0), doses=3)
    with pytest.raises(ValueError, match="go into number 2 of the state, which has 2"):
        Chain(ODE(Dense(2, 2), (0.0, 1.0), doses=Doses(1, 2)), input_shape=(4,))


def test_doses_are_kept_by_pickles():
    ode = pickle.loads(pickle.dumps(ODE(Dense(2, 2), (0.0, 1.0), doses=Doses(3, (0, 1), infusion="rate", lag=True))))
    assert repr(ode.doses) == "Doses(3, (0, 1), infusion='rate', lag=True)"
    assert "doses=Doses(3" in repr(ode)
