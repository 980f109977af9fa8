"""Every example runs, quickly, and prints what it promises."""

import gzip
import importlib.util
import re
import struct
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import chains
from chains import ODE, Adam, Chain, CrossEntropyLoss, Dense, Flatten, backends, train
from chains.backends import Cupy
from chains.data import cifar, mnist
from tests.cupy import emulated
from tests.data.test_sequences import write_imdb

FOLDER = Path(__file__).parents[2] / "examples"
sys.path.append(str(FOLDER))  # as for `python examples/NAME.py`: some build on others


@pytest.fixture(autouse=True)
def pictures(tmp_path, monkeypatch):
    """Examples save their pictures in an empty folder."""
    monkeypatch.chdir(tmp_path)


def check_picture(name):
    """The example saved its picture, if it can draw."""
    if importlib.util.find_spec("matplotlib"):
        assert Path(name).read_bytes().startswith(b"\x89PNG")


def load(name):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_row(text: str, start: str) -> list[float]:
    """The numbers of the last printed line that begins so."""
    line = [line for line in text.splitlines() if line.startswith(start)][-1]
    return [float(word.replace(",", "")) for word in line[len(start) :].split()]


def write_mnist(folder: Path, samples: tuple[int, int]) -> None:
    """The four files of MNIST with ten patterns instead of digits, to be told apart with ease."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 28, 28), np.uint8)
    for (images, labels), n in zip([mnist.FILES[:2], mnist.FILES[2:]], samples, strict=True):
        t = rng.integers(0, 10, n, np.uint8)
        header = b"\0\0\x08\3" + struct.pack(">3I", n, 28, 28)
        (folder / images.name).write_bytes(gzip.compress(header + patterns[t].tobytes(), 1))
        (folder / labels.name).write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", n) + t.tobytes(), 1))


QUICK = ["--samples", "300", "--epochs", "30", "--iterations", "3"]


def test_quickstart(capsys):
    load("quickstart").main(["--program", *QUICK])
    text = capsys.readouterr().out
    assert "in all                  from (4,)         756" in text
    assert "program gradient" in text
    assert table_row(text, "BFGS")[0] < table_row(text, "Adam")[0]
    check_picture("quickstart.png")


def test_quickstart_without_matplotlib(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    load("quickstart").main(QUICK)
    text = capsys.readouterr().out
    assert "pip install matplotlib" in text
    assert len(table_row(text, "BFGS")) == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1e-3, 1.0, 5.0])
def test_quickstart_exponential(size):
    linalg = pytest.importorskip("scipy.linalg")
    a = np.random.default_rng(0).normal(scale=size, size=(20, 2, 2))
    expected = linalg.expm(a)
    scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(load("quickstart").matrix_exponential(a) / scale, expected / scale, atol=1e-11)


def test_mnist_mlp(tmp_path, capsys):
    write_mnist(tmp_path, (600, 100))
    load("mnist_mlp").main(["--epochs", "8", "--seed", "1", "--backend", "numpy", "--data", str(tmp_path)])
    text = capsys.readouterr().out
    assert "23,860" in text
    assert "validation loss" in text
    assert table_row(text, "digits trained on") == [500]
    assert table_row(text, "accuracy on the test digits")[0] > 0.5
    check_picture("mnist_mlp.png")


def test_custom_layer(capsys):
    load("custom_layer").main([])
    text = capsys.readouterr().out
    errors = text.split("central differences: ")[1].splitlines()[0]
    assert all(float(part.split()[0]) < 1e-7 for part in errors.split(", "))
    own, plain = table_row(text, "custom layer and activation"), table_row(text, "Dense and tanh only")
    assert own[0] < plain[0]
    assert own[2] < plain[2] / 10


def test_burgers(capsys):
    module = load("burgers")
    # The steepest slope, and when it is reached: Basdevant et al., Computers & Fluids 14, 1986.
    step = 1e-6
    left, right = module.exact(np.array([[1.6037 / np.pi, -step], [1.6037 / np.pi, step]]))
    assert (right - left) / (2.0 * step) == pytest.approx(-152.00516, rel=1e-5)
    module.main(["--points", "300", "--adam", "50", "--iterations", "50"])
    text = capsys.readouterr().out
    assert "921 parameters, 300 points" in text
    assert len(table_row(text.replace(" -\n", " 0\n"), "chains")) == 7
    losses = []
    for rounds in ("1", "2"):
        module.main(["--points", "300", "--adam", "50", "--iterations", "200", "--uniform", "--rounds", rounds])
        losses.append(table_row(capsys.readouterr().out.replace(" -\n", " 0\n"), "chains")[4])
    assert losses[1] > 2.0 * losses[0]  # the second round has points where the residual is large
    check_picture("burgers.png")


def test_burgers_on_a_quadrature(capsys, tmp_path):
    module = load("burgers")
    points, weights = module.gauss_points(900)
    t, x = points.T
    assert np.mean(weights * t**2 * np.cos(x)) == pytest.approx(np.sin(1.0) / 3.0, rel=1e-9)
    file = tmp_path / "burgers.safetensors"
    module.main(["--accurate", "--points", "2500", "--iterations", "500", "--save", str(file)])
    net, p, _ = chains.load(file)
    solution = module.exact(points)
    found = module.accurate_of(2500)[0].evaluate(net, p, points)["u"]
    assert np.linalg.norm(found - solution) < 0.02 * np.linalg.norm(solution)
    assert float(re.search(r"other points: (\S+)", capsys.readouterr().out)[1]) < 0.02
    check_picture("burgers.png")


def test_burgers_by_jax(capsys):
    pytest.importorskip("jax")
    module = load("burgers")
    points, net = module.points_of(60, 0), module.network_of(20, 3)
    problem = module.problem_of(points)
    p = net.init(seed=0, dtype=np.float64)
    value, g = net.value_and_grad(p, problem.x, problem.t, problem.loss)
    function, adam = module.by_jax(points, net)
    expected, slopes = function(p)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(g, slopes, rtol=1e-9, atol=1e-12)
    q = p.copy()
    train(net, q, problem.x, problem.t, problem.loss, Adam(module.RATE), epochs=3, batch_size=None, progress=False)
    np.testing.assert_allclose(q, adam(p, 3), rtol=1e-8, atol=1e-10)


def test_poisson(capsys):
    load("poisson").main(["--points", "150", "--iterations", "150"])
    assert table_row(capsys.readouterr().out, "relative L2 error")[0] < 0.05
    check_picture("poisson.png")


def test_forces(capsys):
    load("forces").main(["--points", "100", "--iterations", "200"])
    text = capsys.readouterr().out
    assert table_row(text, "forces and one energy")[3] < 0.5 * table_row(text, "energies ")[3]
    check_picture("forces.png")


def test_posterior(capsys):
    load("posterior").main(["--draws", "12", "--epochs", "150"])
    text = capsys.readouterr().out
    assert "97 parameters, 60 points, 12 networks" in text
    for name in ("ensemble", "Hamiltonian"):
        _, inside, outside, error, energy = table_row(text, name)
        assert 0.0 < outside < inside
        assert error < 0.5
        assert energy > 20.0
    check_picture("posterior.png")


def test_levenberg_marquardt(capsys):
    load("levenberg_marquardt").main(["--samples", "40", "--epochs", "100", "--bfgs", "30", "--lm", "15"])
    text = capsys.readouterr().out
    assert "756 parameters, 40 samples" in text
    assert table_row(text, "LM")[3] < table_row(text, "BFGS")[3]
    check_picture("levenberg_marquardt.png")


def test_pixels(capsys):
    load("pixels").main(["--size", "6"])
    text = capsys.readouterr().out
    assert "36 of 36 rows" in text
    assert "T: the median error bar is" in text
    check_picture("pixels.png")


def test_lenet5(tmp_path, capsys):
    write_mnist(tmp_path, (700, 100))
    load("lenet5").main(["--epochs", "3", "--samples", "600", "--backend", "numpy", "--data", str(tmp_path)])
    text = capsys.readouterr().out
    assert "44,426" in text
    assert table_row(text, "digits trained on") == [600]
    assert table_row(text, "accuracy on the test digits")[0] > 0.5
    check_picture("lenet5.png")


def write_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The six files of CIFAR-10 with 40 of ten patterns each instead of photographs."""
    monkeypatch.setattr(cifar, "RECORDS", 40)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 3 * 32 * 32), np.uint8)
    for file in cifar.FILES:
        t = rng.integers(0, 10, 40, np.uint8)
        (folder / file.name).write_bytes(gzip.compress(np.column_stack([t, patterns[t]]).tobytes(), 1))


