"""`python -m rosetta cnn --samples 2000 --epochs 1`: each framework's row, in an environment and a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from benchmarks.machine import describe
from chains.data import load_cifar10
from rosetta.environments import ROOT, ROWS, interpreter
from rosetta.report import table, write


def save_data(path: Path, samples: int | None, tests: int, folder: str | None) -> None:
    """The first photographs of CIFAR-10, from 0 to 1, as the rows read them."""
    (x, t), (x_test, t_test) = load_cifar10(folder)
    x, x_test = (images.astype(np.float32) / np.float32(255) for images in (x[:samples], x_test[:tests]))
    np.savez(path, x=x, t=t[:samples].astype(np.int64), x_test=x_test, t_test=t_test[:tests].astype(np.int64))


def run(name: str, data: Path, epochs: int, python: str | None = None) -> dict[str, Any] | str:
    """A row's numbers; or why there are none, the last words of pip or of the row."""
    row = ROWS[name]
    try:
        python = python or interpreter(row)
    except RuntimeError as error:
        return f"not installed: {error}"
    command = [python, "-m", "rosetta.run", name, str(data), str(epochs)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **row.variables}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"did not run: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rosetta", description="One network in each framework.")
    parser.add_argument("problem", choices=["cnn"])
    parser.add_argument("--samples", type=int, default=None, help="photographs to train on (all)")
    parser.add_argument("--tests", type=int, default=10_000, help="photographs to test on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="which frameworks (all)")
    parser.add_argument("--here", action="store_true", help="run the rows with this Python, without environments of their own")
    parser.add_argument("--data", default=None, help="folder with the six files of CIFAR-10")
    parser.add_argument("--write", action="store_true", help="write the rows into the table of docs/rosetta.md")
    options = parser.parse_args(arguments)

    results: dict[str, dict[str, Any] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "cifar10.npz"
        save_data(data, options.samples, options.tests, options.data)
        for name in tqdm(options.rows, unit="row", disable=None):
            results[name] = run(name, data, options.epochs, sys.executable if options.here else None)
            print(json.dumps(results[name] if isinstance(results[name], dict) else {"row": name, "reason": results[name]}))
    text = table(results)
    machine = describe(sgemm=False)
    text = f"{machine['cpu']}; {machine['system']}; {options.tests:,} photographs to test on.\n\n{text}"
    print(f"\n{text}")
    if options.write:
        write(text)
    return 0 if any(isinstance(result, dict) for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
