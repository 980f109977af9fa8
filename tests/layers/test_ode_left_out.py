"""Steps that are left out leave nothing unwritten that is read later: with poison in place of what they would have written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chains import ODE, Adam, Chain, Dense, MSELoss, tanh
from chains.network import record
from chains.network.network import network_of
from chains.program import program as programs
from chains.program.loop import Loop
from chains.testing import run_program
from tests.harness import BACKENDS

BATCH, MOST = 3, 24  # many more attempts than any of the problems below needs
CASES = {
    "shared times": ((0.0, 0.3, 0.5), {}),
    "own times": (3, {}),
    "whole": ((0.0, 0.5), {"checkpoint_every": MOST}),
    "one by one": (3, {"checkpoint_every": 1}),
    "spare attempts": ((0.0, 0.3, 0.5), {"checkpoint_every": 5}),
    "seen": (3, {"time": True, "given": 1, "forcing": ((0.0, 0.4), ((1.0,), (0.5,)))}),
    "adjoint": (3, {"adjoint": True}),
    "implicit": ((0.0, 0.3, 0.5), {"method": "kvaerno3"}),
    "implicit, own times": (3, {"method": "kvaerno5", "time": True, "checkpoint_every": 7}),
    "implicit, equal steps": ((0.0, 0.3, 0.5), {"method": "kvaerno3", "rtol": None}),
}


def problem(times, how):
    """A network, and arrays of its programs."""
    control = {"rtol": 1e-3, "max_steps": MOST} if "rtol" not in how else {}
    seen = 2 + how.get("given", 0) + how.get("time", False) + ("forcing" in how)
    net = Chain(ODE(Chain(Dense(seen, 3, tanh), Dense(3, 2)), times, **how | control))
    rng, p = np.random.default_rng(0), net.init(seed=1, dtype=np.float64)
    x = rng.normal(size=(BATCH, *net.input_shape))
    if isinstance(times, int):
        x[:, -times:] = np.cumsum(rng.uniform(0.1, 0.2, (BATCH, times)), axis=1)
    cotangents = rng.normal(size=(BATCH, *net.output_shape))
    arrays = {"p": p, "x": x, "t": cotangents, "dy": cotangents, "moments": np.zeros(2 * p.size), "step": np.zeros(())}
    return net, arrays | {"lengths": np.array([len(cotangents[0]), 1, len(cotangents[0])])}


@pytest.fixture
def apart(monkeypatch):
    """No buffers share memory, so that nothing of another one stands in place of what is not written."""
    plan = programs.plan_scratch
    monkeypatch.setattr(programs, "plan_scratch", lambda lives: plan(replace(life, first=0, last=1 << 30) for life in lives))


@pytest.mark.usefixtures("apart")
@pytest.mark.few(1)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_read_that_steps_left_out_would_have_written(name, case, masked):
    net, arrays = problem(*CASES[case])
    network, dtype, target = network_of(net), np.dtype(np.float64), net.output_shape
    step = record.training_step(network, record.Criterion(MSELoss(), target, masked=masked), Adam(0.01), dtype)
    backwards = record.vjp(network, dtype, False, masked=masked)
    assert any(loop.skip_where_zero is not None for loop in backwards.operations if isinstance(loop, Loop)) or "equal" in case
    for program in (step, backwards, record.forward(network, dtype, False, masked=masked)):
        clean, poisoned = (run_program(program, name, BATCH, arrays, fill) for fill in (0x00, 0xFF))
        for key, array in clean.items():
            assert np.isfinite(array).all(), f"{program.name}: {key} is not finite"
            assert array.tobytes() == poisoned[key].tobytes(), f"{program.name}: {key} depends on what was there before"
