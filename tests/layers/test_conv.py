"""Layers of images against PyTorch: outputs and all gradients, over some hundred random settings of each."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import AvgPool, Chain, Conv, ConvTranspose, GlobalAvgPool, MaxPool, Pad, Upsample
from tests.harness import assert_close, record_all, run_program

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's, on its own speed
F = torch.nn.functional

TOLERANCE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 3e-5}
ACTIVATIONS = {"identity": lambda x: x, "relu": F.relu, "tanh": F.tanh, "silu": F.silu}


class Draw:
    """Random settings, from a seed."""

    def __init__(self, *seed):
        self.rng = np.random.default_rng(seed)
        self.ndim = int(self.rng.choice([1, 2, 2]))

    def one(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def each(self, low, high):
        """A number for each axis; sometimes the same one."""
        values = [self.one(low, high) for _ in range(self.ndim)]
        return tuple(values if self.rng.random() < 0.7 else values[:1] * self.ndim)

    def pick(self, *choices):
        return choices[self.one(0, len(choices) - 1)]

    def lengths(self, least, more=9):
        """Lengths of the input's axes: at least these."""
        return tuple(max(1, length) + self.one(0, more) for length in least)


def short(values):
    """A setting as people write it: one number where it is the same for two axes."""
    return values[0] if len(values) == 2 and len(set(values)) == 1 else values


def flat(pads):
    """Pairs for each axis in the order of torch's `pad`, the last axis first."""
    return [side for pair in reversed(pads) for side in pair]


def convolution(draw):
    groups, kernel = draw.pick(1, 1, 2, 3), draw.each(1, 5)
    inputs, outputs = groups * draw.one(1, 3), groups * draw.one(1, 4)
    stride, dilation, f, bias = draw.each(1, 3), draw.each(1, 3), draw.pick(*ACTIVATIONS), draw.pick(True, False)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    kind = draw.pick("number", "sides", "same", "valid")
    if kind == "same":
        stride = (1,) * draw.ndim
    pads = [(draw.one(0, 3), draw.one(0, 3)) for _ in kernel]
    pads = {"number": [(a, a) for a, _ in pads], "sides": pads}.get(kind, [(0, 0) for _ in kernel])
    padding = {"number": short(tuple(a for a, _ in pads)), "sides": tuple(pads)}.get(kind, kind)
    layer = Conv(inputs, outputs, short(kernel), f, stride=short(stride), padding=padding,
                 dilation=short(dilation), groups=groups, bias=bias)  # fmt: skip
    shape = (inputs, *draw.lengths([s - a - b for s, (a, b) in zip(span, pads, strict=True)]))
    convolve = F.conv2d if draw.ndim == 2 else F.conv1d

    def peer(x, weight, bias=None):
        x = F.pad(x, flat(pads))
        same = "same" if kind == "same" else 0
        return ACTIVATIONS[f](convolve(x, weight, bias, stride, same, dilation, groups))

    return layer, shape, peer


