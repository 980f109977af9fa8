"""A network with its parameters as a function of one sample, for solvers of other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.backends.base import Single
from chains.network import executables
from chains.network.call import Call, state_of
from chains.network.failed_solutions import check_solved
from chains.network.network import network_of
from chains.support import arguments
from chains.support.arrays import as_array
from chains.support.memory import is_elsewhere
from chains.support.messages import shown


def bound(net: Any, p: Any, state: Any) -> Bound:
    """A network as a function of one sample; see `Chain.bound`."""
    network = network_of(net)
    p = arguments.check_params(p, network.n_params)
    if is_elsewhere(p):
        raise TypeError("`p` is on a GPU, where calls for single samples take longer than the samples: pass cupy.asnumpy(p)")
    call = Call(network, {"p": p, "state": state})
    known = state_of(call, executables.forward_pass(network, p, False).program, {})
    copies = {name: np.array(array, p.dtype) for name, array in known.items()}
    return Bound(net, np.array(p), copies.get("state"))


class Bound:
    """``f(x)`` is the network's output for one sample, without a batch axis. Made by `Chain.bound`.

    Solvers call such functions hundreds of thousands of times: ``solve_ivp(lambda t, y: f(y), ...)``. Calls from several
    threads are safe, except calls of the C functions.
    """

    def __init__(self, net: Any, p: np.ndarray, state: np.ndarray | None) -> None:
        self.net, self.p, self.state = net, p, state
        self._network = network_of(net)
        self._single = self._made(executables.forward_pass(self._network, p, False), ("x",), ("y",))
        self._quick = None if self._single is None else self._single.function
        self._quick_vjp: Callable[..., Any] | None = None
        self._has_vjp = False
        self._may_fail = self._network.may_fail

    def __call__(self, x: Any, out: np.ndarray | None = None) -> np.ndarray:
        """The output, shape (*output_shape,), at `x` of shape (*input_shape,).

        Parameters
        ----------
        x : array, shape (*input_shape,)
            One sample.
        out : array, shape (*output_shape,), optional
            Filled and returned; by default a fresh array.

        Raises
        ------
        TypeError, ValueError
            For arrays that do not fit.
        FloatingPointError
            If step control of an `ODE` does not reach the last time.
        """
        quick = self._quick
        if quick is not None and (found := quick(x, out)) is not None:
            if self._may_fail:
                check_solved(self._call(np.asarray(x)[None]), found)
            return found
        x = self._one("x", x, self.net.input_shape)
        if out is None:
            return self.net(x[None], self.p, state=self.state)[0]
        if not isinstance(out, np.ndarray):
            raise TypeError(f"`out` (={shown(out)}) must be an array to be filled")
        self.net(x[None], self.p, state=self.state, out=self._one("out", out, self.net.output_shape)[None])
        return out

    def vjp(self, x: Any, dy: Any) -> tuple[np.ndarray, np.ndarray]:
        """Pull a cotangent of the output back to the parameters and to the sample.

        Parameters
        ----------
        x : array, shape (*input_shape,)
            One sample.
        dy : array, shape (*output_shape,)
            The cotangent.

        Returns
        -------
        array, shape (n_params,), and array, shape (*input_shape,)
            The gradients of ``sum(dy * f(x))``.

        Raises
        ------
        TypeError, ValueError
            For arrays that do not fit.
        """
        if not self._has_vjp:
            single = self._made(executables.backward_pass(self._network, self.p), ("x", "dy"), ("g", "dx"))
            self._quick_vjp, self._has_vjp = None if single is None else single.function, True
        quick = self._quick_vjp
        if quick is not None and (found := quick(x, dy, None, None)) is not None:
            return found
        x, dy = self._one("x", x, self.net.input_shape), self._one("dy", dy, self.net.output_shape)
        g, dx = self.net.vjp(self.p, x[None], dy[None], state=self.state)
        return g, dx[0]

    def c_function(self, kind: str = "derivative") -> tuple[int, int]:
        """The network as a C function in float64, for solvers that take addresses, such as Numba's and SUNDIALS'.

        ``void derivative(double t, const double *y, double *dy, void *data)``: with one more input than outputs, the time is
        the network's last feature; otherwise it is ignored.
        ``double integrand(int n, double *x, void *data)`` is for networks with one output. Only one thread at a time may
        call them.

        Parameters
        ----------
        kind : str
            "derivative" or "integrand".

        Returns
        -------
        int, int
            The addresses of the function and of its `data`. Both are valid as long as this object exists.

        Raises
        ------
        ValueError
            For another `kind`, parameters that are not float64, shapes that do not fit, and without machine code.
        """
        (inputs,), (outputs,) = (shape if len(shape) == 1 else (-1,) for shape in (self.net.input_shape, self.net.output_shape))
        fits = {"derivative": 0 < outputs <= inputs <= outputs + 1, "integrand": outputs == 1 and inputs > 0}
        if kind not in fits:
            raise ValueError(f'`kind` (={shown(kind)}) must be "derivative" or "integrand"')
        if not fits[kind]:
            shapes = f"from {self.net.input_shape} to {self.net.output_shape}"
            wanted = "as many outputs as inputs, or one less" if kind == "derivative" else "one output"
            raise ValueError(f'`kind` (="{kind}") wants a network of {wanted}, but this one is {shapes}')
        if self.p.dtype != np.float64:
            raise ValueError(f"`p` is {self.p.dtype}, but functions of C take float64: net.bound(p.astype(np.float64))")
        if self._single is None:
            raise ValueError(f"the backend {self.net.backend!r} has no machine code for this network")
        return self._single.address(kind), self._single.data

    def low_level_callable(self) -> Any:
        """The network of one output as a `scipy.LowLevelCallable`, which `scipy.integrate.quad` and `nquad` take.

        It is valid as long as this object exists. Raises ValueError as `c_function` does.
        """
        import ctypes

        from scipy import LowLevelCallable

        address, data = self.c_function("integrand")
        kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int, ctypes.POINTER(ctypes.c_double), ctypes.c_void_p)
        return LowLevelCallable(kind(address), ctypes.c_void_p(data))

    def _made(self, run: Executable, ins: tuple[str, ...], outs: tuple[str, ...]) -> Single | None:
        """The program bound for single samples, if its backend can do that."""
        known = {"p": self.p} | ({} if self.state is None else {"state": self.state})
        if not run.takes(ins, outs, known):
            return None
        buffers = run.program.buffers
        arrays = {name: array for name, array in known.items() if name in buffers} | run.settings
        if any(buffers[name].dtype.kind != "f" for name in (*ins, *outs)):
            return None
        return run.backend.single(run.program, arrays, ins, outs)

    def _call(self, x: np.ndarray) -> Call:
        """A call on a batch of one."""
        call = Call(self._network, {"p": self.p})
        call.data["x"] = x
        return call

    def _one(self, name: str, array: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = as_array(name, array)
        if array.shape != shape:
            advice = "; SciPy's solve_ivp takes lambda t, y: f(y)" if array.ndim == 0 else ""
            raise ValueError(
                f"`{name}` has shape {array.shape}, but one sample has {shape}, without an axis of the batch{advice}"
            )
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return Bound, (self.net, self.p, self.state)

    def __repr__(self) -> str:
        return f"<one sample {self.net.input_shape} to {self.net.output_shape}, of {self.net!r}>"
