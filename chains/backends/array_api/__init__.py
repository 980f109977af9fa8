"""One backend for every array library: programs by the functions of the array API standard."""

from chains.backends.array_api.backend import ArrayBackend

__all__ = ["ArrayBackend"]
