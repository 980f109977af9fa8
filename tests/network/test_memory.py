"""A step in steady state makes no array: the peak of tracemalloc stays under 2 kB beyond NumPy's own ufunc buffers."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import chains
from chains import (
    ODE,
    Adam,
    AvgPool,
    BatchNorm,
    Chain,
    Conv,
    ConvTranspose,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    MaxPool,
    Parallel,
    Residual,
    SquaredLoss,
    gelu,
    tanh,
    train,
)
from chains.backends import backend
from chains.backends.numpy.backend import NumpyBinding
from chains.training.updater import Updater

CEILING = 2000  # bytes
NUMPY_BUFFERS = 4 * 8192 * 8  # a ufunc that broadcasts or converts: at most 8192 elements for each of its operands


def peak(*steps, warm_up=3, repeats=5):
    """The most bytes that any of the steps has allocated at once, beyond those before it, in its steadiest repeat."""
    with np.errstate(all="ignore"):
        for _ in range(warm_up):
            for step in steps:
                step()
        gc.disable()  # a collection in the middle of a step would count as its own
        tracemalloc.start()
        try:
            return max((min(_allocated(step) for _ in range(repeats)) for step in steps), default=0)
        finally:
            tracemalloc.stop()
            gc.enable()


def _allocated(step):
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    step()
    return tracemalloc.get_traced_memory()[1] - before


def ufunc_buffers(binding):
    """What the binding's own NumPy calls allocate at once, each call measured apart; 0 on other backends."""
    return peak(*getattr(binding, "calls", []), warm_up=1, repeats=2)


NETS = {
    "dense": lambda: Chain(Dense(8, 32, tanh), Dense(32, 16, chains.σ), Dense(16, 4)),
    "needs-input": lambda: Chain(Dense(8, 32, gelu), Dense(32, 4, bias=False)),
    "dropout": lambda: Chain(Dense(8, 32, chains.relu), Dropout(0.5), Dense(32, 4)),
    "equation": lambda: Chain(
        Dense(8, 2), ODE(Dense(2, 2, tanh), (0.0, 0.5, 1.0), rtol=1e-3, max_steps=8), Flatten(), Dense(6, 4)
    ),
    "branches": lambda: Chain(Residual(Dense(8, 8, tanh)), Parallel(Dense(8, 2), chains.Scale()), Dense(10, 4)),
    "norms": lambda: Chain(Dense(8, 32), chains.LayerNorm(), chains.GroupNorm(4, 32), chains.RMSNorm(), Dense(32, 4)),
    "shapes": lambda: Chain(Flatten(), chains.Scale(), chains.Shift(), Dense(8, 4), chains.LogSoftmax(), input_shape=(2, 4)),
    "images": lambda: Chain(
        Conv(2, 3, 3, chains.relu, padding=1), MaxPool(2), Conv(3, 4, 2, gelu), Flatten(), Dense(16, 4),
        input_shape=(2, 6, 6),
    ),
    "more images": lambda: Chain(
        Conv(2, 4, 1), Conv(4, 2, (2, 3), "tanh", stride=2, groups=2), ConvTranspose(2, 4, 3, stride=2, padding=1),
        MaxPool(3, stride=2, padding=1), chains.Upsample(2), chains.Pad(1),
        AvgPool(3, stride=1, padding=1, count_padding=False), GlobalAvgPool(), input_shape=(2, 5, 6),
    ),
    "signals": lambda: Chain(Conv(1, 4, (3,), "silu", padding="same"), AvgPool((2,)), GlobalAvgPool(), input_shape=(1, 8)),
}  # fmt: skip
every_net = pytest.mark.parametrize("make", NETS.values(), ids=NETS)
BATCHES = [1, 200, 3000]


def data_for(net, batch, dtype):
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, *net.input_shape)).astype(dtype), rng.normal(size=(batch, 4)).astype(dtype)


def within_running(runner, step):
    def run():
        with runner.running():
            step()

    return run


# What a ufunc may take