def transposed(draw):
    groups, kernel = draw.pick(1, 1, 2, 3), draw.each(1, 4)
    inputs, outputs = groups * draw.one(1, 3), groups * draw.one(1, 3)
    stride, dilation, f, bias = draw.each(1, 3), draw.each(1, 2), draw.pick(*ACTIVATIONS), draw.pick(True, False)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw.one(0, min(2, (s - 1) // 2)) for s in span)
    extra = tuple(draw.one(0, step - 1) for step in stride)
    layer = ConvTranspose(inputs, outputs, short(kernel), f, stride=short(stride), padding=short(padding),
                          output_padding=short(extra), dilation=short(dilation), groups=groups, bias=bias)  # fmt: skip
    convolve = F.conv_transpose2d if draw.ndim == 2 else F.conv_transpose1d

    def peer(x, weight, bias=None):
        return ACTIVATIONS[f](convolve(x, weight, bias, stride, padding, extra, groups, dilation))

    return layer, (inputs, *draw.lengths((1,) * draw.ndim, 5)), peer


def pool(draw):
    kernel, stride, kind = draw.each(1, 4), draw.each(1, 4), draw.pick("max", "mean")
    padding = tuple(draw.one(0, k // 2) for k in kernel)
    default = draw.one(0, 2) == 0
    shape = (draw.one(1, 5), *draw.lengths([k - 2 * a for k, a in zip(kernel, padding, strict=True)]))
    settings = {"padding": short(padding)} | ({} if default else {"stride": short(stride)})
    moves = kernel if default else stride
    if kind == "max":
        function = F.max_pool2d if draw.ndim == 2 else F.max_pool1d
        return MaxPool(short(kernel), **settings), shape, lambda x: function(x, kernel, moves, padding)
    counted = draw.pick(True, False)
    function = F.avg_pool2d if draw.ndim == 2 else F.avg_pool1d
    layer = AvgPool(short(kernel), count_padding=counted, **settings)
    return layer, shape, lambda x: function(x, kernel, moves, padding, count_include_pad=counted)


def resampling(draw):
    shape, kind = (draw.one(1, 4), *draw.lengths((1,) * draw.ndim, 6)), draw.pick("upsample", "pad", "mean")
    if kind == "mean":
        return GlobalAvgPool(), shape, lambda x: x.flatten(2).mean(-1)
    if kind == "pad":
        pads = tuple((draw.one(0, 3), draw.one(0, 3)) for _ in range(draw.ndim))
        return Pad(pads), shape, lambda x: F.pad(x, flat(pads))
    factors = draw.each(1, 4)
    scale = tuple(float(factor) for factor in factors)
    return Upsample(short(factors)), shape, lambda x: F.interpolate(x, scale_factor=scale, mode="nearest")


FAMILIES = {
    "convolution": (convolution, 300),
    "transposed": (transposed, 150),
    "pool": (pool, 150),
    "resampling": (resampling, 60),
}
SETTINGS = [(family, number) for family, (_, count) in FAMILIES.items() for number in range(count)]


def assert_as_in_torch(family, number, dtype, backend_name):
    make = FAMILIES[family][0]
    draw = Draw(list(FAMILIES).index(family), number)
    layer, shape, peer = make(draw)
    net, batch = Chain(layer, input_shape=shape), draw.one(1, 5)
    p, x = draw.rng.normal(size=net.n_params), draw.rng.normal(size=(batch, *shape))
    x = np.round(x) if draw.one(0, 1) else x  # with many equal entries
    dy = draw.rng.normal(size=(batch, *net.output_shape))
    arrays = {"p": p.astype(dtype), "x": x.astype(dtype), "dy": dy.astype(dtype)}
    program = record_all(net, dtype).finish()
    given = {name: array for name, array in arrays.items() if name in program.buffers}
    actual = run_program(program, backend_name, batch, given, fill=0xFF)

    inputs = torch.tensor(arrays["x"].astype(np.float64), requires_grad=True)
    params = {key: torch.tensor(view, requires_grad=True) for key, view in net.views(arrays["p"].astype(np.float64)).items()}
    y = peer(inputs, *params.values())
    y.backward(torch.tensor(dy))
    tolerance = TOLERANCE[np.dtype(dtype)]
    assert_close(actual["y"], y.detach().numpy(), tolerance, f"y of {layer}")
    assert_close(actual["dx"], inputs.grad.numpy(), tolerance, f"dx of {layer}")
    for key, tensor in params.items():
        assert_close(net.views(actual["g"])[key], tensor.grad.numpy(), tolerance, f"{key} of {layer}")


@pytest.mark.few(20)
@pytest.mark.parametrize(("family", "number"), SETTINGS, ids=str)
def test_outputs_and_gradients(family, number, backend_name):
    assert_as_in_torch(family, number, np.float64, backend_name)


@pytest.mark.few(20)
@pytest.mark.parametrize(("family", "number"), SETTINGS[::12], ids=str)
def test_outputs_and_gradients_in_float32(family, number, backend_name):
    assert_as_in_torch(family, number, np.float32, backend_name)


def test_the_settings_are_many_and_various():
    layers = [make(Draw(k, number))[0] for k, (make, count) in enumerate(FAMILIES.values()) for number in range(count)]
    assert len(layers) >= 500
    assert len(set(map(repr, layers))) > 500
    for wanted in ("groups=3", "dilation=(", "stride=", "padding=((", "output_padding", "count_padding=False", "bias=False"):
        assert sum(wanted in repr(layer) for layer in layers) >= 10, wanted


def test_fans_are_those_of_torch(dtype):
    """The deviations of He's initializer, by fan in and by fan out, for kernels with groups."""
    layer, weight = Conv(32, 64, 3, groups=2), torch.empty(64, 16, 3, 3)
    net = Chain(layer, input_shape=(32, 5, 5))
    drawn = net.views(net.init(dtype=dtype))["0.weight"]
    assert drawn.shape == weight.shape
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(weight)
    assert chains.initializers.fans(drawn.shape) == (fan_in, fan_out)
    assert drawn.std() == pytest.approx(np.sqrt(2.0 / (fan_in + fan_out)), rel=0.03)
