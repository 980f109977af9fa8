"""``python -m chains``: what this installation has; ``python -m chains COMMAND --help`` describes each command."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chains.backends import backend
from chains.exporting.export import SUFFIXES, check_output, interface_for, write
from chains.exporting.report import report_lines
from chains.files import load
from chains.interop import from_onnx, from_torch
from chains.interop.from_torch import NoStructureError
from chains.interop.parts import needed
from chains.version import __version__

PACKAGES = ("numpy", "scipy", "llvmlite", "cupy-cuda12x", "cupy-cuda13x", "scikit-learn", "torch", "jax", "onnx")
BACKENDS = ("numpy", "native", "cupy")
INFO = "Print versions, backends, vector widths, threads and the cache, as a bug report needs them."
EXPORT = "Write a trained network as machine code or C source, for programs in other languages, and report what was written."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; `info` where none is named. Returns the exit status, 1 with a sentence where a command fails."""
    parser = argparse.ArgumentParser(prog="python -m chains", description=f"{INFO} With a command, that.")
    parser.set_defaults(run=print_info)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.add_parser("info", help=INFO, description=INFO)
    command = commands.add_parser("export", help=EXPORT, description=EXPORT)
    command.add_argument("model", help="a file of chains.save (.safetensors), ONNX (.onnx) or PyTorch (.pt, .pth)")
    command.add_argument("output", help=f"the file to write, with one of the endings {', '.join(SUFFIXES)}")
    command.add_argument("--structure", metavar="FILE.py:NAME", help="for a state dict of PyTorch: a module, or what makes it")
    command.add_argument("--input-shape", metavar="N,...", help="of a sample, where the first layer of PyTorch does not fix it")
    command.add_argument("--target", default="native", help="such as x86-64-v3,aarch64 (default: this computer)")
    command.add_argument("--name", default="model", help="what the names of all functions begin with (default: model)")
    command.add_argument("--gradient", default="both", choices=("parameters", "inputs", "both", "none"))
    command.add_argument(
        "--derivatives", default="", help="with respect to the inputs: some of jvp,jacobian,hessian (default: none)"
    )
    command.add_argument("--dtype", choices=("float32", "float64"), help="of all arrays (default: that of the file)")
    command.add_argument("--free", action="store_true", help="leave the parameters an argument, rather than a part of the code")
    command.add_argument("--no-header", action="store_true", help="write no C header")
    command.add_argument("--no-fortran", action="store_true", help="write no Fortran module")
    command.set_defaults(run=export_file)
    given = parser.parse_args(arguments)
    try:
        given.run(given)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        options = "|".join(name for name in vars(given) if name not in ("run", "model", "output"))
        message = re.sub(f"`({options})`", lambda found: f"`--{found[1].replace('_', '-')}`", str(error))  # Python's arguments
        parser.exit(1, f"{parser.prog}: {message}\n")
    return 0


def export_file(given: argparse.Namespace) -> None:
    """Write the files, and print the report."""
    output = check_output("output", given.output)
    net, p, state = read_model(given.model, given.structure, given.input_shape)
    baked = (None, None) if given.free else (p, state)
    interface = interface_for(
        net, *baked, name=given.name, dtype=given.dtype or p.dtype,
        gradient=None if given.gradient == "none" else given.gradient,
        derivatives=[each.strip() for each in given.derivatives.split(",") if each.strip()],
    )  # fmt: skip
    written = write(interface, output, given.target, not given.no_header, not given.no_fortran)
    for line in report_lines(written):
        print(line)


def read_model(path: str, structure: str | None, input_shape: str | None) -> tuple[Any, Any, Any]:
    """The network, the parameters and the state in a file, whose ending says what wrote it."""
    kind = Path(path).suffix
    if kind not in (".pt", ".pth") and (structure or input_shape):
        raise ValueError(f"`--structure` and `--input-shape` are for files of PyTorch, not for {path!r}")
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path!r}")
    if kind == ".onnx":
        return from_onnx(path)
    if kind in (".pt", ".pth"):
        shape = None if input_shape is None else tuple(int(each) for each in input_shape.split(","))
        try:
            return from_torch(path if structure is None else _with_weights(structure, path), shape)
        except NoStructureError:
            what = f"{path!r} is a file of weights without a structure"
            raise ValueError(f"{what}: name the module, or what makes it, by `--structure FILE.py:NAME`") from None
    return load(path)


def _with_weights(structure: str, path: str) -> Any:
    """The module of PyTorch that a Python file names, with the weights of a state dict."""
    torch = needed("torch")
    file, _, name = structure.rpartition(":")
    if not file or not name.isidentifier():
        raise ValueError(f"`--structure` (={structure!r}) must be a file and a name in it, such as model.py:network")
    names = runpy.run_path(file)
    if name not in names:
        raise ValueError(f"`--structure` (={structure!r}): {file!r} has no {name!r}")
    module = names[name] if isinstance(names[name], torch.nn.Module) else names[name]()
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return module


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
