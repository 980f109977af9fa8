"""Modules of PyTorch as networks: read by `from_torch`, and by `from_onnx` from the files of both exporters.

An attempt is a module in one of the three ways. The network must compute the same as the module, or be refused.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.interop import from_onnx, from_torch
from tests.campaign import running
from tests.campaign.imports import off

WAYS = ("from_torch", "TorchScript", "dynamo")


def modules() -> dict[str, tuple[Callable[[], Any], tuple[int, ...]]]:
    """Modules by name, each with the shape of a sample."""
    from torch import nn

    def dense(*layers: Any) -> Callable[[], Any]:
        return lambda: nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))

    activations = {
        name: (dense(getattr(nn, name)()), (6,))
        for name in (
            "ReLU", "ReLU6", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid", "LogSigmoid", "Softplus",
            "Softsign", "Hardswish", "Hardsigmoid", "Hardtanh", "LeakyReLU", "Tanhshrink", "Hardshrink", "PReLU",
        )
    }  # fmt: skip
    return {
        **activations,
        "equal biases": (_equal, (6,)),
        "gelu by tanh": (dense(nn.GELU("tanh")), (6,)),
        "softmax": (dense(nn.Softmax(1)), (6,)),
        "log softmax": (dense(nn.LogSoftmax(dim=1)), (6,)),
        "dropout": (dense(nn.Dropout(0.4)), (6,)),
        "batch norm": (dense(nn.BatchNorm1d(8)), (6,)),
        "layer norm": (dense(nn.LayerNorm(8)), (6,)),
        "two layer norms": (dense(nn.LayerNorm(8), nn.Tanh(), nn.LayerNorm(8)), (6,)),
        "layer norm without numbers": (dense(nn.LayerNorm(8, elementwise_affine=False)), (6,)),
        "layer norm without bias": (dense(nn.LayerNorm(8, bias=False)), (6,)),
        "rms norm": (dense(nn.RMSNorm(8)), (6,)),
        "group norm": (dense(nn.GroupNorm(2, 8)), (6,)),
        "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (6,)),
        "old weight norm": (lambda: nn.utils.weight_norm(nn.Linear(6, 3)), (6,)),
        "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), (6,)),
        "unflatten": (dense(nn.Unflatten(1, (2, 4)), nn.Flatten()), (6,)),
        "convolutions": (lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), (2, 8, 8)),
        "signals": (lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2), nn.ELU(), nn.AvgPool1d(2), nn.ConvTranspose1d(4, 2, 2), nn.Flatten()), (2, 12)),
        "padded": (lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.Conv2d(2, 3, 2)), (2, 5, 5)),
        "padded by copies": (lambda: nn.Sequential(nn.ReflectionPad1d(1), nn.Conv1d(2, 3, 3)), (2, 6)),
        "same": (lambda: nn.Conv2d(2, 3, 4, padding="same"), (2, 6, 6)),
        "pools": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, count_include_pad=False)), (2, 7, 7)),
        "pools that are ceiled": (lambda: nn.MaxPool2d(2, ceil_mode=True), (2, 6, 6)),
        "upsampled": (lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 3)), (2, 4, 3)),
        "instance norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4)), (2, 6, 6)),
        "GRU": (lambda: nn.GRU(3, 4, batch_first=True), (5, 3)),
        "LSTM": (lambda: nn.LSTM(3, 4, batch_first=True), (5, 3)),
        "RNN": (lambda: nn.RNN(3, 4, batch_first=True, nonlinearity="relu"), (5, 3)),
        "two LSTMs": (lambda: nn.LSTM(3, 4, 2, batch_first=True), (5, 3)),
        "LSTM in both directions": (lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), (5, 3)),
        "GRU in both directions": (lambda: nn.GRU(3, 4, batch_first=True, bidirectional=True), (5, 3)),
        "last step": (lambda: _last(nn), (5, 3)),
        "last state": (lambda: _state(nn), (5, 3)),
        "last state of two": (lambda: _state_of_two(nn), (5, 3)),
        "residual": (lambda: _residual(nn), (6,)),
        "scaled surrogate": (lambda: _surrogate(nn), (6,)),
        "heads": (lambda: _heads(nn), (6,)),
        "view": (lambda: _viewed(nn), (2, 4, 4)),
        "mean of images": (lambda: _mean(nn), (2, 5, 5)),
        "two layers of one weight": (lambda: _shared(nn), (6,)),
        "a product of branches": (lambda: _gated(nn), (6,)),
    }  # fmt: skip


def _of(function: Callable[..., Any], **parts: Any) -> Any:
    from torch import nn

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, nn.Module):
                    setattr(self, name, part)
                else:
                    self.register_buffer(name, part)

        def forward(self, x: Any) -> Any:
            return function(self, x)

    return Own()


def _equal() -> Any:
    from torch import nn

    layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    layers[2].bias.data.copy_(layers[0].bias.data)
    return layers


def _last(nn: Any) -> Any:
    return _of(lambda m, x: m.out(m.cell(x)[0][:, -1]), cell=nn.LSTM(3, 4, batch_first=True), out=nn.Linear(4, 2))


def _state(nn: Any) -> Any:
    return _of(lambda m, x: m.out(m.cell(x)[1][-1]), cell=nn.GRU(3, 4, batch_first=True), out=nn.Linear(4, 2))


def _state_of_two(nn: Any) -> Any:
    return _of(lambda m, x: m.out(m.cell(x)[1][0][-1]), cell=nn.LSTM(3, 4, 2, batch_first=True), out=nn.Linear(4, 2))


def _residual(nn: Any) -> Any:
    return _of(lambda m, x: m.out(x + m.a(x).tanh()), a=nn.Linear(6, 6), out=nn.Linear(6, 2))


def _surrogate(nn: Any) -> Any:
    import torch

    def function(m: Any, x: Any) -> Any:
        return m.net((x - m.mean) / m.scale) * m.out_scale + m.out_mean

    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    return _of(
        function, net=net, mean=torch.randn(6), scale=torch.rand(6) + 0.5, out_scale=torch.rand(2), out_mean=torch.randn(2)
    )


def _heads(nn: Any) -> Any:
    import torch

    return _of(lambda m, x: torch.cat([m.a(x), m.b(x).relu()], 1), a=nn.Linear(6, 2), b=nn.Linear(6, 3))


def _viewed(nn: Any) -> Any:
    return _of(lambda m, x: m.b(m.a(x).relu().view(x.size(0), -1)), a=nn.Conv2d(2, 3, 3), b=nn.Linear(12, 2))


def _mean(nn: Any) -> Any:
    return _of(lambda m, x: m.b(m.a(x).mean(dim=(2, 3))), a=nn.Conv2d(2, 3, 3), b=nn.Linear(3, 2))


def _shared(nn: Any) -> Any:
    return _of(lambda m, x: m.a(m.a(x).tanh()), a=nn.Linear(6, 6))


def _gated(nn: Any) -> Any:
    return _of(lambda m, x: m.a(x) * m.b(x).sigmoid(), a=nn.Linear(6, 6), b=nn.Linear(6, 6))


def drawn(make: Callable[[], Any], seed: int) -> Any:
    """A module with other numbers than those that norms begin with."""
    import torch

    torch.manual_seed(seed)
    module = make().eval()
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            if each.ndim == 1 and each.dtype == torch.float32 and (each == each[0]).all():
                each += 0.5 * torch.rand_like(each)
    return module


def exported(module: Any, shape: tuple[int, ...], dynamo: bool) -> Any:
    """The ONNX model that an exporter writes, for any number of samples."""
    import onnx
    import torch

    x, file = torch.randn(2, *shape), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        if dynamo:
            batch = torch.export.Dim("batch")
            program = torch.onnx.export(_first_of(module), (x,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
            return program.model_proto
        axes = {"x": {0: "batch"}}
        torch.onnx.export(_first_of(module), (x,), file, dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=axes)
    return onnx.load_from_string(file.getvalue())


def _first_of(module: Any) -> Any:
    """A recurrent module with its first output alone."""
    from torch import nn

    return _of(lambda m, x: m.inner(x)[0], inner=module) if isinstance(module, nn.RNNBase) else module


def outcome(name: str, way: str, seed: int, **how: Any) -> str:
    """equal, refused or not exported. Raises AssertionError for a wrong number, and what a crash raises."""
    import torch

    make, shape = modules()[name]
    module = drawn(make, seed)
    try:
        model = module if way == "from_torch" else exported(module, shape, way == "dynamo")
    except Exception:
        return f"{way}: not exported"
    try:
        if way == "from_torch":
            net, p, state = from_torch(module, shape, backend="numpy", **how)
        else:
            net, p, state = from_onnx(model, backend="numpy", **how)
    except (ValueError, TypeError) as error:
        if isinstance(error, TypeError) and way != "from_torch":
            raise
        return f"{way}: refused"
    for batch in (1, 5):
        x = 2.0 * torch.randn(batch, *shape)
        with torch.no_grad():
            y = _first_of(module)(x).numpy()
        if wrong := off(net(x.numpy(), p, state=state), y):
            raise AssertionError(f"{way} of {name}: {wrong}")
    return f"{way}: equal"


def attempt(seed: int, number: int) -> str:
    names = list(modules())
    return outcome(names[number // len(WAYS) % len(names)], WAYS[number % len(WAYS)], seed, check=False)


def missing() -> str:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        return "install onnx, onnxscript and torch"
    return ""


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(running.main(attempt, missing=missing))
