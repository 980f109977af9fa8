"""Functions that Numba compiles call an exported network: python with_numba.py, where model.so and parameters.txt are."""

import ctypes

import numpy as np
from numba import njit

library = ctypes.CDLL("./model.so")
forward, vjp = library.model_forward, library.model_vjp
forward.restype = vjp.restype = None
forward.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 3]
vjp.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]


@njit
def gradients(x, p):
    """The outputs, and the gradients of half the sum of their squares."""
    y, g, dx = np.empty_like(x), np.empty_like(p), np.empty_like(x)
    forward(len(x), x.ctypes.data, p.ctypes.data, y.ctypes.data)
    vjp(len(x), x.ctypes.data, p.ctypes.data, y.ctypes.data, g.ctypes.data, dx.ctypes.data)
    return y, g, dx


p = np.loadtxt("parameters.txt", dtype=np.float32)
x = np.linspace(-1.0, 1.0, 12).astype(np.float32).reshape(3, 4)
print(*(f"{array.sum():.4f}" for array in gradients(x, p)))
