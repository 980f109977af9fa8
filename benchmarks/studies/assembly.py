"""The assembly of the tests' programs: ``python -m benchmarks.studies.assembly FILE [--every K]``.

The first run writes FILE: for each program, a digest of the LLVM assembly that the native backend writes, before LLVM optimises
it. A later run, such as after a change of the compiler, compares the programs with the digests of FILE. It names those that
differ and fails if there are any. Nothing is compiled to machine code: equal assembly gives equal machine code.

The programs are those of the cases in `tests/harness.py`: steps of training, pullbacks, derivatives by series and products with
Hessians.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import chains
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import processor
from chains.network import record, record_derivatives
from chains.network.network import network_of
from chains.program.program import Program
from tests.harness import CASES, IMAGE_LAYERS, OWN_LAYERS, SEQUENCES, Case

PARTS = (1, 3)  # threads among which products are partitioned
MAX_DIFFERENCES = 20  # that are named


def programs_of(case: Case) -> Iterator[tuple[str, Program]]:
    """The programs of a case, with their names; those that its layers do not have are left out."""
    network = network_of(case.net())
    recipes: dict[str, Any] = {
        "step": lambda: record.training_step(network, case.criterion(), chains.Adam(), np.float32),
        "vjp": lambda: record.vjp(network, np.float64, False),
        "series": lambda: record_derivatives.derivatives(network, 2, 3, np.float64),
        "hvp": lambda: record_derivatives.hessian_product(network, case.criterion(), np.float64),
    }
    for name, make in recipes.items():
        try:
            yield f"{case.name} {name}", make()
        except (NotImplementedError, ValueError):
            continue


def digests(every: int) -> Iterator[tuple[str, str]]:
    """The name of each program, and the digest of its assembly for one thread and for several."""
    machine = processor(None)
    cases = {case.name: case for case in (*CASES, *IMAGE_LAYERS, *SEQUENCES, *OWN_LAYERS)}
    for case in list(cases.values())[::every]:
        for name, program in programs_of(case):
            try:
                texts = [compile_program(program, machine, parts).text for parts in PARTS]
            except chains.backends.UnsupportedOperationError as error:
                texts = [str(error)]
            yield name, hashlib.sha256("\n".join(texts).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.assembly", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every K-th case")
    given = parser.parse_args()
    found = dict(digests(given.every))
    if not given.file.exists():
        given.file.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} programs: their digests are in {given.file}")
        return
    before = json.loads(given.file.read_text())
    common = before.keys() & found.keys()
    different = sorted(name for name in common if before[name] != found[name])
    print(f"{len(common) - len(different)} of {len(common)} programs have the same assembly")
    for name in different[:MAX_DIFFERENCES]:
        print(f"  {name} differs")
    missing = sorted(before.keys() - found.keys()) if given.every == 1 else []
    raise SystemExit(bool(different or missing))


if __name__ == "__main__":
    main()
