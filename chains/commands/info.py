"""Print versions, backends, vector widths, threads and the cache, as a bug report needs them."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

from chains.backends import backend
from chains.version import __version__

PACKAGES = ("numpy", "scipy", "llvmlite", "cupy-cuda12x", "cupy-cuda13x", "scikit-learn", "torch", "jax", "onnx")
BACKENDS = ("numpy", "native", "cupy")


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(given: argparse.Namespace) -> None:
    """Print what this installation has, a line each."""
    for name, value in facts().items():
        print(f"{name:<9} {value}")


def facts() -> dict[str, str]:
    """What this installation has."""
    found = {
        "chains": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES if version(name)),
    }
    for name in BACKENDS:
        found |= about(name)
    return found


def version(package: str) -> str | None:
    """The version of an installed distribution, None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def about(name: str) -> dict[str, str]:
    """What a backend says about itself, or why there is none."""
    try:
        return backend(name).about()
    except ValueError as error:
        return {name: f"not available: {error}"}
