"""`python -m rosetta cnn` or `rnn`: each framework's row, in an environment and a process of its own."""

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

from benchmarks.harness.machine import describe
from chains.data import load_cifar10, load_imdb
from rosetta import problem
from rosetta.environments import ROOT, ROWS, interpreter, rows
from rosetta.report import table, write


def save_data(kind: str, path: Path, samples: int | None, tests: int, folder: str | None) -> None:
    """The first photographs of CIFAR-10, from 0 to 1, or the first reviews of IMDB, as the rows read them."""
    if kind == "cnn":
        (x, t), (x_test, t_test) = load_cifar10(folder)
        x, x_test = (images.astype(np.float32) / np.float32(255) for images in (x[:samples], x_test[:tests]))
    else:
        (x, t), (x_test, t_test) = load_imdb(folder, count=problem.WORDS, length=problem.STEPS)
        order = np.random.default_rng(problem.SEED).permutation(len(x))  # they may be sorted by opinion
        x, t, x_test, t_test = x[order], t[order], x_test[order], t_test[order]
    t, t_test = t[:samples].astype(np.int64), t_test[:tests].astype(np.int64)
    np.savez(path, x=x[:samples], t=t, x_test=x_test[:tests], t_test=t_test)


def run(kind: str, name: str, data: Path, epochs: int, python: str | None = None) -> dict[str, Any] | str:
    """A row's numbers; or why there are none, the last words of pip or of the row."""
    row = ROWS[name]
    try:
        python = python or interpreter(row)
    except RuntimeError as error:
        return f"not installed: {error}"
    command = [python, "-m", "rosetta.run", kind, name, str(data), str(epochs)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **row.variables}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"did not run: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rosetta", description="One network in each framework.")
    parser.add_argument("problem", choices=["cnn", "rnn"])
    parser.add_argument("--samples", type=int, default=None, help="photographs or reviews to train on (all)")
    parser.add_argument("--tests", type=int, default=10_000, help="as many to test on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=None, help="which frameworks (all)")
    parser.add_argument("--here", action="store_true", help="run the rows with this Python, without environments of their own")
    parser.add_argument("--data", default=None, help="folder with the files of CIFAR-10 or IMDB")
    parser.add_argument("--write", action="store_true", help="write the rows into the table of docs/rosetta.md")
    options = parser.parse_args(arguments)

    results: dict[str, dict[str, Any] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        save_data(options.problem, data, options.samples, options.tests, options.data)
        for name in tqdm(options.rows or rows(options.problem), unit="row", disable=None):
            results[name] = run(options.problem, name, data, options.epochs, sys.executable if options.here else None)
            print(json.dumps(results[name] if isinstance(results[name], dict) else {"row": name, "reason": results[name]}))
    text = table(options.problem, results)
    machine = describe(sgemm=False)
    text = f"{machine['cpu']}; {machine['system']}; {options.tests:,} samples to test on.\n\n{text}"
    print(f"\n{text}")
    if options.write:
        write(options.problem, text)
    return 0 if any(isinstance(result, dict) for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
