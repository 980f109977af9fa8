"""The report of `python -m chains export`: the files, the functions in them, and the time of a call."""

from __future__ import annotations

from collections.abc import Iterator

from chains.exporting.export import Written
from chains.exporting.header import declaration
from chains.support.messages import counted

KINDS = {
    ".o": "object file", ".a": "static library", ".so": "shared library", ".wasm": "WebAssembly module", ".c": "C99 source",
    ".h": "C header", ".f90": "Fortran module",
}  # fmt: skip
BATCHES = (1, 100)  # samples of the calls that are timed


def report_lines(written: Written) -> Iterator[str]:
    """The lines of the report. A call is timed if an object file for this computer was written."""
    interface = written.interface
    width = max(len(str(path)) for path in written.contents)
    for path, content in written.contents.items():
        yield f"{path!s:<{width}}  {KINDS[path.suffix]}, {len(content):,} bytes"
    counts = [f"{count:,} {name.removeprefix('n_').replace('params', 'parameters')}" for name, count in interface.sizes.items()]
    baked = ", ".join({"p": "parameters", "state": "state"}[name] for name in interface.baked)
    yield f"network    {interface.network}"
    yield f"vectors    {', '.join(counts)}; {interface.dtype}{f'; part of the code: {baked}' if baked else ''}"
    yield f"targets    {written.built_for}"
    for call in interface.calls:
        yield f"function   {declaration(interface, call)}"
    lengths = ", ".join(f"{name} {length:,}" for name, length in interface.bytes_for_one.items())
    yield f"memory     {'`work` for 1 sample' if interface.workspace else 'scratch on the stack'}, bytes: {lengths}"
    if written.forward_seconds is not None:
        for n, seconds in zip(BATCHES, written.forward_seconds(BATCHES), strict=True):
            samples = counted(n, "sample")
            yield f"time       {1e6 * seconds:.3g} us, a forward pass of {samples} on one thread, from machine code"
