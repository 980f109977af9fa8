"""The same derivatives by PyTorch: eager nested autograd, and `torch.func`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Calls = dict[str, Callable[[], Any]]
PINN, MATRIX_EXP = (2, 20, 20, 20, 1), (4, 32, 16, 4)


def _network(widths: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    def network(p: Any, x: Any) -> Any:
        start = 0
        for inputs, outputs in itertools.pairwise(widths):
            weight = p[start : start + inputs * outputs].reshape(inputs, outputs)
            bias = p[start + inputs * outputs : start + (inputs + 1) * outputs]
            start += (inputs + 1) * outputs
            x = x @ weight + bias
            x = torch.tanh(x) if start < len(p) else x
        return x

    return network


def _slopes(u: Any, x: Any) -> Any:
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


def input_derivatives(p: np.ndarray, x: np.ndarray) -> Calls:
    network, params = _network(PINN), torch.tensor(p)

    def eager() -> Any:
        points = torch.tensor(x, requires_grad=True)
        first = _slopes(network(params, points), points)
        return torch.stack([_slopes(first[:, k], points)[:, k] for k in range(2)], -1).detach()

    return {"eager": eager}


def pinn(p: np.ndarray, burgers: Any) -> Calls:
    network, viscosity = _network(PINN), 0.01 / math.pi
    params = torch.tensor(p, requires_grad=True)
    inside = torch.tensor(burgers.inside, requires_grad=True)
    edge, values = torch.tensor(burgers.edge), torch.tensor(burgers.values)

    def eager() -> Any:
        u = network(params, inside)
        first = _slopes(u, inside)
        u_xx = _slopes(first[:, 1], inside)[:, 1]
        residual = first[:, 0] + u[:, 0] * first[:, 1] - viscosity * u_xx
        loss = (residual**2).mean() + ((network(params, edge)[:, 0] - values) ** 2).mean()
        return torch.autograd.grad(loss, params)[0]

    points, tensor = torch.tensor(burgers.inside), torch.tensor(p)
    along_t = torch.zeros_like(points)
    along_t[:, 0] = 1.0
    along_x = torch.zeros_like(points)
    along_x[:, 1] = 1.0

    def loss(p: Any) -> Any:
        f = lambda z: network(p, z)[:, 0]  # noqa: E731
        _, u_t = torch.func.jvp(f, (points,), (along_t,))
        (u, u_x), (_, u_xx) = torch.func.jvp(lambda z: torch.func.jvp(f, (z,), (along_x,)), (points,), (along_x,))
        return ((u_t + u * u_x - viscosity * u_xx) ** 2).mean() + ((f(edge) - values) ** 2).mean()

    return {"eager": eager, "func, grad of jvp of jvp": lambda: torch.func.grad(loss)(tensor)}


def hessian_product(p: np.ndarray, x: np.ndarray, t: np.ndarray, v: np.ndarray) -> Calls:
    network = _network(MATRIX_EXP)
    params, points, targets, vector = (torch.tensor(each) for each in (p, x, t, v))

    def loss(p: Any) -> Any:
        return ((network(p, points) - targets) ** 2).mean()

    def eager() -> Any:
        q = params.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(q), q, create_graph=True)
        return torch.autograd.grad(g @ vector, q)[0]

    return {"eager": eager, "func, jvp of grad": lambda: torch.func.jvp(torch.func.grad(loss), (params,), (vector,))[1]}


def jacobian(p: np.ndarray, x: np.ndarray) -> Calls:
    network = _network(MATRIX_EXP)
    params, points = torch.tensor(p), torch.tensor(x)
    return {"func, vmap of jacrev": lambda: torch.func.vmap(torch.func.jacrev(network), (None, 0))(params, points)}
