"""Networks of the literature: published parameter counts, PyTorch's outputs and gradients, parts of networks, summaries."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains import models
from tests.harness import assert_close

PUBLISHED = {models.resnet50: 25_557_032, models.densenet121: 7_978_856}
RELATIVES = [  # torchvision's counts
    (lambda: models.resnet((3, 4, 23, 3)), 44_549_160),
    (lambda: models.resnet((3, 8, 36, 3)), 60_192_808),
    (lambda: models.densenet((6, 12, 32, 32)), 14_149_480),
    (lambda: models.densenet((6, 12, 48, 32)), 20_013_928),
]


@pytest.mark.parametrize("make", PUBLISHED, ids=lambda make: make.__name__)
def test_parameter_counts(make):
    net = make()
    assert net.n_params == PUBLISHED[make]
    assert (net.input_shape, net.output_shape) == ((3, 224, 224), (1000,))


@pytest.mark.parametrize(("make", "count"), RELATIVES)
def test_parameter_counts_of_relatives(make, count):
    assert make().n_params == count


def test_names():
    shapes = {entry.name: entry.shape for entry in models.resnet50().layout}
    assert shapes["0.weight"] == (64, 3, 7, 7)
    assert shapes["4.inner.3.weight"] == (64, 64, 3, 3)
    assert shapes["4.shortcut.0.weight"] == (256, 64, 1, 1)
    assert shapes["19.inner.7.bias"] == (2048,)
    assert shapes["21.weight"] == (2048, 1000)
    assert "5.shortcut.0.weight" not in shapes
    shapes = {entry.name: entry.shape for entry in models.densenet121().layout}
    assert shapes["4.0.1.2.weight"] == (128, 64, 1, 1)
    assert shapes["10.15.1.5.weight"] == (32, 128, 3, 3)


@pytest.mark.parametrize("make", PUBLISHED, ids=lambda make: make.__name__)
def test_the_summary_of_a_deep_network_is_readable(make):
    net = make()
    text, lines = net.summary(), net.summary().splitlines()
    assert len(lines) == 4 + len(net.layers) < 30
    assert max(map(len, lines)) <= 100
    assert f"{net.n_params:,}" in text
    assert any(part in text for part in ("17  Bottleneck(1024, 512, stride=2)", "10  DenseBlock(512, 16)"))


# Parts


def test_features():
    """The head cut off: 2,048 features after average pooling, from the same vectors' beginnings."""
    net = models.resnet50(input_shape=(3, 32, 32), backend="numpy")
    features, head = net[:-1], net[-1:]
    assert (features.input_shape, features.output_shape) == ((3, 32, 32), (2048,))
    assert (head.input_shape, head.output_shape) == ((2048,), (1000,))
    assert (features.n_params, features.n_state) == (net.n_params - 2049 * 1000, net.n_state)
    p, state = net.init(), net.init_state()
    x = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    y = features(x, p[: features.n_params], state=state[: features.n_state])
    assert y.shape == (2, 2048)
    assert_close(head(y, p[features.n_params :]), net(x, p, state=state), 1e-5)


