"""Write a network of a file of safetensors as machine code or C source, for programs in other languages."""

from __future__ import annotations

import argparse

from chains.exporting.export import export
from chains.files import load


def arguments(parser: argparse.ArgumentParser) -> None:
    """The file, where to, and what of `chains.export`'s arguments a file cannot say."""
    parser.add_argument("file", help="what chains.save has written, such as model.safetensors")
    parser.add_argument("-o", "--output", required=True, help="the file to write: .o, .a, .so, .wasm or .c")
    parser.add_argument("--target", default="native", help="such as x86-64-v3,aarch64 (default: this computer)")
    parser.add_argument("--name", default="model", help="what the names of all functions begin with (default: model)")
    parser.add_argument("--gradient", default="both", choices=("parameters", "inputs", "both", "none"))
    parser.add_argument("--dtype", choices=("float32", "float64"), help="of all arrays (default: that of the file)")
    parser.add_argument("--free", action="store_true", help="leave the parameters an argument, rather than a part of the code")
    parser.add_argument("--no-header", action="store_true", help="write no C header")
    parser.add_argument("--no-fortran", action="store_true", help="write no Fortran module")


def run(given: argparse.Namespace) -> None:
    """Write the files, and print their paths."""
    net, p, state = load(given.file)
    written = export(
        net,
        given.output,
        None if given.free else p,
        state=None if given.free else state,
        name=given.name,
        dtype=given.dtype or p.dtype,
        gradient=None if given.gradient == "none" else given.gradient,
        target=given.target,
        header=not given.no_header,
        fortran=not given.no_fortran,
    )
    for path in written:
        print(path)
