"""A network as a module of PyTorch, computed here, with gradients in PyTorch's graph."""

from __future__ import annotations

from functools import cache
from typing import Any

from chains.chain import Chain, check_net
from chains.interop.parts import needed
from chains.network import arguments


def as_torch(net: Chain, p: Any = None, state: Any = None) -> Any:
    """A module of PyTorch that computes a network by this package, within PyTorch's graph of gradients.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,), optional
        Its parameters, float32 or float64; they are copied. None: those of ``net.init()``.
    state : array, shape (n_state,), optional
        Its state, for networks that have one; a copy of it is the module's buffer. None: that of ``net.init_state()``.

    Returns
    -------
    torch.nn.Module
        ``module(x)`` is the output for a tensor `x` (batch, *input_shape) on the CPU, and ``module(x, p)`` that at other
        parameters; gradients go to both. Its one parameter is `p`. In its mode for training, dropout is on, drawn by PyTorch's
        generator, and the state is updated. Gradients can be taken once: the gradient of a gradient is refused.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    ImportError
        Where PyTorch is missing.
    """
    torch = needed("torch")
    check_net(net)
    p = net.init() if p is None else arguments.check_params(p, net.n_params)
    if net.n_state:
        state = net.init_state(p.dtype) if state is None else state
        state = arguments.check_state(state, net.state_layout, p.dtype, False, {})
    function = _function(torch)

    class ChainModule(torch.nn.Module):  # type: ignore[name-defined]
        """A network of chains."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.p = torch.nn.Parameter(torch.from_numpy(p.copy()))
            self.register_buffer("state", torch.from_numpy(state.copy()) if net.n_state else None)

        def forward(self, x: Any, p: Any = None) -> Any:
            seed = int(torch.randint(2**62, ())) if self.training else 0
            return function.apply(x, self.p if p is None else p, net, self.state, "train" if self.training else "eval", seed)

        def extra_repr(self) -> str:
            return repr(net)

    return ChainModule()


@cache
def _function(torch: Any) -> Any:
    class ChainFunction(torch.autograd.Function):
        """The network and its pullback."""

        @staticmethod
        def forward(ctx: Any, x: Any, p: Any, net: Chain, state: Any, mode: str, seed: int) -> Any:
            ctx.save_for_backward(x, p)
            before = None if state is None else state.detach().numpy().copy()
            ctx.rest = net, before, mode, seed
            with torch.no_grad():
                own = None if state is None else state.numpy()
                y = net(x.detach().numpy(), p.detach().contiguous().numpy(), state=own, mode=mode, seed=seed)
            return torch.from_numpy(y)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dy: Any) -> Any:
            x, p = ctx.saved_tensors
            net, state, mode, seed = ctx.rest
            dp, dx = net.vjp(p.detach().contiguous().numpy(), x.detach().numpy(), dy.numpy(), state=state, mode=mode, seed=seed)
            dx = torch.from_numpy(dx).to(x.dtype) if ctx.needs_input_grad[0] else None
            return dx, torch.from_numpy(dp), None, None, None, None

    return ChainFunction