def test_rosetta_cnn(tmp_path, capsys, monkeypatch):
    write_cifar10(tmp_path, monkeypatch)
    load("rosetta_cnn").main(["--epochs", "1", "--samples", "150", "--data", str(tmp_path)])
    text = capsys.readouterr().out
    assert "3,441,592" in text
    assert table_row(text, "photographs trained on") == [150]
    assert 0.0 <= table_row(text, "accuracy on the test photographs")[0] <= 1.0
    check_picture("rosetta_cnn.png")
    assert table_row(text, "steps of 64") == [2]  # the partial batch is dropped


@pytest.fixture
def no_gpu(monkeypatch):
    """A computer without CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(
        backends.registry, "_loaded", {name: made for name, made in backends.registry._loaded.items() if "cupy" not in name}
    )


def table(text: str) -> dict[str, str]:
    """The printed table of an example on a GPU, as text by heading."""
    lines = [line for line in text.split("\n\n")[-1].splitlines() if line]
    return {line[:32].strip(): line[32:] for line in lines}


SENTENCE = "No GPU can be used: `device` (='cuda') needs CuPy, which cannot be imported"


def test_gpu_mnist_without_a_gpu(tmp_path, capsys, no_gpu):
    write_mnist(tmp_path, (600, 100))
    load("gpu_mnist").main(["--data", str(tmp_path)])
    text = capsys.readouterr().out
    assert text.startswith(SENTENCE)
    assert "The processor is used, with fewer digits" in text
    found = table(text)
    assert found["digits trained on"] == "600"
    assert found["epochs"] == "3"
    assert "cores" in found["machine"]
    assert float(found["seconds an epoch"]) > 0
    assert float(found["accuracy on the test digits"]) > 0.5


@pytest.mark.parametrize("augment", [[], ["--augment"]])
def test_gpu_cifar_without_a_gpu(tmp_path, capsys, monkeypatch, no_gpu, augment):
    write_cifar10(tmp_path, monkeypatch)
    load("gpu_cifar").main(["--data", str(tmp_path), "--samples", "128", *augment])
    text = capsys.readouterr().out
    assert text.startswith(SENTENCE)
    found = table(text)
    assert found["photographs trained on"] == f"128, {'streamed' if augment else 'all at hand'}"
    assert float(found["milliseconds a step"]) > 0
    assert 0 <= float(found["accuracy on test photographs"]) <= 1


def test_gpu_wide_without_a_gpu(capsys, no_gpu):
    load("gpu_wide").main(["--width", "64", "--samples", "2000"])
    text = capsys.readouterr().out
    assert text.startswith(SENTENCE)
    assert "32 -> 64 -> 64 -> 10, 2,000 points" in text
    seconds, rate, found = table_row(text, "float32")
    assert seconds > 0
    assert rate > 0
    assert found > 0.2  # one in ten would be guessed
    assert "tf32" not in text


@pytest.fixture
def emulated_gpu(monkeypatch):
    """The emulated GPU in the place of the real one, and what the examples ask CuPy for."""
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    runner = backends.backend("emulated")
    for name in ("cupy", Cupy("tf32")):
        monkeypatch.setitem(backends.registry._loaded, name, runner)
    monkeypatch.setattr(runner.on_device.device, "name", "cuda")
    runtime = types.SimpleNamespace(getDeviceProperties=lambda number: {"name": f"GPU number {number}".encode()})
    cuda = types.SimpleNamespace(runtime=runtime, Device=lambda: types.SimpleNamespace(id=3))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))


def test_gpu_mnist_on_a_gpu(tmp_path, capsys, emulated_gpu):
    write_mnist(tmp_path, (600, 50))
    module = load("gpu_mnist")
    module.lenet5 = lambda: Chain(Flatten(), Dense(784, 10), input_shape=(1, 28, 28))  # convolutions take their time there
    module.main(["--data", str(tmp_path), "--samples", "40", "--batch", "20", "--epochs", "2"])
    text = capsys.readouterr().out
    assert "No GPU" not in text
    assert table(text)["machine"] == "GPU number 3"


def test_gpu_wide_on_a_gpu(capsys, emulated_gpu):
    load("gpu_wide").main(["--width", "32", "--samples", "200", "--epochs", "2"])
    text = capsys.readouterr().out
    assert text.startswith("GPU number 3: 16 -> 32 -> 32 -> 10, 200 points")
    assert all(len(table_row(text, name)) == 3 for name in ("float32", "tf32"))


def test_gpu_examples_on_an_array_library(tmp_path, capsys):
    pytest.importorskip("torch")
    write_mnist(tmp_path, (40, 10))
    load("gpu_mnist").main(["--data", str(tmp_path), "--batch", "20", "--epochs", "1", "--device", "torch:cpu"])
    load("gpu_wide").main(["--width", "32", "--samples", "200", "--epochs", "1", "--device", "torch:cpu"])
    text = capsys.readouterr().out
    assert "No GPU" not in text
    assert len(table_row(text, "float32")) == 3


@pytest.mark.parametrize("name", ["gpu_mnist", "gpu_wide", "gpu_cifar"])
def test_devices_that_cannot_be_used_are_refused(name, capsys):
    for device, words in (("tpu", "'tpu' must be auto, cuda, cpu, or a library"), ("missing:cuda", "library 'missing' cannot")):
        with pytest.raises(SystemExit):
            load(name).main(["--device", device])
        assert words in capsys.readouterr().err


def test_custom_backend(capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # the process's, for other tests too
    with monkeypatched_registry():
        load("custom_backend").main(["--epochs", "2", "--only", "operations: *a*"])
    text = capsys.readouterr().out
    assert "operations: matmul" in text
    assert "wrong:" not in text
    own, numpy = (table_row(text.replace(" s\n", "\n").replace("loss", ""), name)[0] for name in ("own-torch", "numpy"))
    assert abs(own - numpy) < 1e-10


@contextmanager
def monkeypatched_registry():
    """The registry of backends, which is as before afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_BACKENDS", "_loaded", "_registered"):
            patch.setattr(backends.registry, name, dict(getattr(backends.registry, name)))
        yield


