"""Networks from and to PyTorch, and as its modules."""

from __future__ import annotations

import importlib
import zipfile

import numpy as np
import pytest

import chains
from chains import (
    BatchNorm,
    Chain,
    Conv,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    MaxPool,
    SquaredLoss,
    activation,
    relu,
    tanh,
)
from chains.interop import as_torch, from_torch, to_torch

torch = pytest.importorskip("torch")
nn = torch.nn


def compared(net: Chain, p: np.ndarray, state: np.ndarray | None, module: nn.Module, x: np.ndarray, tolerance: float) -> None:
    """Outputs and gradients of both, in the mode "eval"."""
    module.eval()
    tensor = torch.from_numpy(x.copy())
    if x.dtype.kind == "f":
        tensor.requires_grad_()
    y = module(tensor)
    own = net(x, p, state=state)
    np.testing.assert_allclose(own, y.detach().numpy(), rtol=tolerance, atol=tolerance)
    dy = np.cos(np.arange(own.size)).reshape(own.shape).astype(own.dtype)
    y.backward(torch.from_numpy(dy))
    dp, dx = net.vjp(p, x, dy, state=state)
    if x.dtype.kind == "f":
        np.testing.assert_allclose(dx, tensor.grad.numpy(), rtol=tolerance, atol=10 * tolerance)
    grads = [each.grad.numpy() for each in module.parameters()]
    for (name, array), grad in zip(net.views(dp).items(), grads, strict=True):
        expected = grad.T if array.shape != grad.shape or is_dense(net, name) else grad
        np.testing.assert_allclose(array, expected, rtol=tolerance, atol=20 * tolerance, err_msg=name)


def is_dense(net: Chain, name: str) -> bool:
    layer = net
    for part in name.split(".")[:-1]:
        layer = layer.layers[int(part)]
    return isinstance(layer, Dense) and name.endswith("weight")


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_network_of_many_layers_there_and_back(dtype):
    net = Chain(
        Conv(2, 4, 3, relu, padding=1, stride=(1, 2)),
        BatchNorm(4),
        MaxPool(2),
        Conv(4, 3, (2, 1), "gelu", padding=((1, 0), (0, 0))),
        chains.GroupNorm(3, 3),
        chains.AvgPool(2, stride=1, padding=1),
        Flatten(),
        Dense(18, 6, chains.elu(alpha=0.5)),
        chains.LayerNorm(6),
        Dropout(0.3),
        chains.Reshape(2, 3),
        Dense(3, 3, "softplus"),
        chains.Select([2, -3, 1]),
        chains.RMSNorm(),
        Flatten(),
        Chain(Dense(6, 4, tanh, bias=False), chains.LogSoftmax()),
        input_shape=(2, 5, 6),
    )
    rng = np.random.default_rng(0)
    p, state = net.init(seed=1, dtype=dtype), np.abs(net.init_state(dtype) + rng.normal(0, 0.3, net.n_state).astype(dtype))
    x = rng.normal(size=(4, 2, 5, 6)).astype(dtype)
    module = to_torch(net, p, state)
    tolerance = 2e-6 if dtype == np.float32 else 1e-12
    compared(net, p, state, module, x, tolerance)
    back, q, again = from_torch(module, (2, 5, 6))
    np.testing.assert_allclose(back(x, q, state=again), net(x, p, state=state), rtol=tolerance, atol=tolerance)
    assert q.dtype == again.dtype == dtype