@pytest.mark.parametrize("size", [10_000, 400_000])
def test_numpys_own_buffers_are_bounded(size):
    """Ufuncs that broadcast or convert need a buffer that does not grow; others need none."""
    a, row, out = np.ones((size // 100, 100), np.float32), np.ones(100, np.float32), np.empty((size // 100, 100), np.float32)
    wide = np.empty(out.shape, np.float64)
    assert peak(lambda: np.add(a, a, out=out)) < CEILING
    assert peak(lambda: np.dot(a.T, a, out=np_square)) < CEILING
    assert peak(lambda: np.add(a, row, out=out)) < NUMPY_BUFFERS
    assert peak(lambda: np.add(a, wide, out=wide)) < NUMPY_BUFFERS


np_square = np.empty((100, 100), np.float32)


def test_a_leaked_array_would_show():
    a = np.ones(5000)
    assert peak(lambda: a + a) > 5000 * 8


# Bound programs


@pytest.mark.few(20)
@pytest.mark.parametrize("batch", BATCHES)
@every_net
def test_no_call_of_a_program_makes_an_array(make, batch, dtype, backend_name):
    """Each call of a step, one by one: either nothing, or a ufunc's bounded buffer."""
    net, runner = make(), backend(backend_name)
    program = net.program(SquaredLoss(), Adam(1e-3), dtype=dtype)
    binding = bound(runner, program, net, batch, dtype)
    extra = ufunc_buffers(binding)
    assert extra < NUMPY_BUFFERS
    assert peak(within_running(runner, binding.run)) < CEILING + extra


def bound(runner, program, net, batch, dtype):
    x, t = data_for(net, batch, dtype)
    arrays = {"p": net.init(dtype=dtype), "x": x, "t": t, "random": np.zeros(2, np.uint64), "step": np.zeros(()),
              "moments": np.zeros(2 * net.n_params, dtype), "state": net.init_state(dtype)}  # fmt: skip
    return runner.bind(program, batch, {name: array for name, array in arrays.items() if name in program.buffers})


def test_the_buffers_do_not_grow_with_the_batch(dtype, backend_name):
    net, runner = NETS["dense"](), backend(backend_name)
    program = net.program(SquaredLoss(), Adam(1e-3), dtype=dtype)
    small, big = (peak(within_running(runner, bound(runner, program, net, batch, dtype).run)) for batch in (1000, 8000))
    assert big < small + CEILING


# The training loop


@pytest.mark.parametrize(("samples", "batch"), [(64, 2), (1000, 10), (2000, 1000)])
def test_batch_statistics_make_no_array(samples, batch, backend_name):
    net = Chain(Dense(8, 32), BatchNorm(32), chains.Reshape(4, 8), BatchNorm(4), Flatten(), Dense(32, 4))
    x, t = data_for(net, samples, np.float32)
    assert epoch_peak(net, {"x": x, "t": t}, SquaredLoss(), batch, backend_name) < CEILING


@pytest.mark.few(4)
@pytest.mark.parametrize(("samples", "batch"), [(64, 1), (1000, 10), (2050, 1000), (2000, 2000)])
@every_net
def test_an_epoch_makes_no_array(make, samples, batch, backend_name):
    net = make()
    x, t = data_for(net, samples, np.float32)
    assert epoch_peak(net, {"x": x, "t": t}, SquaredLoss(), batch, backend_name) < CEILING


def test_an_epoch_over_bytes_and_labels_makes_no_array(backend_name):
    """Samples of another type are converted on the way."""
    net, rng = Chain(Dense(20, 4)), np.random.default_rng(0)
    data = {"x": rng.integers(0, 255, (4000, 20)).astype(np.uint8), "t": rng.integers(0, 4, 4000)}
    assert epoch_peak(net, data, CrossEntropyLoss(), 1000, backend_name) < CEILING


class Probe:
    """A callback that notes the most bytes allocated at once since the epoch before."""

    def __init__(self):
        self.peaks, self.before = [], None

    def __call__(self, state):
        if self.before is not None:
            self.peaks.append(tracemalloc.get_traced_memory()[1] - self.before)
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]


def epoch_peak(net, data, loss, batch, name):
    """The steadiest epoch of a training run, beyond the ufuncs' buffers and the losses of the epoch's steps."""
    net = Chain(*net.layers, input_shape=net.input_shape, backend=name)
    program = net.program(loss, Adam(1e-3), target_shape=data["t"].shape[1:])
    samples, probe = len(data["x"]), Probe()
    sizes = {batch, samples % batch or batch}
    extra = max(ufunc_buffers(bound_to(name, program, net, size)) for size in sizes) + 16 * (samples // batch + 2)
    p = net.init()
    gc.disable()
    tracemalloc.start()
    try:
        state, pair = net.init_state(), (data["x"], data["t"])
        train(net, p, *pair, loss, Adam(1e-3), epochs=12, batch_size=batch, state=state, callbacks=[probe])
    finally:
        tracemalloc.stop()
        gc.enable()
    return min(probe.peaks[4:]) - extra


def bound_to(name, program, net, batch):
    arrays = {
        "p": net.init(),
        "random": np.zeros(2, np.uint64),
        "step": np.zeros(()),
        "moments": np.zeros(2 * net.n_params, np.float32),
        "state": net.init_state(),
    }
    binding = backend(name).bind(program, batch, {key: array for key, array in arrays.items() if key in program.buffers})
    for key in ("x", "t"):
        binding.arrays[key][...] = 0.5
    return binding


# The calls


@pytest.mark.few(3)
@pytest.mark.parametrize("batch", [1, 200, 40_000])
@every_net
def test_a_gradient_into_out_makes_no_array(make, batch, backend_name):
    """At any size: also where the data are too large to be copied."""
    net = make()
    net = Chain(*net.layers, input_shape=net.input_shape, backend=backend_name)
    x, t = data_for(net, batch, np.float32)
    p, g = net.init(), np.empty(net.n_params, np.float32)
    program = net.program(SquaredLoss())
    extra = ufunc_buffers(bound(backend(backend_name), program, net, batch, np.float32))
    step = lambda: net.value_and_grad(p, x, t, SquaredLoss(), out=g)  # noqa: E731
    few = {"warm_up": 1, "repeats": 2} if batch > 2000 else {}
    views = 64_000 if batch > 2000 else 0  # of arrays too large to be copied: made anew, as many at any batch size
    assert peak(step, **few) < CEILING + extra + views + 2000  # the call's own names, tuples and dictionaries


@pytest.mark.parametrize("batch", [1, 200, 2000])
def test_a_forward_pass_into_out_makes_no_array(batch, backend_name):
    net = Chain(Dense(8, 32, tanh), Dense(32, 4), backend=backend_name)
    x, _ = data_for(net, batch, np.float32)
    p, y = net.init(), np.empty((batch, 4), np.float32)
    extra = ufunc_buffers(bound(backend(backend_name), net.program(mode="eval"), net, batch, np.float32))
    assert peak(lambda: net(x, p, out=y)) < CEILING + extra + 2000


def test_an_objective_makes_its_gradient_and_no_more(backend_name):
    net = Chain(Dense(8, 32, tanh), Dense(32, 4), backend=backend_name)
    x, t = data_for(net, 3000, np.float64)
    objective, p = net.objective(x, t, SquaredLoss()), net.init(dtype=np.float64)
    extra = ufunc_buffers(bound(backend(backend_name), net.program(SquaredLoss(), dtype=np.float64), net, 3000, np.float64))
    assert peak(lambda: objective(p)) < CEILING + extra + p.nbytes


def test_an_update_makes_no_array(backend_name):
    p, g = np.ones(20_000, np.float32), np.ones(20_000, np.float32)
    update = Updater(Adam(1e-3), p)
    assert peak(lambda: update(g)) < CEILING + ufunc_buffers(update._binding)


def test_numpy_makes_the_calls_of_a_program_once(monkeypatch):
    """To make them takes longer than to run them: a second for the attempts of an implicit method."""
    made, make = [], NumpyBinding.__init__
    monkeypatch.setattr(NumpyBinding, "__init__", lambda self, *given: (made.append(given), make(self, *given))[1])
    net = Chain(Dense(2, 3, gelu), Dense(3, 1), backend="numpy")
    p, x, t = net.init(dtype=np.float64), np.ones((4, 2)), np.zeros((4, 1))
    first = net.value_and_grad(p, x, t, SquaredLoss())
    assert len(made) == 1
    arrays = {"p": p, "x": x, "t": t}
    runner, program = backend("numpy"), net.program(SquaredLoss(), dtype=np.float64)
    whole = runner.bind(program, 4, arrays, np.empty(runner.scratch_bytes(program, 4), np.uint8))
    whole()
    np.testing.assert_array_equal(whole.arrays["g"], first[1])