@pytest.mark.parametrize("name", ["gpu_mnist", "gpu_wide", "gpu_cifar"])
def test_a_gpu_that_was_asked_for_and_is_missing(name, capsys, no_gpu):
    with pytest.raises(SystemExit) as caught:
        load(name).main(["--device", "cuda"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith(SENTENCE)


@pytest.mark.few(1)
@pytest.mark.parametrize("lengths", [[], ["--lengths"]], ids=["whole", "lengths"])
def test_rosetta_rnn(lengths, tmp_path, capsys):
    write_imdb(tmp_path, count=150)
    load("rosetta_rnn").main(["--epochs", "1", "--samples", "130", "--data", str(tmp_path), *lengths])
    text = capsys.readouterr().out
    assert "3,818,302" in text
    assert table_row(text, "reviews trained on") == [130]
    assert 0.0 <= table_row(text, "accuracy on the test reviews")[0] <= 1.0
    check_picture("rosetta_rnn.png")
    assert table_row(text, "steps of 64") == [2]  # the partial batch is dropped


@pytest.mark.parametrize("name", ["lenet5", "rosetta_cnn", "rosetta_rnn", "gpu_mnist", "gpu_cifar"])
def test_missing_data_is_named(name, tmp_path, capsys):
    with pytest.raises(SystemExit):
        load(name).main(["--data", str(tmp_path)])
    assert str(tmp_path) in capsys.readouterr().err


def test_lenet5_against_torch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    net = load("lenet5").lenet5("numpy")
    rng = np.random.default_rng(0)
    p = net.init(seed=0, dtype=np.float64)
    x, t = rng.random((20, 1, 28, 28)), rng.integers(0, 10, 20)
    value, g = net.value_and_grad(p, x, t, CrossEntropyLoss())

    tensors = [torch.from_numpy(array.copy()).requires_grad_() for array in net.views(p).values()]
    w1, b1, w2, b2, *dense = tensors
    y = torch.from_numpy(x)
    for w, b in ((w1, b1), (w2, b2)):
        y = functional.max_pool2d(functional.relu(functional.conv2d(y, w, b)), 2)
    y = y.flatten(1)
    for k in range(0, 6, 2):
        y = (functional.relu(y) if k else y) @ dense[k] + dense[k + 1]
    expected = functional.cross_entropy(y, torch.from_numpy(t))
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
    flat = np.concatenate([tensor.grad.numpy().ravel() for tensor in tensors])
    np.testing.assert_allclose(g, flat, rtol=1e-10, atol=1e-12)


def test_lynx_hare(tmp_path, capsys, monkeypatch):
    """Counts that follow the equation without a network: all starts find the rates, and predict the later years."""
    pytest.importorskip("scipy")
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"hudson-bay-lynx-hare.csv is missing: get "):
        load("lynx_hare").main([])
    module = load("lynx_hare")
    monkeypatch.setattr(module, "ODE", lambda rhs, times, steps: ODE(rhs, times, "euler", steps))  # a sixth of the code
    net = Chain(module.ODE(module.equation(), np.arange(21.0), 10))
    p = net.init(dtype=np.float64)
    for name, rate in (("0.birth", 0.6), ("0.death", 0.9)):
        net.views(p)[name][...] = net.layout[name].bounds.stored(rate)
    net.views(p)["0.network.1.weight"][...] = 0.0
    counted = 20.0 * net(np.array([[1.5, 0.5]]), p)[0]
    rows = [f"{1900 + k}, {lynx:.6f}, {hare:.6f}" for k, (hare, lynx) in enumerate(counted)]
    (tmp_path / "sciml").mkdir()
    text = "\n".join(["# counts", "# made up", "Year, Lynx, Hare", *rows])
    (tmp_path / "sciml" / "hudson-bay-lynx-hare.csv").write_text(text)
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path))
    module.main(["--starts", "3", "--iterations", "300"])
    text = capsys.readouterr().out
    starts = re.findall(r"start \d.*?: .* (\S+) in the later ones; birth (\S+) and death (\S+) a year", text)
    assert len(starts) == 3 + 1  # and the best of them
    np.testing.assert_allclose(np.array(starts, float), [[0.0, 0.6, 0.9]] * 4, atol=0.01)
    assert "without the network: mean squared error 0.0000 in 16 years, 0.0000" in text
    check_picture("lynx_hare.png")


