"""Steps of plain gradient descent done by the products for the gradient, through a stand-in for cublasLt."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, CrossEntropyLoss, Dense, SquaredLoss, relu, schedules, tanh, train
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.kernels import updates
from chains.backends.cupy.source.commands import Fused, Launch
from chains.program.recorder import Recorder
from tests.cupy import emulated
from tests.cupy.products import HALF, NETS
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

RATE = schedules.exponential(0.3, 0.5, every=1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Every matrix counts as large."""
    monkeypatch.setattr(updates, "LEAST_UPDATED_ELEMENTS", 1)


def updating(net: Chain, optimizer=None, **settings) -> list[Fused]:
    """The products of a step that update parameters."""
    program = net.program(SquaredLoss(), optimizer or SGD(RATE), **settings)
    return [step for step in Compiled(program).commands if isinstance(step, Fused) and step.update is not None]


def trained(net: Chain, name: str, device=None, dtype=np.float32, **settings):
    """Parameters after seven steps, the last of each epoch on fewer samples; on a device where one is given."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, *net.input_shape))
    t = rng.normal(size=(20, *net.output_shape))
    p = net.init(seed=1, dtype=dtype)
    p = p if device is None else device.array(p)
    run = Chain(*net.layers, input_shape=net.input_shape, backend=name)
    optimizer = settings.pop("optimizer", SGD(RATE))
    train(run, p, x.astype(dtype), t.astype(dtype), SquaredLoss(), optimizer, epochs=2, batch_size=6, seed=3, **settings)
    return np.array(p)


def test_matrices_are_updated_and_biases_by_what_remains():
    """Products stand behind all that reads their parameters, and the rest of the vector is left to kernels."""
    net = NETS["relu"]
    program = net.program(SquaredLoss(), SGD(0.1))
    steps = Compiled(program).commands
    kinds = [step.kind for step in steps if isinstance(step, Fused) and step.update is not None]
    assert sorted(kinds) == ["bgrada", "default", "default"]
    first = next(at for at, step in enumerate(steps) if isinstance(step, Fused) and step.update is not None)
    assert all(isinstance(step, (Fused, Launch)) for step in steps[first:])
    readers = [step for step in steps[first:] if isinstance(step, Fused) and step.update is None]
    assert readers == []
    rest = [step for step in steps[first:] if isinstance(step, Launch)]
    assert len(rest) == 2  # three biases, two of which are of one length


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 3),
        ({"optimizer": SGD(0.1, momentum=0.9)}, 0),
        ({"optimizer": SGD(0.1, clip_norm=1.0)}, 0),
        ({"optimizer": Adam(0.1)}, 0),
        ({"penalty": chains.L2Penalty(0.1)}, 0),
    ],
    ids=["plain", "momentum", "clipped", "adam", "penalty"],
)
def test_only_plain_steps_are_part_of_products(settings, count):
    assert len(updating(NETS["relu"], **settings)) == count


@pytest.mark.few(4)
@needs_compiler
@pytest.mark.parametrize("name", ["relu", "mixed", "no bias", "positions", "branches", "unaligned"])
def test_training_is_that_of_numpy(name, dtype, monkeypatch):
    net = NETS[name]
    wanted = trained(net, "numpy", dtype=dtype)
    assert updating(net)
    for made in (emulated.EmulatedBackend("fresh"), emulated.EmulatedBackend("fresh", True)):
        monkeypatch.setitem(chains.backends._BACKENDS, "fresh", lambda made=made: made)
        monkeypatch.setattr(chains.backends, "_loaded", {})
        found = trained(net, "fresh", dtype=dtype)
        assert_close(found, wanted, 1e-5 if dtype == np.float32 else 1e-13)
        assert not made.on_device.device.refused["default"]


@needs_compiler
@pytest.mark.parametrize("status", [7, 15])
def test_what_cublaslt_refuses_goes_the_plain_way(status, monkeypatch):
    """When it is asked, or when it runs: the gradient is stored, and the step done by a kernel."""
    wanted = trained(NETS["relu"], "numpy")
    for when in ("refuse", "fails"):
        made = emulated.EmulatedBackend("fresh")
        own = lambda problem, rank=0: status if problem.description.get("mode") == 1 else 0  # noqa: E731
        setattr(made.on_device.device.lt, when, own)
        monkeypatch.setitem(chains.backends._BACKENDS, "fresh", lambda made=made: made)
        monkeypatch.setattr(chains.backends, "_loaded", {})
        assert_close(trained(NETS["relu"], "fresh"), wanted, 1e-5)
        assert made.on_device.device.refused["default"] == 4  # two matrices, two batch sizes


@needs_compiler
def test_bfloat16_copies_of_parameters_are_made_anew(large, monkeypatch):
    """The copies of one step are not read by the next, whose parameters the product has changed."""
    net = Chain(Dense(8, 16, tanh), Dense(16, 8, relu), Dense(8, 8))
    made = emulated.EmulatedBackend("fresh", precision="bf16")
    monkeypatch.setitem(chains.backends._BACKENDS, "fresh", lambda: made)
    monkeypatch.setattr(chains.backends, "_loaded", {})
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(24, 8)).astype(np.float32), rng.integers(0, 8, 24)
    results = []
    for name in ("numpy", "fresh"):
        p = net.init(seed=1)
        run = Chain(*net.layers, backend=name)
        train(run, p, x, t, CrossEntropyLoss(), SGD(0.5), epochs=6, batch_size=12, seed=0)
        results.append(p)
    assert_close(results[1], results[0], 8 * HALF)
    assert np.abs(results[1] - net.init(seed=1)).max() > 0.05


def test_a_gradient_that_something_else_reads_is_stored():
    """A product whose operand is written before the step, or whose result is read, stays where it is."""

    def recorded(disturb):
        ops = Recorder("own", np.float32)
        x = ops.external("x", (8,), role="input", batched=True)
        dy = ops.external("dy", (8,), role="state", batched=True)
        p, rate = ops.external("p", (64,), role="state"), ops.external("rate", (), role="input")
        g = ops.scratch("gradient", (64,), batched=False)
        ops.matmul(g.reshape(8, 8), x.T, dy)
        disturb(ops, x, dy, p, g)
        ops.map(p, lambda p, g, rate: p - g * rate, p, g, rate)
        return [step for step in Compiled(ops.finish()).commands if isinstance(step, Fused) and step.update is not None]

    assert len(recorded(lambda ops, x, dy, p, g: None)) == 1
    disturbing = {
        "an operand": lambda ops, x, dy, p, g: ops.fill(dy, 0.0),
        "the gradient is read": lambda ops, x, dy, p, g: ops.copy(ops.external("seen", (64,), role="output"), g),
        "the gradient is changed": lambda ops, x, dy, p, g: ops.map(g, lambda g: 2 * g, g),
    }
    for name, disturb in disturbing.items():
        assert recorded(disturb) == [], name
