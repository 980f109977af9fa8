"""Modules of PyTorch while they are read: in the mode "eval", with weights that are up to date, in a type that is here too."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from chains.support.messages import listed

# The hooks of PyTorch that compute a weight, by the files of torch.nn.utils.
REFRESHING = {"weight_norm": "WeightNorm", "spectral_norm": "SpectralNorm", "prune": "BasePruningMethod"}


@contextmanager
def computing(torch: Any, module: Any) -> Iterator[Any]:
    """The module in the mode "eval", without gradients; a copy in float32 if it has numbers of float16 or bfloat16.

    Raises ValueError for complex numbers.
    """
    kinds = {tensor.dtype for tensor in (*module.parameters(), *module.buffers())}
    if found := next((kind for kind in kinds if kind.is_complex), None):
        raise ValueError(f"the module has numbers of {found}, but networks here are real")
    if kinds & {torch.float16, torch.bfloat16}:
        module = copy.deepcopy(module).float()
    modes = [(each, each.training) for each in module.modules()]
    with torch.no_grad():
        try:
            module.eval()
            for each, _ in modes:
                _refresh(each)
            yield module
        finally:
            for each, training in modes:
                each.training = training


def _refresh(module: Any) -> None:
    """Compute weights from others, as `weight_norm`, `spectral_norm` and `prune` do before each call of the module."""
    kinds = _refreshing()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, kinds):
            hook(module, ())


def _refreshing() -> Any:
    """The classes of the hooks that compute weights."""
    return tuple(getattr(importlib.import_module(f"torch.nn.utils.{file}"), name) for file, name in REFRESHING.items())


def kind(torch: Any, module: Any) -> str:
    """The name of a module's class, without that of its parametrisations."""
    return str(_class(torch, module).__name__)


def is_known(torch: Any, module: Any) -> bool:
    """Whether a module is one of PyTorch's."""
    return bool(_class(torch, module).__module__.startswith("torch.nn."))


def _class(torch: Any, module: Any) -> type:
    parametrized = torch.nn.utils.parametrize.is_parametrized(module)
    return type(module).__bases__[0] if parametrized else type(module)


def unread(module: Any) -> str:
    """A sentence that names the modules with code of their own, hooks or a `forward`, which is not read; empty without them."""
    changed = (name or "the module" for name, each in module.named_modules() if _is_changed(each))
    names = listed(map(repr, changed))
    return "" if names == "none" else f"Hooks and replaced `forward` methods are not read: there are some in {names}"


def _is_changed(module: Any) -> bool:
    kinds = _refreshing()
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return "forward" in vars(module) or any(not isinstance(hook, kinds) for hook in hooks)


def results(torch: Any, module: Any, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output of a module, and those of the modules within it by name."""
    found: dict[str, np.ndarray] = {}
    parameter = next(module.parameters(), torch.zeros(()))
    tensor = torch.from_numpy(np.ascontiguousarray(x)).to(parameter.device)
    y = _called(torch, module, tensor, "", found)
    return y.detach().cpu().numpy(), found


def _called(torch: Any, module: Any, x: Any, path: str, found: dict[str, np.ndarray]) -> Any:
    """The output of a module on its only input; a recurrent module gives that of all steps."""
    if _is_plain_sequence(torch, module):
        for k, child in enumerate(module):
            x = _called(torch, child, x, f"{path}.{k}" if path else str(k), found)
        return x
    y = module(x, x, x, need_weights=False) if isinstance(module, torch.nn.MultiheadAttention) else module(x)
    y = y[0] if isinstance(y, tuple) else y
    found[path or "module"] = y.detach().cpu().numpy()
    return y


def _is_plain_sequence(torch: Any, module: Any) -> bool:
    """Whether an nn.Sequential does nothing but call its modules."""
    return type(module) is torch.nn.Sequential and not _is_changed(module)
