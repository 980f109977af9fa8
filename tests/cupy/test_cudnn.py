"""Convolutions by cuDNN: whole networks through a stand-in for its front end, and plans of the library itself without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, backends, relu, train
from chains.backends import Cupy, backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device import cublas as libraries
from chains.backends.cupy.device import cudnn
from chains.backends.cupy.device.cuda import CudaDevice
from chains.backends.cupy.device.cudnn import Cudnn
from chains.backends.cupy.device.interface import Convolution
from chains.backends.cupy.kernels.library_convolutions import Convolved
from chains.network import record
from chains.network.network import network_of
from tests.cupy import emulated, fake_cudnn
from tests.cupy.support import CONVOLUTIONS, arrays_of, gradient_program, needs_compiler, on_gpu
from tests.harness import CASES, ROUNDING, assert_close, assert_same_bits, run_program


def missing():
    """What is missing of cuDNN and its front end, or nothing."""
    try:
        cudnn.usable_cudnn()
    except ValueError as error:
        return str(error)
    return ""


needs_cudnn = pytest.mark.skipif(bool(missing()), reason=missing())

LAYERS = CONVOLUTIONS | {"groups": Conv(4, 6, 3, groups=2), "many": Conv(2, 4, 3, stride=3)}
IMAGES = (Conv(2, 5, 3, relu), MaxPool(2), Conv(5, 7, 3, relu, padding=1), Flatten(), Dense(63, 4))


@pytest.fixture
def device(request, monkeypatch):
    """A new device with cuDNN, with the settings of the test's parameter; "emulated-cudnn" names its backend."""
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    settings = getattr(request, "param", Cupy())
    monkeypatch.setitem(
        backends.registry._BACKENDS, "emulated-cudnn", partial(emulated.EmulatedBackend, "emulated-cudnn", False, settings)
    )
    monkeypatch.delitem(backends.registry._loaded, "emulated-cudnn", raising=False)
    yield backend("emulated-cudnn").on_device.device
    backends.registry._loaded.pop("emulated-cudnn", None)


def image_net(name="numpy"):
    return Chain(*IMAGES, input_shape=(2, 8, 8), backend=name)


def image_data(samples):
    rng = np.random.default_rng(0)
    return rng.normal(size=(samples, 2, 8, 8)).astype(np.float32), rng.integers(0, 4, samples)


