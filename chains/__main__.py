"""``python -m chains``: what this installation has; ``python -m chains COMMAND --help`` describes each command."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Sequence

from chains.backends import backend
from chains.exporting.export import export
from chains.files import load
from chains.version import __version__

PACKAGES = ("numpy", "scipy", "llvmlite", "cupy-cuda12x", "cupy-cuda13x", "scikit-learn", "torch", "jax", "onnx")
BACKENDS = ("numpy", "native", "cupy")
INFO = "Print versions, backends, vector widths, threads and the cache, as a bug report needs them."
EXPORT = "Write a network of a file of safetensors as machine code or C source, for programs in other languages."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; `info` where none is named. Returns the exit status, 1 with a sentence where a command fails."""
    parser = argparse.ArgumentParser(prog="python -m chains", description=f"{INFO} With a command, that.")
    parser.set_defaults(run=print_info)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("info", help=INFO, description=INFO)
    command = commands.add_parser("export", help=EXPORT, description=EXPORT)
    command.add_argument("file", help="what chains.save has written, such as model.safetensors")
    command.add_argument("-o", "--output", required=True, help="the file to write: .o, .a, .so, .wasm or .c")
    command.add_argument("--target", default="native", help="such as x86-64-v3,aarch64 (default: this computer)")
    command.add_argument("--name", default="model", help="what the names of all functions begin with (default: model)")
    command.add_argument("--gradient", default="both", choices=("parameters", "inputs", "both", "none"))
    command.add_argument("--derivatives", default="", help="by the inputs: some of jvp,jacobian,hessian (default: none)")
    command.add_argument("--dtype", choices=("float32", "float64"), help="of all arrays (default: that of the file)")
    command.add_argument("--free", action="store_true", help="leave the parameters an argument, rather than a part of the code")
    command.add_argument("--no-header", action="store_true", help="write no C header")
    command.add_argument("--no-fortran", action="store_true", help="write no Fortran module")
    command.set_defaults(run=export_file)
    given = parser.parse_args(arguments)
    try:
        given.run(given)
    except (OSError, TypeError, ValueError, NotImplementedError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    return 0


def export_file(given: argparse.Namespace) -> None:
    """Write the files, and print their paths."""
    net, p, state = load(given.file)
    arrays = (None, None) if given.free else (p, state)
    written = export(
        net, given.output, arrays[0], state=arrays[1], name=given.name, dtype=given.dtype or p.dtype, target=given.target,
        gradient=None if given.gradient == "none" else given.gradient,
        derivatives=[each.strip() for each in given.derivatives.split(",") if each.strip()],
        header=not given.no_header, fortran=not given.no_fortran,
    )  # fmt: skip
    for path in written:
        print(path)


def print_info(given: argparse.Namespace) -> None:
    """Print what this installation has, a line each."""
    packages = [f"{name} {installed}" for name in PACKAGES if (installed := version(name))]
    found = {
        "chains": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
        "packages": ", ".join(packages),
    }
    for name in BACKENDS:
        try:
            found |= backend(name).about()
        except ValueError as error:
            found[name] = f"not available: {error}"
    for name, value in found.items():
        print(f"{name:<9} {value}")


def version(package: str) -> str | None:
    """The version of an installed distribution, None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
