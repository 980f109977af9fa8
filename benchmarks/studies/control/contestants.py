"""Who takes part: each makes a library with CasADi's external interface."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from chains import Chain
from chains.interop import to_casadi

KINDS = ("forward", "jvp", "Jacobian", "Hessian")
_numbers = count()


@dataclass(frozen=True)
class Library:
    """A shared library; for each kind the symbol, and which of its results is wanted."""

    path: Path
    symbols: dict[str, tuple[str, int]]
    folders: str = ""  # where the libraries are that it needs


def external(name: str) -> dict[str, tuple[str, int]]:
    """The names of CasADi's external interface."""
    return {
        "forward": (name, 0),
        "jvp": (f"fwd1_{name}", 0),
        "Jacobian": (f"jac_{name}", 0),
        "Hessian": (f"jac_adj1_{name}", 0),
    }


def chains_library(net: Chain, p: np.ndarray, folder: Path, limit: float) -> Library:
    path = folder / f"chains{next(_numbers)}.so"
    to_casadi(net, p, path=path)
    return Library(path, external("F"))


def compiled(ca: Any, functions: list[Any], folder: Path, limit: float) -> Path:
    """Functions of CasADi as C, compiled."""
    source = f"symbols{next(_numbers)}"
    generator = ca.CodeGenerator(f"{source}.c")
    for function in functions:
        generator.add(function)
    generator.generate(f"{folder}/")
    command = ["gcc", "-O3", "-march=native", "-fPIC", "-shared", f"{source}.c", "-o", f"{source}.so", "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=limit)
    return folder / f"{source}.so"


def symbols(net: Chain, p: np.ndarray, folder: Path, limit: float, scalar: bool) -> Library:
    """The network and its derivatives in CasADi's own symbols: of numbers (SX) or of matrices (MX)."""
    import casadi as ca

    kind = ca.SX if scalar else ca.MX
    x = kind.sym("x", 4)
    y, arrays = x, list(net.views(p).values())
    for weight, bias in zip(arrays[::2], arrays[1::2], strict=True):
        y = ca.DM(weight).T @ y + ca.DM(bias)
        y = y if bias is arrays[-1] else ca.tanh(y)
    direction, weights = kind.sym("d", 4), kind.sym("v", 4)
    # Arguments have the places of the external interface, so that all contestants get the same numbers.
    functions = [
        ca.Function("forward", [x], [y]),
        ca.Function("jvp", [x, unused(ca, kind), direction], [ca.jtimes(y, x, direction)]),
        ca.Function("jacobian", [x], [ca.densify(ca.jacobian(y, x))]),
        ca.Function("hessian", [x, unused(ca, kind), weights], [ca.densify(ca.hessian(ca.dot(weights, y), x)[0])]),
    ]
    path = compiled(ca, functions, folder, limit)
    return Library(path, {kind: (function.name(), 0) for kind, function in zip(KINDS, functions, strict=True)})


def unused(ca: Any, kind: Any) -> Any:
    """An argument without entries, where the external interface has the outputs."""
    return kind.sym("unused", ca.Sparsity(4, 1))


def l4casadi(net: Chain, p: np.ndarray, folder: Path, limit: float) -> Library:
    """L4CasADi's library around PyTorch, on one thread."""
    import casadi as ca
    import l4casadi
    import torch

    from chains.interop import to_torch

    torch.set_num_threads(1)
    name = f"l4_{next(_numbers)}"
    module = to_torch(net, p.astype(np.float32)).eval()
    model = l4casadi.L4CasADi(module, device="cpu", name=name, build_dir=str(folder / name), generate_adj1=True)
    x = ca.MX.sym("x", 1, 4)  # a batch of one sample
    model(x)
    folders = f"{Path(torch.__file__).parent / 'lib'}:{Path(l4casadi.__file__).parent / 'lib'}"
    return Library(Path(model.shared_lib_dir) / f"lib{name}.so", external(name), folders)


CONTESTANTS: dict[str, Callable[[Chain, np.ndarray, Path, float], Library]] = {
    "chains": chains_library,
    "CasADi SX": lambda net, p, folder, limit: symbols(net, p, folder, limit, True),
    "CasADi MX": lambda net, p, folder, limit: symbols(net, p, folder, limit, False),
    "L4CasADi": l4casadi,
}