def both(net, samples, dtype):
    """A network and its pullback by NumPy, and by cuDNN on scratch of zeros and of NaN."""
    rng = np.random.default_rng(0)
    shapes = {"p": (net.n_params,), "x": (samples, *net.input_shape), "dy": (samples, *net.output_shape)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for program in (record.forward(network_of(net), dtype, False), record.vjp(network_of(net), dtype, False)):
        wanted = run_program(program, "numpy", samples, arrays)
        found, poisoned = (run_program(program, "emulated-cudnn", samples, arrays, fill, runs=3) for fill in (0, 255))
        assert_same_bits(found, poisoned)
        for name in wanted:
            assert_close(found[name], wanted[name], 1e-5 if dtype == np.float32 else 1e-13, name)


# What is computed


@pytest.mark.few(5)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_settings(layer, dtype, device):
    """Windows, groups, transposed convolutions and signals; kernels that do not begin at 16 bytes go through scratch."""
    before = chains.Shift()  # whose parameters come first
    channels = 4 if layer is LAYERS["groups"] else 2
    net = Chain(before, layer, input_shape=(channels, 9) if layer.ndim == 1 else (channels, 9, 8))
    both(net, 3, dtype)
    results = [result for result, _ in device.library.executed]
    assert sorted(set(results)) == ["w", "x", "y"]
    assert {index for _, index in device.library.executed} == {fake_cudnn.RIGHT}


@pytest.mark.parametrize("device", [Cupy(), Cupy(tune=True)], indirect=True)
def test_networks(dtype, device):
    both(image_net(), 11, dtype)
    assert len(device.library.executed) >= 5 * 3


def test_training(device):
    """The same losses as NumPy's; plans, memory and graphs are made in the first epoch only."""
    x, t = image_data(20)
    nets, counts = [image_net(), image_net("emulated-cudnn")], []
    ps = [net.init() for net in nets]

    def count(state):
        counts.append((device.allocations, device.graphs, len(device.library.graphs)))

    settings = {"epochs": 4, "batch_size": 5, "seed": 1}
    histories = [
        train(net, p, x, t, CrossEntropyLoss(), Adam(0.01), callbacks=[count], **settings)
        for net, p in zip(nets, ps, strict=True)
    ]
    assert_close(histories[1].loss, histories[0].loss, 1e-5)
    assert_close(ps[1], ps[0], 1e-4)
    assert counts[-3] == counts[-2] == counts[-1]
    assert counts[-1][1:] == (1, 5)  # one graph of CUDA's; two convolutions, their kernels' gradients, and one input's


@needs_compiler
def test_a_program_says_which_steps_are_cudnns(device):
    program = image_net().program(CrossEntropyLoss(), target_shape=())
    compiled = Compiled(program, convolutions=device.convolutions)
    steps = [step for step, _ in compiled.at(6) if isinstance(step, Convolved)]
    assert [step.convolution.result for step in steps] == [2, 2, 1, 0, 1]
    first = steps[0].convolution
    assert first.shapes == ((6, 2, 8, 8), (5, 2, 3, 3), (6, 5, 6, 6))
    assert first.strides == ((128, 64, 8, 1), (18, 9, 3, 1), (180, 36, 6, 1))
    sizes = [compiled.elements(step.workspace, 6) for step in steps]
    assert sizes == [2 * 4 * int(np.prod(step.convolution.shapes[step.convolution.result])) for step in steps]
    assert compiled.scratch_plan(6).nbytes(6) >= max(sizes)


# Which plan is taken


def planned(settings):
    """The plan of a convolution, and the stand-in it came from."""
    device = emulated.EmulatedDevice()
    front = device.library
    chosen = Cudnn(device, front, settings)
    shapes, strides = ((3, 2, 8, 8), (4, 2, 3, 3), (3, 4, 6, 6)), ((128, 64, 8, 1), (18, 9, 3, 1), (144, 36, 6, 1))
    convolution = Convolution(2, np.dtype(np.float32), shapes, strides, chains.program.operations.Window((3, 3)))
    return chosen._plan(convolution), front, chosen, convolution


@pytest.mark.parametrize(
    ("settings", "index"),
    [
        (Cupy(), fake_cudnn.RIGHT),
        (Cupy("tf32"), 0),
        (Cupy(tune=True), fake_cudnn.QUICKER),
        (Cupy("tf32", tune=True), 0),
    ],
    ids=str,
)
def test_plans_are_chosen_explicitly(settings, index):
    plan, front, chosen, convolution = planned(settings)
    assert plan.index == index
    assert chosen._plan(convolution) is plan
    assert len(front.graphs) == 1  # it is kept


def test_plans_that_may_differ_from_run_to_run_are_not_tried():
    assert {index for _, index in planned(Cupy(tune=True))[1].executed} == {fake_cudnn.RIGHT, fake_cudnn.QUICKER}


@needs_compiler
def test_other_shapes_are_other_plans(device):
    program = record.forward(network_of(image_net()), np.float32, False)
    arrays = {"p": image_net().init(), "x": image_data(6)[0]}
    for samples, graphs in ((6, 2), (6, 2), (3, 4), (6, 4)):
        run_program(program, "emulated-cudnn", samples, arrays | {"x": arrays["x"][:samples]})
        assert len(device.library.graphs) == graphs


def test_times_are_the_devices_own():
    """The shortest of the times between events on the stream, after a run that is not timed."""
    clock, done = iter([0.0, 7.0, 10.0, 13.0, 20.0, 26.0, 30.0, 34.0, 40.0, 45.0]), []
    stream = types.SimpleNamespace(ptr=5, synchronize=lambda: done.append("finished"))

    class Event:
        def record(self, on):
            assert on is stream
            self.time = next(clock)

        def synchronize(self):
            done.append("waited")

    device = CudaDevice.__new__(CudaDevice)
    device.stream = stream
    device.running = nullcontext
    elapsed = lambda start, stop: stop.time - start.time  # noqa: E731 - in milliseconds
    device.cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(Event=Event, get_elapsed_time=elapsed, get_current_stream=lambda: stream)
    )
    assert device.seconds(lambda: done.append("worked")) == pytest.approx(3e-3)
    assert done == ["worked", "finished", *["worked", "waited"] * 5]
    assert device.current_stream() == 5


# What cuDNN does not do is done by other kernels


