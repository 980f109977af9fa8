"""Settings of differential equations that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations


@pytest.mark.parametrize("times", [("0", "1"), (False, True), (False, 1.0), np.array([False, True]), np.array(["0", "1"])])
def test_words_and_flags_are_no_times(times):
    with pytest.raises(TypeError, match=r"`times` \(=.*\) must be a sequence of ascending times or a whole number"):
        ODE(Dense(2, 2), times)
    with pytest.raises(TypeError, match=r"`forcing\[0\]` \(=.*\) must be a sequence of ascending times"):
        ODE(Dense(2, 2), (0, 1), forcing=(times, (0.0, 1.0)))


@pytest.mark.parametrize(("method", "hint"), [("Kvaerno5", "kvaerno5"), ("RK4", "rk4"), ("Tsit", "tsit5"), ("heun", None)])
def test_a_method_that_is_nearly_one_is_asked_for(method, hint):
    text = r"`method` \(=.*\) must be 'euler', .* or 'kvaerno5'" + ("$" if hint is None else rf"; did you mean `{hint}`\?$")
    with pytest.raises(ValueError, match=text):
        ODE(Dense(2, 2), (0, 1), method)


@pytest.mark.parametrize(
    ("times", "text"),
    [((0, 0.5, 1), "(0, 0.5, 1)"), (range(6), "(0, 1, 2, 3, 4, 5)"), (range(7), "(0, 1, ..., 6)"), (9, "9")],
)
def test_few_times_are_printed(times, text):
    assert repr(ODE(Dense(2, 2), times)).endswith(f", {text}, method='tsit5', steps=1)")


def test_one_jump_is_printed_as_a_tuple():
    layer = ODE(Dense(2, 2), (0, 1), rtol=1e-3, jumps=[0.5])
    assert repr(layer).endswith(", jumps=(0.5,))")
    assert repr(eval(repr(layer), {"ODE": ODE, "Dense": Dense})) == repr(layer)


@pytest.mark.parametrize("count", [5, 50])
def test_interpolation_by_default_is_printed(count):
    layer = ODE(Dense(2, 2), np.arange(count), rtol=1e-3)
    assert (", interpolate=True" in repr(layer)) == layer.interpolates == (count == 50)
    assert repr(eval(repr(layer).replace("0, 1, ..., 49", f"*range({count}),"), {"ODE": ODE, "Dense": Dense})) == repr(layer)


def test_the_default_of_max_steps_fits_many_times():
    """Steps end at each of the times, so that 257 intervals need 257 steps at least."""
    times = np.linspace(0.0, 6.0, 400)
    net = Chain(ODE(Equations(lambda x, v: (v, -x), ("x", "v")), times, rtol=1e-6, interpolate=False), backend="numpy")
    y = net(np.array([[1.0, 0.0]]), np.zeros(0))
    np.testing.assert_allclose(y[0, :, 0], np.cos(times), atol=1e-5)
    most = [ODE(Dense(2, 2), n, rtol=1e-6, interpolate=False).max_steps for n in (5, 65, 66, np.arange(500.0))]
    assert most == [256, 256, 260, 1996]
    with pytest.raises(ValueError, match=r"`max_steps` \(=3\) must be at least 4"):
        ODE(Dense(2, 2), 5, rtol=1e-6, max_steps=3)