def test_layers_of_pytorch():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.ZeroPad2d((1, 0, 2, 1)),
        nn.Conv2d(2, 4, 3, padding="same", groups=2),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.AvgPool2d(3, count_include_pad=False, padding=1),
        nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1, bias=False),
        nn.SELU(),
        nn.Dropout2d(0.5),
        nn.Identity(),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(3, 4, bias=False),
        nn.Softmax(dim=-1),
        nn.Unflatten(1, (2, 2)),
        nn.RMSNorm(2),
        nn.Softplus(),
    )
    x = torch.randn(3, 2, 5, 4)
    net, p, state = from_torch(module, (2, 5, 4))
    assert state is None
    np.testing.assert_allclose(net(x, p), module.eval()(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    signals = nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3), nn.Tanh())
    ids = torch.randint(0, 7, (6, 5))
    net, p, _ = from_torch(signals, (5,))
    np.testing.assert_allclose(net(ids, p), signals(ids).detach().numpy(), rtol=1e-5, atol=1e-6)
    module = to_torch(Chain(Embedding(3, 2), Flatten(), input_shape=(4,)), np.arange(6.0))
    np.testing.assert_allclose(module(torch.tensor([[0, 1, 2, 2]])).detach().numpy(), [[0, 1, 2, 3, 4, 5, 4, 5]])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Bilinear(2, 2, 2), "no layer like torch.nn.Bilinear"),
        (nn.Conv2d(1, 1, 3, padding_mode="circular"), "`padding_mode`"),
        (nn.MaxPool2d(2, ceil_mode=True), "`ceil_mode`"),
        (nn.MaxPool2d(2, dilation=2), "`dilation`"),
        (nn.AdaptiveAvgPool2d(2), "`output_size`"),
        (nn.Softmax(dim=1), "takes the last axis"),
        (nn.Softmax(dim=0), "`dim`"),
        (nn.PReLU(3), "`num_parameters`"),
        (nn.BatchNorm1d(2, track_running_stats=False), "`track"),
        (nn.Upsample(scale_factor=1.5), "`scale_factor`"),
        (3, "`module` .=3. must be a module"),
    ],
)
def test_what_there_is_not_is_refused(module, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        from_torch(module, (2, 4, 4))


class Own(nn.Module):
    """A module of a user."""


def test_others_are_pointed_to_as_torch():
    with pytest.raises(TypeError, match=r"Own is not a layer of PyTorch"):
        from_torch(nn.Sequential(Own()), (2,))
    for layer in (chains.Scale(), chains.Activation(activation("cube", lambda x: x**3)), chains.Residual(Flatten())):
        net = Chain(layer, input_shape=(2,))
        with pytest.raises(TypeError, match=r"as_torch\(net\)"):
            to_torch(net, net.init())
    with pytest.raises(ValueError, match="`state` is missing"):
        to_torch(Chain(BatchNorm(2), input_shape=(2,)), np.ones(4))


def test_the_gradients_of_as_torch():
    net = Chain(Dense(3, 5, tanh), chains.Residual(Dense(5, 5, "gelu")), Dense(5, 2))
    module = as_torch(net, net.init(dtype=np.float64)).eval()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    p = module.p.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(module, (x, p))
    y = module(x, p)
    first = torch.autograd.grad((y**2).sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_gradients_that_are_negated_when_they_are_read():
    net = Chain(Dense(2, 2))
    module, x = as_torch(net, net.init(dtype=np.float64)), torch.ones(1, 2, dtype=torch.float64)
    gradients = []
    for dy in (torch.tensor([[1.0, -2.0]], dtype=torch.float64), torch.tensor([[-1j, 2j]], dtype=torch.complex128).conj().imag):
        module.zero_grad()
        module(x).backward(dy)
        gradients.append(module.p.grad.numpy().copy())
    assert dy.is_neg()
    assert np.array_equal(*gradients)


def test_as_torch_trains_within_a_network_of_pytorch():
    torch.manual_seed(0)
    net = Chain(Dense(4, 8, tanh), BatchNorm(8), Dropout(0.2), Dense(8, 3))
    module = as_torch(net)
    whole = nn.Sequential(nn.Linear(2, 4), module, nn.Linear(3, 1))
    optimizer = torch.optim.Adam(whole.parameters(), 0.01)
    x = torch.randn(64, 2)
    t = x[:, :1] * x[:, 1:]
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = ((whole(x) - t) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert set(whole.state_dict()) >= {"1.p", "1.state"}
    assert not np.array_equal(module.state.numpy(), net.init_state())
    whole.eval()
    assert torch.equal(whole(x), whole(x))
    assert repr(net) in repr(module)


def test_the_same_draw_serves_output_and_gradient():
    net = Chain(Dropout(0.5), input_shape=(50,))
    module = as_torch(net)
    x = torch.ones(2, 50, requires_grad=True)
    torch.manual_seed(1)
    y = module(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 10 < (y == 0).sum() < 90
    assert not torch.equal(module(x), y)


def test_as_torch_is_as_net():
    net = Chain(Dense(2, 3))
    p = net.init(seed=4)
    module = as_torch(net, p)
    before = p.copy()
    module.p.data += 1.0
    np.testing.assert_array_equal(p, before)
    x, t = np.ones((5, 2), np.float32), np.zeros((5, 3), np.float32)
    y = module(torch.from_numpy(x), torch.from_numpy(p).requires_grad_())
    value, _ = net.value_and_grad(p, x, t, SquaredLoss())
    assert (0.5 * y**2).sum(1).mean().item() == pytest.approx(value, rel=1e-6)
    with pytest.raises(ValueError, match="`p` must have shape"):
        as_torch(net, p[:-1])


def test_parameters_with_bounds_have_their_values():
    net = Chain(Dense(3, 2, tanh, weight_init=0.3, weight_bounds=(0.0, 1.0)))
    p, x = np.random.default_rng(0).normal(size=net.n_params), np.random.default_rng(1).normal(size=(5, 3))
    module = to_torch(net, p)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), net(x, p), rtol=1e-12)


def with_numbers(module: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.randn_like(each))
    return module


def is_read(module: nn.Module, shape: tuple[int, ...], **how: object) -> Chain:
    """The network of a module, which computes the same."""
    net, p, state = from_torch(module, shape, backend="numpy", **how)
    x = 4.0 * torch.randn(4, *shape)
    with torch.no_grad():
        np.testing.assert_allclose(net(x.numpy(), p, state=state), module.eval()(x).numpy(), rtol=1e-5, atol=1e-5)
    return net


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("old", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_of_hooks_are_those_of_what_was_loaded(old):
    """They are computed at the next call of the module, which `load_state_dict` does not make."""
    module, other = (nn.Sequential(old(nn.Linear(3, 2)), nn.Tanh()) for _ in range(2))
    with_numbers(other)
    other.eval()(torch.randn(2, 3))
    module.load_state_dict(other.state_dict())
    is_read(module, (3,), check=False)


def test_weights_that_are_pruned_are_zero():
    prune = importlib.import_module("torch.nn.utils.prune")
    module, other = (nn.Sequential(nn.Linear(3, 2)) for _ in range(2))
    for each in (module, other):
        prune.random_unstructured(each[0], "weight", 0.5)
    module.load_state_dict(other.state_dict())
    is_read(module, (3,), check=False)


def test_parametrized_layers_are_read():
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2))
    assert repr(is_read(module, (3,))) == "Chain(Dense(3, 4, relu), Dense(4, 2))"


def test_hooks_and_other_functions_are_found_out():
    hooked = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    hooked[1].register_forward_hook(lambda module, args, y: 2.0 * y)
    patched = nn.Sequential(nn.Linear(3, 2))
    patched.forward = lambda x: patched[0](x) + 1.0
    whole = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    whole.register_forward_hook(lambda module, args, y: 2.0 * y)
    unread = "Hooks and replaced `forward` methods are not read: there are some in"
    for module, layer in (
        (hooked, rf"layer that differs is 0, Dense\(3, 4, tanh\), read from '1': by .*\. {unread} '1'$"),
        (patched, rf"largest number is [0-9.]+\. {unread} 'the module'$"),
        (whole, rf"largest number is [0-9.]+\. {unread} 'the module'$"),
    ):
        with pytest.raises(ValueError, match=f"does not compute what the module does: by .*{layer}"):
            from_torch(module)
        assert from_torch(module, check=False)[1].size


def test_one_axis_alone_is_split():
    """Reshape splits the whole sample: it equals Unflatten for samples of one axis."""
    pooled = nn.Sequential(nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Unflatten(1, (2, 2)))
    for module, shape in ((pooled, (2, 7)), (nn.Unflatten(1, (2, -1)), (4, 3))):
        with pytest.raises(ValueError, match=r"Reshape\(2, -?\d\) takes the last axis, but the axis 1 of its input is not"):
            from_torch(module, shape, check=False)
    assert repr(is_read(nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2))), (3,))) == "Chain(Dense(3, 4), Reshape(2, 2))"


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    module[2].eval()
    from_torch(module)
    assert [each.training for each in module.modules()] == [True, True, True, False]
    assert (module[1].running_mean == 0.0).all()


