"""A network as a function of JAX, computed here, under jit, grad and vmap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.interop.parts import needed
from chains.network.network import check_net
from chains.support import arguments


def as_jax(net: Chain, state: Any = None) -> Callable[[Any, Any], Any]:
    """A function of JAX that computes a network by this package.

    Parameters
    ----------
    net : Chain
        The network; it computes in the mode "eval".
    state : array, shape (n_state,), optional
        Its state, for networks that have one. None: that of ``net.init_state()``.

    Returns
    -------
    callable
        ``f(x, p)`` is the output for `x` (batch, *input_shape) and the parameters `p` (n_params,), of the type of `p`. It works
        under `jit`, `grad` (in reverse, once) and `vmap`; `vmap` over `x` alone makes one batch. JAX's program calls it back on
        the CPU.

    Raises
    ------
    TypeError, ValueError
        For a state that does not fit.
    ImportError
        If JAX is missing.
    """
    jax = needed("jax")
    check_net(net)
    if state is not None:
        arguments.check_state(state, net.n_state, None, False, {})
    calls = _Calls(net, state)

    def called(x: Any, p: Any) -> Any:
        shape = jax.ShapeDtypeStruct((x.shape[0], *net.output_shape), p.dtype)
        return jax.pure_callback(calls.run, shape, x, p, vmap_method="expand_dims")

    @jax.custom_vjp
    def function(x: Any, p: Any) -> Any:
        return called(x, p)

    def forward(x: Any, p: Any) -> Any:
        return called(x, p), (x, p)

    def backward(kept: Any, dy: Any) -> Any:
        x, p = kept
        shapes = jax.ShapeDtypeStruct(p.shape, p.dtype), jax.ShapeDtypeStruct(x.shape, p.dtype)
        dp, dx = jax.pure_callback(calls.pull, shapes, x, p, dy, vmap_method="expand_dims")
        real = jax.numpy.issubdtype(x.dtype, jax.numpy.floating)
        return (dx.astype(x.dtype) if real else np.zeros(x.shape, jax.dtypes.float0)), dp

    function.defvjp(forward, backward)
    return function


class _Calls:
    """Calls of a network on arrays of JAX's callbacks, which may have more axes in front; those of length 1 are broadcast."""

    def __init__(self, net: Chain, state: Any) -> None:
        self._net, self._given = net, state
        self._states: dict[np.dtype[Any], np.ndarray | None] = {}
        self._depth = len(net.input_shape) + 1

    def _state(self, dtype: np.dtype[Any]) -> np.ndarray | None:
        net = self._net
        if dtype not in self._states:
            given = net.init_state() if self._given is None else self._given
            self._states[dtype] = np.asarray(given).astype(dtype) if net.n_state else None
        return self._states[dtype]

    def run(self, x: Any, p: Any) -> np.ndarray:
        """The outputs."""
        net, depth = self._net, self._depth
        x, p = np.asarray(x), np.asarray(p)
        front = np.broadcast_shapes(x.shape[:-depth], p.shape[:-1])
        if math.prod(p.shape[:-1]) == 1:  # one network: one batch
            p, batch = p.reshape(-1), x.shape[-depth:]
            y = net(x.reshape(-1, *batch[1:]), p, state=self._state(p.dtype))
            return np.broadcast_to(
                y.reshape(*x.shape[:-depth], batch[0], *net.output_shape), (*front, batch[0], *net.output_shape)
            )
        xs, ps = _expanded(x, front, depth), _expanded(p, front, 1)
        return np.stack([net(a, b, state=self._state(b.dtype)) for a, b in zip(xs, ps, strict=True)]).reshape(
            *front, x.shape[-depth], *net.output_shape
        )

    def pull(self, x: Any, p: Any, dy: Any) -> tuple[np.ndarray, np.ndarray]:
        """The pullback."""
        net, depth = self._net, self._depth
        x, p, dy = np.asarray(x), np.asarray(p), np.asarray(dy)
        deep = len(net.output_shape) + 1
        front = np.broadcast_shapes(x.shape[:-depth], p.shape[:-1], dy.shape[:-deep])
        each = zip(_expanded(p, front, 1), _expanded(x, front, depth), _expanded(dy, front, deep), strict=True)
        dps, dxs = zip(*(net.vjp(b, a, c, state=self._state(b.dtype)) for b, a, c in each), strict=True)
        return np.stack(dps).reshape(*front, -1), np.stack(dxs).reshape(*front, *x.shape[-depth:])


def _expanded(array: np.ndarray, front: tuple[int, ...], own: int) -> np.ndarray:
    """The array with the axes in front as one."""
    kept = array.shape[-own:]
    return np.ascontiguousarray(np.broadcast_to(array, (*front, *kept)).reshape(-1, *kept))
