"""A custom backend: PyTorch does the products and the formulas, on the processor, and NumPy does everything else.

    python examples/custom_backend.py

A subclass of `NumpyBackend` gives a function for each operation that it does in another way. The function is called once,
when a program is bound to arrays, and returns calls that fill these arrays in place. The conformance test compares the backend
with NumPy, and prints what passed. The example needs PyTorch: `pip install torch`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train
from chains.backends import NumpyBackend, register
from chains.program import operations as ops
from chains.testing import check_backend

CONDITIONS = {"and": "logical_and", "or": "logical_or", "not": "logical_not"}
NAMES = {"min": "minimum", "max": "maximum", **CONDITIONS}  # of PyTorch, where they are others


def product(memory: Any, operation: ops.MatMul) -> list[Callable[[], Any]]:
    out, a, b = (torch.from_numpy(memory.array(view)) for view in operation.views)  # tensors share the memory
    if operation.accumulate:
        return [lambda: out.add_(a @ b)]
    return [lambda: out.copy_(a @ b)]


def scalar(name: str, value: float, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """The function for an instruction of a formula. Its operands are numbers or truth values."""
    if name == "const":
        return partial(torch.tensor, value, dtype=dtype)
    if name == "where":
        return lambda condition, a, b: torch.where(condition.bool(), a.to(dtype), b.to(dtype))
    if name == "sign":  # of NaN, PyTorch's is 0: the conformance test found that
        return lambda a: torch.where(a.isnan(), a, a.sign())
    function = getattr(torch, NAMES.get(name, name))
    kind = torch.bool if name in CONDITIONS else dtype
    return lambda *operands: function(*(each.to(kind) for each in operands))


def formula(memory: Any, operation: ops.Map) -> list[Callable[[], Any]]:
    outs, ins = ([torch.from_numpy(memory.array(view)) for view in views] for views in (operation.outs, operation.ins))
    steps = [(scalar(each.operation, each.value, outs[0].dtype), each.operands) for each in operation.formula.instructions]

    def run() -> None:
        results = list(ins)
        for function, places in steps:
            results.append(function(*(results[place] for place in places)))
        results = [results[place].clone() for place in operation.formula.outputs]  # an out may be one of the ins
        for out, result in zip(outs, results, strict=True):
            out.copy_(result)

    return [run]


class TorchBackend(NumpyBackend):
    name = "own-torch"
    functions = {ops.MatMul: product, ops.BatchMatMul: product, ops.Map: formula}  # noqa: RUF012


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Check a custom backend, and train with it.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--only", default="*", help="a pattern of the checks (%(default)s)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # threads cost more than they save on such small arrays
    register("own-torch", TorchBackend)  # from now on, backend="own-torch" is this one
    print(check_backend("own-torch", only=options.only), "\n")

    x = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    t = np.sin(3 * x[:, :1]) * x[:, 1:]
    for backend in ("own-torch", "numpy"):
        net = Chain(Dense(2, 16, tanh), Dense(16, 1), backend=backend)
        p = net.init(seed=0, dtype=np.float64)
        history = train(net, p, x, t, SquaredLoss(), Adam(1e-2), epochs=options.epochs, batch_size=50)
        print(f"{backend:12}loss {history.loss[-1]:.12f}   {history.seconds[-1]:.2f} s")


if __name__ == "__main__":
    main()