def test_cart_pole():
    pytest.importorskip("casadi")
    example = load("cart_pole")
    net, p, error = example.learned(300, epochs=20, iterations=60)
    assert error < 2
    states, forces, stats = example.closed_loop(example.controller(net, p, max_iter=50), steps=3)
    assert states.shape == (4, 4)
    assert (abs(forces) <= example.MOST_FORCE + 1e-6).all()
    np.testing.assert_array_equal(example.plant(states[1], forces[1]), states[2])
    found = example.shares(stats)
    assert 0 < found["functions"] < found["control step"]
    example.save_picture("cart_pole.png", (8, 6), lambda figure: example.draw(figure, states, forces))
    check_picture("cart_pole.png")


def test_newborns(tmp_path, capsys, monkeypatch):
    """Simulated newborns whose clearance is proportional to weight, which the formula finds."""
    monkeypatch.setenv("CHAINS_DATA", str(tmp_path))
    module = load("newborns")
    with pytest.raises(SystemExit, match=r"phenobarbital.csv: set CHAINS_DATA"):
        module.main([])
    rng, rows = np.random.default_rng(3), ["id,time,amount,weight,apgar,concentration"]
    for newborn in range(24):
        weight, volume, rate = rng.uniform(0.7, 2.5), np.exp(0.2 * rng.normal()), 0.005 * np.exp(0.2 * rng.normal())
        rows.append(f"{newborn},0,{20.0 * weight},{weight},8,")
        for time in rng.uniform(2.0, 120.0, 4).cumsum() / 2.0:
            value = 20.0 / volume * np.exp(-rate / volume * time) * (1.0 + 0.05 * rng.normal())
            rows.append(f"{newborn},{time},,{weight},8,{value}")
    (tmp_path / "population").mkdir()
    (tmp_path / "population" / "phenobarbital.csv").write_text("\n".join(rows))
    monkeypatch.setattr(module, "RATES", dict([*module.RATES.items()][::2][:2]))
    module.main(["--folds", "2"])
    text = capsys.readouterr().out
    for name in module.RATES:
        assert re.search(rf"{name}: \d+ numbers, value \S+, held out \S+\n", text)
    rates = re.findall(r"([\d.]+) at [\d.]+ kg", text)
    np.testing.assert_allclose(np.array(rates[:4], float), 5.0, atol=0.7)
