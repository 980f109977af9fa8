"""The native CPU backend: a program compiled to machine code by LLVM, run on tiles of samples that stay in cache."""

from chains.backends.native.backend import NativeBackend
from chains.backends.native.following import register_controller

register_controller()
__all__ = ["NativeBackend"]
