"""The reference backend: a program as a list of NumPy calls that write into given arrays."""

from chains.backends.numpy.backend import NumpyBackend
