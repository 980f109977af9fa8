"""The backend "cupy": programs as CUDA kernels and cuBLAS products, replayed as one graph."""

from chains.backends.cupy.backend import CupyBackend, DeviceBackend

__all__ = ["CupyBackend", "DeviceBackend"]
