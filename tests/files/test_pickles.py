"""Pickles of an earlier version load, or are refused with a sentence that says what to do."""

from __future__ import annotations

import pickle
from importlib import import_module

import numpy as np
import pytest

import chains
from chains import GRU, HMC, ODE, Chain, Dense, Equations, MSELoss
from chains.support.moved import MOVED
from chains.testing import run_program
from tests.files import earlier

PICKLES = pickle.loads(earlier.PICKLES)
KINDS = {"bound": "Bound", "objective": "Objective", "history": "History"}
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", sorted(set(PICKLES) - {"residual loss"}))
def test_earlier_pickles_load(name):
    thing = pickle.loads(PICKLES[name])
    if isinstance(thing, Chain):
        x = RNG.normal(size=(2, *thing.input_shape))
        state = {"state": thing.init_state(np.float64)} if thing.n_state else {}
        assert np.isfinite(thing(x, thing.init(0, np.float64), **state)).all()
    elif not isinstance(thing, list):
        assert type(thing).__name__ == KINDS[name]
    twin = pickle.loads(pickle.dumps(thing))
    assert repr(twin) == repr(thing)


def test_what_they_hold_is_as_it_was():
    """The network of seed 0 on the samples of a seed, its objective, and a function of one sample."""
    rng = np.random.default_rng(0)
    net = pickle.loads(PICKLES["chain"])
    x, t = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    p = net.init(0, np.float64)
    assert net.frozen == {"0.bias"}
    objective = pickle.loads(PICKLES["objective"])
    wanted = net.loss(p, x, t, MSELoss(), penalty=chains.L2Penalty(0.1), state=objective._data["state"])
    assert abs(objective.value(p) - wanted) < 1e-12
    bound, own = pickle.loads(PICKLES["bound"]), Chain(Dense(4, 3, "tanh"))
    np.testing.assert_allclose(bound(x[0]), own(x[:1], own.init(np.random.default_rng(0), np.float64))[0], rtol=1e-12)
    optimizers = pickle.loads(PICKLES["optimizers"])
    assert optimizers[0] == chains.SGD(0.1, momentum=0.9)
    assert optimizers[3] == chains.RMSProp(1e-2)
    assert pickle.loads(PICKLES["losses"])[:2] == [chains.SquaredLoss(), MSELoss()]


@pytest.mark.parametrize("name", MOVED)
def test_moved_modules_are_found(name):
    assert import_module(name).__name__ == name


def test_renamed_and_later_settings_are_filled_in():
    """Layers and samplers as earlier versions kept them: without settings that came later, and under earlier names."""
    layer = Equations(lambda x, rate: rate * x, ("x",), parameters={"rate": 2.0})
    wanted = repr(layer)
    del vars(layer)["networks"], vars(layer)["bounds"]
    net = Chain(pickle.loads(pickle.dumps(layer)))
    assert repr(net[0]) == wanted
    assert net([[3.0]], net.init(0, np.float64)) == 6.0
    method = HMC(0.5, leapfrog_steps=7)
    vars(method)["leaps"] = vars(method).pop("leapfrog_steps")
    assert pickle.loads(pickle.dumps(method)) == HMC(0.5, leapfrog_steps=7)


def test_programs_with_earlier_names_compute_the_same():
    net = Chain(GRU(2, 3), ODE(Dense(3, 3), [0.0, 1.0], rtol=1e-3), input_shape=(4, 2))
    program = net.program(dtype=np.float64)
    kept = pickle.dumps(program, protocol=3)  # without lengths of frames
    for name, earlier_name in ((b"loop_strides", b"moves"), (b"skip_where_zero", b"only")):
        now, then = (b"X" + len(each).to_bytes(4, "little") + each for each in (name, earlier_name))
        assert now in kept
        kept = kept.replace(now, then)
    arrays = {"p": net.init(0, np.float64), "x": RNG.normal(size=(3, 4, 2))}
    wanted, found = (run_program(each, "numpy", 3, arrays)["y"] for each in (program, pickle.loads(kept)))
    np.testing.assert_array_equal(found, wanted)


def test_what_has_other_parts_now_is_refused():
    with pytest.raises(ValueError, match="another version of chains wrote the pickle: make the object again"):
        pickle.loads(PICKLES["residual loss"])


def test_other_modules_are_refused_with_what_to_do():
    gone = pickle.dumps(Chain(Dense(2, 1))).replace(b"chains.layers.dense", b"chains.layers.tense")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chains\.layers\.tense'.*chains\.save\(path, net, p\)"):
        pickle.loads(gone)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from chains import nothing  # noqa: F401