def test_a_module_that_cannot_be_run_gives_a_warning():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.warns(UserWarning, match="was not compared with the module, which could not be run: ZeroDivisionError"):
        from_torch(module)


def test_complex_and_half_numbers():
    with pytest.raises(ValueError, match=r"has numbers of torch.complex64, but networks here are real"):
        from_torch(nn.Linear(2, 2, dtype=torch.complex64))
    module = with_numbers(nn.Sequential(nn.Linear(3, 2, dtype=torch.bfloat16)))
    net, p, _ = from_torch(module)
    assert p.dtype == np.float32
    np.testing.assert_array_equal(net.views(p)["0.weight"], module[0].weight.detach().float().numpy().T)


SCALAR = [
    nn.ReLU6(), nn.Hardtanh(-2.0, 3.0), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardshrink(), nn.Softshrink(0.7), nn.Tanhshrink(),
    nn.Threshold(0.1, 20.0), nn.LogSigmoid(), nn.CELU(2.0), nn.GELU("tanh"), nn.PReLU(),
]  # fmt: skip


@pytest.mark.parametrize("module", SCALAR, ids=lambda module: type(module).__name__)
def test_activations_by_their_formulas(module):
    is_read(nn.Sequential(module), (7,))


def test_the_last_axis_by_its_number():
    is_read(nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), (3,))
    is_read(nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(dim=2)), (5, 3))
    for check in (True, False):
        with pytest.raises(ValueError, match=r"Softmax\(\) takes the last axis, but the axis 1 of its input is not"):
            from_torch(nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), (5, 3), check=check)


