"""The native CPU backend: a program compiled to machine code by LLVM, run on tiles of samples that stay in cache."""

from chains.backends.native.backend import NativeBackend

__all__ = ["NativeBackend"]