@pytest.mark.parametrize("device", [Cupy(), Cupy(convolutions="cudnn")], indirect=True)
@pytest.mark.parametrize("broken", [False, True])
def test_without_a_plan(device, broken):
    device.library.broken, device.library.refuses = broken, lambda graph: True
    explicit = device.convolutions._settings.convolutions == "cudnn"
    with pytest.warns(UserWarning, match="cuDNN does not do the convolution of") if explicit else warnings.catch_warnings():
        both(Chain(Conv(2, 3, 2), input_shape=(2, 4, 4)), 2, np.float32)
    assert device.library.executed == []


def test_a_batch_size_without_a_plan(device):
    """Scratch holds what is needed at a batch size: a workspace, or what the other kernels need."""
    device.library.refuses = lambda graph: graph.tensors["x"].dim[0] > 4
    net = Chain(Conv(16, 20, 5), input_shape=(16, 9, 9))  # products over patches
    for samples, done in ((4, 3 * 2 * 3), (5, 3 * 2 * 3)):  # three operations, with two scratches, three times
        both(net, samples, np.float64)
        assert len(device.library.executed) == done
    compiled = Compiled(record.forward(network_of(net), np.float64, False), convolutions=device.convolutions)
    names = {buffer.name for buffer in compiled._sizes}
    of = lambda name: [buffer for buffer in compiled._sizes if buffer.name == name]  # noqa: E731
    sizes = {name: [sum(compiled.elements(buffer, samples) for buffer in of(name)) for samples in (4, 5)] for name in names}
    assert sizes["workspace"][0] > 0
    assert sizes["patches"][1] > 0
    assert sizes["workspace"][1] == sizes["patches"][0] == sizes["rows"][0] == 0


def test_types_without_convolutions():
    *_, chosen, convolution = planned(Cupy())
    whole = Convolution(2, np.dtype(np.int32), convolution.shapes, convolution.strides, convolution.window)
    assert chosen.workspace(whole) is None


def test_arrays_that_begin_anywhere(device):
    """Memory of a caller's that is bound in place, and not where cuDNN wants it."""
    net, (x, t) = image_net(), image_data(6)
    program = net.program(CrossEntropyLoss(), target_shape=())
    runner = backend("emulated-cudnn").on_device
    p, room = net.init(), device.empty((net.n_params + 1,), np.float32)
    room[1:] = p
    gradients = []
    for place, done in ((device.array(p), 5), (room[1:], 5)):
        binding = runner.bind(program, 6, {"p": place, "x": device.array(x), "t": device.array(t.astype(np.float32))})
        binding()
        assert len(device.library.executed) == done
        gradients.append(np.array(binding.arrays["g"]))
    assert_close(gradients[0], gradients[1], 1e-5)


# What is said where it is missing


def front_end(**changes):
    module = types.ModuleType("cudnn")
    front = fake_cudnn.FrontEnd()
    names = ("__version__", "backend_version", "create_handle", "cudnnGraphNotSupportedError")
    vars(module).update({name: getattr(front, name) for name in names} | changes)
    return module


def failing(message):
    def fails():
        raise RuntimeError(message)

    return fails


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (None, r"needs nvidia-cudnn-frontend, which cannot be imported: .*; install the extra cudnn"),
        (front_end(__version__="1.29.0"), r"1\.26, 1\.27 or 1\.28, but the module `cudnn` is 1\.29\.0; install the extra"),
        (front_end(__version__="1.9.3"), r"but the module `cudnn` is 1\.9\.3"),
        (types.ModuleType("cudnn"), "but the module `cudnn` is of no version"),
        (
            front_end(backend_version=failing("Unable to find symbol cudnnGetVersion")),
            "needs the library cuDNN, which cannot be loaded: Unable to find symbol .*; install the extra cudnn",
        ),
        (front_end(backend_version=lambda: 8907), "needs cuDNN 9, but 8907 was found"),
        (
            front_end(create_handle=failing("cudnnHandle Create failed")),
            "cuDNN, which cannot start: cudnnHandle Create failed",
        ),
    ],
)
def test_what_is_missing_is_said_to_those_who_ask_for_it(monkeypatch, module, sentence):
    monkeypatch.setitem(sys.modules, "cudnn", module)
    device = emulated.EmulatedDevice()
    with pytest.raises(ValueError, match=sentence):
        cudnn.chosen(device, Cupy(convolutions="cudnn"))
    assert cudnn.chosen(device, Cupy(tune=True)) is None