def test_norms_without_some_of_their_numbers():
    is_read(nn.Sequential(with_numbers(nn.LayerNorm(4, bias=False))), (4,))
    is_read(nn.Sequential(nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3), nn.InstanceNorm2d(3, affine=True)), (2, 4, 4))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("part", "kind"), [("constants.pkl", "TorchScript"), ("models/model.json", r"torch\.export")])
def test_files_of_compiled_modules_are_known_by_their_parts(part, kind, tmp_path):
    with zipfile.ZipFile(tmp_path / "module.pt", "w") as archive:
        archive.writestr(f"module/{part}", "")
    with pytest.raises(ValueError, match=rf"module\.pt'\) is a file of {kind}, which has code, but no layers"):
        from_torch(tmp_path / "module.pt")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_compiled_modules_are_refused_with_what_to_do(tmp_path):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    traced = torch.jit.trace(module, torch.zeros(1, 2))
    exported = torch.export.export(module, (torch.zeros(1, 2),))
    torch.jit.save(traced, tmp_path / "traced.pt")
    torch.export.save(exported, tmp_path / "exported.pt2")
    torch.save(module, tmp_path / "module.pt")
    advice = r"which has code, but no layers that can be read: save the module it was made of, by torch\.save"
    for given, kind, name in (
        (traced, TypeError, r"\(of type TopLevelTracedModule\) is one of TorchScript"),
        (exported, TypeError, r"\(of type ExportedProgram\) is one of torch\.export"),
        (tmp_path / "traced.pt", ValueError, r"traced\.pt'\) is a file of TorchScript"),
        (tmp_path / "exported.pt2", ValueError, r"exported\.pt2'\) is a file of torch\.export"),
    ):
        with pytest.raises(kind, match=f"{name}, {advice}"):
            from_torch(given)
    assert from_torch(tmp_path / "module.pt")[1].shape == (9,)
