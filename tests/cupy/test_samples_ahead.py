"""The next step's samples, fetched while a step computes: what waits for them, and where there is no room for a second tile."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Chain, Dense, SquaredLoss, backends, tanh
from chains.backends import backend
from chains.backends.cupy.fused import fused
from chains.backends.cupy.fused.fused import fused_program
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.source.commands import Source
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

NAMES = ("one-kernel", "one-kernel-backwards")  # copies arrive as late as they may, or at once
PROGRAM = Chain(Dense(6, 9, tanh), Dense(9, 3)).program(SquaredLoss(), SGD(0.1))


def trained(name, kind=np.float32):
    """Parameters after three steps in one launch, the inputs of a type that is copied as it is or converted."""
    rng, runner = np.random.default_rng(0), backend(name)
    p = rng.normal(size=PROGRAM.buffers["p"].size).astype(np.float32)
    data = {"x": rng.normal(size=(15, 6)).astype(kind), "t": rng.normal(size=(15, 3)).astype(np.float32)}
    binding = runner.bind(PROGRAM, 5, {"p": p, "step": np.zeros(()), **PROGRAM.tuned([0.1])})
    with runner.running():
        assert runner.feed(binding, runner.sources(data), rng.permutation(15))(0, np.empty(3)) == 3
    return p


@needs_compiler
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_numbers_are_numpys(kind):
    found = [trained(name, kind) for name in NAMES]
    assert found[0].tobytes() == found[1].tobytes()
    assert_close(found[0], trained("numpy", kind), 1e-5)


@needs_compiler
@pytest.mark.parametrize("missing", ["waiting", "the second tile"])
def test_what_steps_wait_for(missing, monkeypatch):
    """Without it, copies that arrive late or at once give other numbers."""
    wanted = trained(NAMES[0])
    if missing == "waiting":
        monkeypatch.setattr(fused, "waited", lambda ahead: [])
    else:
        into, of_step = fused.copies, fused.tile_of_step
        monkeypatch.setattr(fused, "copies", lambda *given: [line.replace("(at & 1)", "0") for line in into(*given)])
        monkeypatch.setattr(fused, "tile_of_step", lambda *given: of_step(*given).replace("(step & 1)", "0"))
    monkeypatch.setattr(backends, "_loaded", {})
    assert [trained(name).tobytes() for name in NAMES] != [wanted.tobytes()] * 2


def text(room, kind=np.float32):
    made = fused_program(PROGRAM, tiling_of(PROGRAM, 5), room)
    launch = made.training(Source(), {"x": np.dtype(kind), "t": np.dtype(np.float32)})
    return launch.kernel.text, launch.shared


def test_where_samples_come_ahead():
    """Where shared memory has room for a second tile; numbers that are converted are not copied."""
    ahead, nbytes = text(1 << 16)
    assert ahead.count("COPY_AHEAD") == 4  # x and t, before the first step and in each
    plain, fewer = text(nbytes - 64)
    assert "COPY_AHEAD" not in plain
    assert fewer < nbytes
    assert text(1 << 16, np.uint8)[0].count("COPY_AHEAD") == 2