# Against PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def torch_resnet(torch, blocks, classes, channels, width):
    """The network as in torchvision, from torch.nn alone."""
    nn = torch.nn

    def normalised(inputs, outputs, kernel, stride=1):
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.inner = nn.Sequential(
                *normalised(inputs, width, 1), nn.ReLU(), *normalised(width, width, 3, stride), nn.ReLU(),
                *normalised(width, 4 * width, 1),
            )  # fmt: skip
            projected = stride != 1 or inputs != 4 * width
            self.shortcut = nn.Sequential(*normalised(inputs, 4 * width, 1, stride)) if projected else nn.Identity()

        def forward(self, x):
            return torch.relu(self.inner(x) + self.shortcut(x))

    layers, inputs = [*normalised(channels, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Block(inputs, width * 2**stage, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def torch_densenet(torch, blocks, classes, channels, growth):
    """The network as in torchvision, from torch.nn alone."""
    nn = torch.nn

    class Dense(nn.Module):
        def __init__(self, inputs):
            super().__init__()
            self.new = nn.Sequential(
                nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )  # fmt: skip

        def forward(self, x):
            return torch.cat([x, self.new(x)], 1)

    width = 2 * growth
    layers = [nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for block, count in enumerate(blocks):
        layers += [Dense(width + k * growth) for k in range(count)]
        width += count * growth
        if block < len(blocks) - 1:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    head = [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers, *head)


# A network and its peer.
FULL = [
    (
        lambda: models.resnet50(input_shape=(3, 40, 40), backend="numpy"),
        lambda torch: torch_resnet(torch, (3, 4, 6, 3), 1000, 3, 64),
    ),
    (
        lambda: models.densenet121(input_shape=(3, 40, 40), backend="numpy"),
        lambda torch: torch_densenet(torch, (6, 12, 24, 16), 1000, 3, 32),
    ),
]
SMALL = [
    (lambda backend: models.resnet((2, 1), 3, (2, 17, 16), width=2, backend=backend),
     lambda torch: torch_resnet(torch, (2, 1), 3, 2, 2)),
    (lambda backend: models.densenet((2, 1), 3, (2, 32, 32), growth=3, backend=backend),
     lambda torch: torch_densenet(torch, (2, 1), 3, 2, 3)),
]  # fmt: skip
IDS = ["resnet", "densenet"]


def random_vectors(net, dtype):
    """Parameters as initialised, but for other numbers where those were all zeros or ones; and a state."""
    rng = np.random.default_rng(1)
    p, state = net.init(np.random.default_rng(0), dtype), net.init_state(dtype)
    for view in net.views(p).values():
        view += rng.normal(0.0, 0.1, view.shape) if view.ndim == 1 else 0.0
    state *= rng.uniform(0.7, 1.5, state.shape)
    return p, state + rng.normal(0.0, 0.05, state.shape).astype(dtype)


def like_parameter(array):
    """Weights of dense layers are transposed; convolutions' are not."""
    return array.T if array.ndim == 2 else array


def running(peer):
    return [buffer for name, buffer in peer.named_buffers() if "running" in name]


def assert_relatively_close(actual, wanted, tolerance, what):
    assert actual.shape == wanted.shape, what
    assert np.linalg.norm(actual - wanted) <= tolerance * np.linalg.norm(wanted), what


def assert_as_in_torch(torch, net, peer, batch, dtype, tolerance):
    """The same outputs, gradients and running statistics in both modes, parameter by parameter in the order of both."""
    p, state = random_vectors(net, dtype)
    rng = np.random.default_rng(2)
    x, dy = (rng.normal(size=(batch, *shape)).astype(dtype) for shape in (net.input_shape, net.output_shape))
    peer = peer.to(torch.tensor(x).dtype)
    params = list(peer.parameters())
    with torch.no_grad():
        for view, tensor in zip(net.views(p).values(), params, strict=True):
            tensor.copy_(torch.tensor(like_parameter(view)))
        for view, tensor in zip(net.state_views(state).values(), running(peer), strict=True):
            tensor.copy_(torch.tensor(view))
    for mode in ("eval", "train"):
        inputs = torch.tensor(x, requires_grad=True)
        wanted = peer.train(mode == "train")(inputs)
        peer.zero_grad()
        wanted.backward(torch.tensor(dy))
        dp, dx = net.vjp(p, x, dy, state=state, mode=mode)
        y = net(x, p, state=state, mode=mode)
        assert_relatively_close(y, wanted.detach().numpy(), tolerance, f"y, {mode}")
        assert_relatively_close(dx, inputs.grad.numpy(), tolerance, f"dx, {mode}")
        for (name, view), tensor in zip(net.views(dp).items(), params, strict=True):
            assert_relatively_close(like_parameter(view), tensor.grad.numpy(), tolerance, f"{name}, {mode}")
    for (name, view), tensor in zip(net.state_views(state).items(), running(peer), strict=True):
        assert_relatively_close(view, tensor.numpy(), tolerance, name)


@pytest.mark.few(0)
@pytest.mark.parametrize(("make", "peer"), FULL, ids=IDS)
def test_full_size_as_in_torch(torch, make, peer):
    assert_as_in_torch(torch, make(), peer(torch), 5, np.float64, 1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize(("make", "peer"), SMALL, ids=IDS)
def test_small_ones_as_in_torch(torch, make, peer, dtype, backend_name):
    tolerance = 1e-11 if dtype == np.float64 else 5e-3  # gradients of the first layers almost cancel
    assert_as_in_torch(torch, make(backend_name), peer(torch), 5, dtype, tolerance)


@pytest.mark.parametrize("make", [models.resnet, models.densenet], ids=lambda make: make.__name__)
@pytest.mark.parametrize("blocks", [3, (), (1, 0), (1.5,), "ab", None], ids=str)
def test_numbers_of_blocks_that_make_no_sense(make, blocks):
    with pytest.raises(TypeError, match=re.escape(f"`blocks` (={blocks!r})")):
        make(blocks)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.resnet50(0), "`classes` (=0)"),
        (lambda: models.resnet((1,), width=1.5), "`width` (=1.5)"),
        (lambda: models.densenet121("ten"), "`classes` (='ten')"),
        (lambda: models.densenet((1,), growth=-1), "`growth` (=-1)"),
    ],
    ids=["classes", "width", "classes-text", "growth"],
)
def test_sizes_of_models_that_make_no_sense(make, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        make()