def test_libraries_that_cudnn_asks_for_by_name_are_loaded_before_it(monkeypatch):
    """Those of CuPy, which are then the ones that it finds."""
    order = []
    monkeypatch.setattr(libraries, "loaded", order.append)
    monkeypatch.setitem(sys.modules, "cudnn", front_end(backend_version=lambda: order.append("cudnn") or 92800))
    cudnn.usable_cudnn()
    assert order == ["cudart", "nvrtc", "cublasLt", "cublas", "cudnn"]


@pytest.mark.parametrize("version", ["1.26.0", "1.27.1", "1.28.0"])
def test_it_is_used_where_it_is_there(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "cudnn", front_end(__version__=version))
    device = emulated.EmulatedDevice()
    assert isinstance(cudnn.chosen(device, Cupy(tune=True)), Cudnn)
    assert isinstance(cudnn.chosen(device, Cupy("tf32", "cudnn")), Cudnn)
    assert cudnn.chosen(device, Cupy("tf32")) is None
    assert cudnn.chosen(device, Cupy(convolutions="own")) is None


# The library itself, without a GPU


@needs_compiler
@needs_cudnn
def test_plans_of_the_library_itself():
    """The front end and cuDNN as installed plan every convolution for an H100 that is only described to them."""
    done = subprocess.run([sys.executable, "-m", "tests.cupy.deviceless"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout.splitlines()[-1])["plans"]
    assert len(plans) == 12
    rows = [row for each in plans.values() for row in each]
    assert all(workspace <= cudnn.WORKSPACE_BYTES for *_, workspace in rows)
    assert {result for result, *_ in rows} == {"x", "w", "y"}
    assert plans["wide, float32, float32"] != plans["wide, float32, tf32"]  # tensor cores are for those who ask


# The benchmark


@needs_compiler
def test_the_benchmark_measures_both_ways(device, monkeypatch):
    from benchmarks.gpu import correctness, processes, training
    from benchmarks.gpu.problems import PROBLEMS, Problem, Setting

    x, t = image_data(4)
    layers, x = (Conv(2, 3, 2), Flatten(), Dense(27, 4)), np.ascontiguousarray(x[..., :4, :4])
    problem = Problem(layers, (2, 4, 4), CrossEntropyLoss(), Adam(1e-3), x, t, 2)
    monkeypatch.setitem(PROBLEMS, "lenet5", lambda setting: problem)
    monkeypatch.setattr(backends.registry, "_BACKENDS", {**backends.registry._BACKENDS})  # which the cases add to
    for way, text in (
        ("float32", "kernels of this package"),
        ("cudnn", "cuDNN 92800 through nvidia-cudnn-frontend 1.28.0"),
    ):
        assert correctness.check_case(way, "Conv-pointwise-groups", Setting(tiny=True))["holds"]
        assert training.measure("lenet5", way, Setting(tiny=True))["note"].endswith(f"convolutions by {text}")
    assert len(device.library.executed) > 5
    monkeypatch.setitem(sys.modules, "cupy", None)
    found = processes.attempt(lambda setting: training.measure("lenet5", "cudnn", setting), Setting())
    assert "`backend` (='cupy') needs CuPy" in found["failed"]


# On a GPU


@pytest.mark.gpu
@on_gpu
@needs_cudnn
@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if "Conv" in str(case)], ids=str)
@pytest.mark.filterwarnings("ignore:cuDNN does not do")
def test_convolutions_on_the_gpu(case, tune, dtype, monkeypatch):
    """Gradients equal NumPy's, twice the same bits, eagerly and as a graph."""
    runner = backend(Cupy(convolutions="cudnn", tune=tune))
    monkeypatch.setitem(backends.registry._BACKENDS, "cudnn", lambda: runner)
    monkeypatch.setitem(backends.registry._loaded, "cudnn", runner)
    program, problem = gradient_program(case, dtype), case.problem(70)
    arrays = arrays_of(problem)
    wanted = run_program(program, "numpy", 70, arrays)
    found, again = (run_program(program, "cudnn", 70, arrays, runs=runs) for runs in (1, 3))
    assert_same_bits(found, again)
    for key in wanted:
        assert_close(found[key], wanted[key], 10 * ROUNDING[np.dtype(dtype)], key)
