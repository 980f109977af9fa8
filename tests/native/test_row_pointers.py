"""Large samples are read where they lie in the data set."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, BatchNorm, Chain, Dense, Dropout, SquaredLoss, tanh
from tests.harness import assert_close

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.backend import NativeBackend
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import processor
from chains.backends.numpy.backend import NumpyBackend
from tests.native.support import Fenced, floats, random_arrays, run_on

DENSE = Chain(Dense(300, 21, tanh), Dense(21, 5))
NETWORKS = {
    "dense": DENSE,
    "a column": Chain(Dense(200, 1, tanh), Dense(1, 5)),
    "statistics of the batch": Chain(Dense(150, 9), BatchNorm(9), Dense(9, 5, tanh)),
    "many layers": Chain(Dense(140, 6, tanh), *(Dense(6, 6, tanh) for _ in range(9)), Dense(6, 5)),
}


def indexed(net, dtype=np.float32, loss=SquaredLoss()):  # noqa: B008 - it has no state
    return compile_program(net.program(loss, SGD(0.1), dtype=dtype), processor()).signature.indexed


def test_which_samples_are_read_by_row_pointers():
    assert [indexed(net) for net in NETWORKS.values()] == ["x"] * 4
    assert indexed(Chain(Dense(100, 21, tanh), Dense(21, 5))) is None  # small samples
    assert indexed(Chain(Dropout(0.1), Dense(300, 5), input_shape=(300,))) is None  # a map reads them
    assert indexed(Chain(Dense(600, 600, tanh), Dense(600, 600))) is None  # a large product reads them


def fed(runner, program, batch, arrays, x, t, order, copies=()):
    """What steps on batches of data sets make of the arrays; those named in `copies` are given as float64, so that they
    are gathered."""
    fences = Fenced()
    sources = {}
    for name, source in {"x": x, "t": t}.items():
        kind = "float64" if name in copies else source.dtype
        sources[name] = fences(source.shape, kind, np.dtype(kind).itemsize)
        sources[name][...] = source
    own = {name: array.copy() for name, array in arrays.items() if name not in sources}
    binding = runner.bind(program, batch, own)
    values = np.full(len(order) // batch, np.nan)
    assert runner.feed(binding, sources, order)(0, values) == len(values)
    fences.check()
    return {"values": values, **{name: own[name] for name, b in program.buffers.items() if b.role == "state"}}, binding


@pytest.mark.few(4)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_as_of_gathered_samples(name, threads, eager):
    net, rng = NETWORKS[name], np.random.default_rng(0)
    program, runner = net.program(SquaredLoss(), SGD(0.01, momentum=0.5)), NativeBackend(threads=threads)
    x, t = rng.normal(size=(700, net.input_shape[0])).astype(np.float32), rng.normal(size=(700, 5)).astype(np.float32)
    for batch in (2, 10, 13, 230):
        order = rng.permutation(700)[: 700 // batch * batch][: 4 * batch]
        arrays = random_arrays(program, batch)
        (picks, _), (gathers, _) = (fed(runner, program, batch, arrays, x, t, order, copies) for copies in ((), ("x",)))
        assert all(picks[key].tobytes() == gathers[key].tobytes() for key in picks), f"batch {batch}"
        wanted, _ = fed(NumpyBackend(), program, batch, arrays, x, t, order)
        assert_close(picks["p"], wanted["p"], 1e-3, f"batch {batch}")


@floats
def test_a_step_by_itself_reads_its_own_samples_again(kind):
    """After steps on a data set, and between those of two of them."""
    program, runner, rng = (
        DENSE.program(SquaredLoss(), SGD(0.01), dtype=kind),
        NativeBackend(threads=1),
        np.random.default_rng(0),
    )
    arrays = random_arrays(program, 4)
    (x, t), order = (rng.normal(size=(40, n)).astype(kind) for n in (300, 5)), np.arange(40)[::-1].copy()
    binding = runner.bind(program, 4, own := {name: array.copy() for name, array in arrays.items()})
    feeds = [runner.feed(binding, {"x": scale * x, "t": t}, order) for scale in (1, 2)]
    gathered = [runner.feed(binding, {"x": (scale * x).astype("float64"), "t": t}, order) for scale in (1, 2)]
    for k in (0, 1, 0):
        results = []
        for feed in (feeds[k], gathered[k]):
            own["p"][...], own["step"][...] = arrays["p"], 0
            feed(0, np.zeros(10))
            results.append(own["p"].copy())
        assert kind == "float64" or results[0].tobytes() == results[1].tobytes()
        for name in ("p", "x", "t", "step"):
            own[name][...] = arrays[name]
        binding()
        assert own["p"].tobytes() == run_on(runner, program, 4, arrays)["p"].tobytes()


def test_samples_that_lie_in_the_parameters_are_copied_first():
    """What is read is then what was there before the step, on every backend."""
    results = []
    for runner in (NativeBackend(threads=1), NumpyBackend()):
        program = Chain(Dense(200, 90, tanh), Dense(90, 5)).program(SquaredLoss(), SGD(0.1), dtype=np.float64)
        arrays = random_arrays(program, 8)
        binding = runner.bind(program, 8, arrays)
        sources = {"x": arrays["p"][:18000].reshape(90, 200), "t": np.ones((90, 5))}
        runner.feed(binding, sources, np.arange(88))(0, np.zeros(11))
        results.append(arrays["p"])
    assert_close(*results, 1e-12)
