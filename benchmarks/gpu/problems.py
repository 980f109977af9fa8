"""The problems of `benchmarks.gpu`: networks, data, optimisers; each is made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import chains
from benchmarks.problems import matrix_exp
from chains import GRU, SGD, Adam, Chain, Conv, CrossEntropyLoss, Dense, MaxPool, SquaredLoss, relu, tanh, σ
from chains.backends import Cupy
from chains.layers.base import Layer
from chains.program.program import Program

Arrays = tuple[np.ndarray, np.ndarray]
Result = dict[str, Any]  # of a row: figures and notes by name, or "failed" with the error


class NoGpuError(RuntimeError):
    """There is no GPU, or a library was installed for processors alone."""


@dataclass(frozen=True)
class Setting:
    """The folder of the data sets, if any, and whether everything is `tiny`, on an emulated GPU: a rehearsal."""

    folder: Path | None = None
    tiny: bool = False


@dataclass(frozen=True)
class Problem:
    """A network to train for some epochs; `test` are data for its accuracy, and `note` says what is special about its data."""

    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...]
    loss: Any
    optimizer: Any
    x: np.ndarray
    t: np.ndarray
    batch: int
    epochs: int = 1
    test: Arrays | None = None
    note: str = ""

    def net(self, backend: str | Cupy = "cupy") -> Chain:
        return Chain(*self.layers, input_shape=self.input_shape, backend=backend)

    def step(self, dtype: Any = np.float32) -> Program:
        """The program of a training step."""
        return self.net("numpy").program(self.loss, self.optimizer, target_shape=self.t.shape[1:], dtype=dtype)

    @property
    def steps(self) -> int:
        """The steps of all epochs. Batches that are not full are left out."""
        return self.epochs * (len(self.x) // self.batch)


def _matrix_exp(samples: int, setting: Setting) -> Problem:
    p = matrix_exp.problem(min(samples, 40) if setting.tiny else samples, "float32")
    layers = (Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    return Problem(layers, (4,), chains.MSELoss(), Adam(1e-3), p.x, p.t, len(p.x), 3 if setting.tiny else 1000)


def _mnist_mlp(setting: Setting) -> Problem:
    (x, labels), (xv, tv), note = _images(setting, "mnist", chains.data.load_mnist, (60_000, 28, 28), (1, 28, 28))
    x, labels = x[:50_000], labels[:50_000]
    flat, one_hot = x.reshape(len(x), -1), np.eye(10, dtype=np.float32)[labels]
    normal = {"weight_init": "normal", "bias_init": "normal"}
    layers = Dense(784, 30, σ, **normal), Dense(30, 10, σ, **normal)
    test = xv.reshape(len(xv), -1), tv
    return Problem(layers, (784,), SquaredLoss(), SGD(3.0), flat, one_hot, 2 if setting.tiny else 10, 1, test, note=note)


def _lenet5(setting: Setting) -> Problem:
    (x, t), test, note = _images(setting, "mnist", chains.data.load_mnist, (60_000, 28, 28), (1, 28, 28))
    channels = (1, 2) if setting.tiny else (6, 16)
    layers = (
        Conv(1, channels[0], 5, relu), MaxPool(2), Conv(*channels, 5, relu), MaxPool(2), chains.Flatten(),
        Dense(16 * channels[1], 120, relu), Dense(120, 84, relu), Dense(84, 10),
    )  # fmt: skip
    batch, epochs = min(2048, len(x) // 2), 1 if setting.tiny else 10
    # SimpleChains.jl's rate of 3e-4 is for small batches: with 2,048, ten epochs end at an accuracy of .961 instead of .985.
    return Problem(layers, (1, 28, 28), CrossEntropyLoss(), Adam(2e-3), x, t, batch, epochs, test, note=note)


def _rosetta_cnn(setting: Setting) -> Problem:
    (x, t), test, note = _images(setting, "cifar10", chains.data.load_cifar10, (50_000, 3, 32, 32), (3, 32, 32))
    thin, wide, features = (1, 2, 8) if setting.tiny else (50, 100, 512)
    layers = (
        _conv(3, thin, relu), _conv(thin, thin), MaxPool(2), chains.Activation(relu), chains.Dropout(0.25),
        _conv(thin, wide, relu), _conv(wide, wide), MaxPool(2), chains.Activation(relu), chains.Dropout(0.25),
        chains.Flatten(), Dense(64 * wide, features, relu, weight_init="glorot_uniform"), chains.Dropout(0.5),
        Dense(features, 10, weight_init="glorot_uniform"),
    )  # fmt: skip
    # One epoch of ten: its 781 steps take the same time, and time on a GPU is expensive.
    batch, optimizer = 2 if setting.tiny else 64, SGD(0.01, momentum=0.9)
    return Problem(layers, (3, 32, 32), CrossEntropyLoss(), optimizer, x, t, batch, 1, test, note=note)


def _conv(inputs: int, outputs: int, activation: Any = "identity") -> Conv:
    return Conv(inputs, outputs, 3, activation, padding=1, weight_init="glorot_uniform")


def _wide(setting: Setting) -> Problem:
    inputs, width, batch = (6, 8, 16) if setting.tiny else (2048, 4096, 1024)
    x, t = _noise(batch, (inputs,), 10)
    layers = (Dense(inputs, width, relu), Dense(width, width, relu), Dense(width, 10))
    return Problem(layers, (inputs,), CrossEntropyLoss(), SGD(1e-3), x, t, batch, 2 if setting.tiny else 50)


def _gru(setting: Setting) -> Problem:
    """The recurrent layer of `rosetta_rnn`, on noise."""
    inputs, units, steps, batch, count = (3, 4, 5, 2, 2) if setting.tiny else (125, 100, 150, 64, 20)
    x, t = _noise(batch * count, (steps, inputs), 2)
    return Problem((GRU(inputs, units), Dense(units, 2)), (steps, inputs), CrossEntropyLoss(), Adam(1e-3), x, t, batch)


def _ensemble(setting: Setting) -> Problem:
    """One of the 1,000 networks of `benchmarks ensemble`, all of which have the same data."""
    samples = 8 if setting.tiny else 64
    x = np.random.default_rng(0).standard_normal((samples, 2), np.float32)
    t = np.sin(2 * x[:, :1]) * x[:, 1:]
    layers = Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1)
    return Problem(layers, (2,), chains.MSELoss(), Adam(1e-3), x, t, samples, 3 if setting.tiny else 500)


PROBLEMS: dict[str, Callable[[Setting], Problem]] = {
    "matrix_exp": partial(_matrix_exp, 10_000),
    "matrix_exp_200": partial(_matrix_exp, 200),
    "matrix_exp_1": partial(_matrix_exp, 1),
    "mnist_mlp": _mnist_mlp,
    "lenet5": _lenet5,
    "rosetta_cnn": _rosetta_cnn,
    "wide": _wide,
    "gru": _gru,
    "ensemble": _ensemble,
}
_made: dict[tuple[str, Setting], Problem] = {}


def problem(key: str, setting: Setting) -> Problem:
    """The problem with this key; the last one is kept."""
    if (key, setting) not in _made:
        _made.clear()
        _made[key, setting] = PROBLEMS[key](setting)
    return _made[key, setting]


def timing(seconds: float, steps: int) -> dict[str, float]:
    """The time of these steps, as rows report it."""
    return {"seconds": seconds, "us_a_step": seconds / steps * 1e6}


def activation_of(layer: Layer) -> str:
    """The name of the function that a layer ends with; "identity" where there is none."""
    function = layer.f if isinstance(layer, chains.Activation) else getattr(layer, "activation", None)
    return "identity" if function is None else str(function.name)


def _noise(samples: int, shape: tuple[int, ...], classes: int) -> Arrays:
    rng = np.random.default_rng(0)
    return rng.standard_normal((samples, *shape), np.float32), rng.integers(0, classes, samples)


def _images(
    setting: Setting, name: str, load: Callable[[Path], Any], shape: tuple[int, ...], sample: tuple[int, ...]
) -> tuple[Arrays, Arrays, str]:
    """The data set and a note; without its files, noise of its shape, which takes as long."""
    note = ""
    try:
        if setting.folder is None:
            raise OSError("no folder is given")
        (x, t), (xv, tv) = load(setting.folder / name)
    except (OSError, ValueError) as error:
        note = f"noise instead of {name}, which cannot be read ({error})"
        rng = np.random.default_rng(1)
        samples = 24 if setting.tiny else shape[0]
        x, t = rng.integers(0, 256, (samples, *shape[1:]), np.uint8), rng.integers(0, 10, samples)
        xv, tv = x[:10_000], t[:10_000]
    if setting.tiny:
        x, t, xv, tv = x[:4], t[:4], xv[:2], tv[:2]
    x, xv = (images.reshape(-1, *sample).astype(np.float32) / np.float32(255) for images in (x, xv))
    return (x, t), (xv, tv), note
