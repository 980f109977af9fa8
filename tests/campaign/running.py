"""What the campaigns share: numbered attempts in a process of their own, so that a crash is counted too, and a tally."""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
SAID = 10  # failures that are told at once
PATIENCE = 300.0  # seconds: an attempt that takes longer hangs


@dataclass
class Tally:
    """How often each outcome was seen, what was measured, and what went wrong, by number."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"  {count:9,}  {outcome}" for outcome, count in sorted(self.outcomes.items())]
        rows += [f"  {note}" for note in self.notes]
        rows += [f"  FAILED {number}: {text}" for number, text in sorted(self.failures.items())]
        return "\n".join(rows)


def draws(seed: int, number: int) -> np.random.Generator:
    """The random numbers of an attempt."""
    return np.random.default_rng([seed, number])


def run(module: str, count: int, seed: int, first: int = 0) -> Tally:
    """Attempts `first` to `first + count` of a campaign, in a process that is started again behind an attempt that ends it."""
    tally, number, end = Tally(), first, first + count
    while number < end:
        for number, kind, text in _said(module, number, end, seed):  # noqa: B020 - it goes on from there
            if kind == "outcome":
                tally.outcomes.update(text.split(", "))
            elif kind == "note":
                tally.notes.append(text)
            else:
                tally.failures[number] = text
                if len(tally.failures) <= SAID:
                    print(f"FAILED {number}: {text}", file=sys.stderr, flush=True)  # a campaign may take hours
        number += 1
    return tally


def _said(module: str, first: int, end: int, seed: int) -> Iterator[tuple[int, str, str]]:
    """What a process says of the attempts: number, kind and text; and of the one during which it ended, how it ended."""
    command = [sys.executable, "-m", module, "--child"]
    command += ["--count", str(end - first), "--seed", str(seed), "--first", str(first)]
    done = first - 1
    with tempfile.TemporaryFile("w+") as errors:
        env = {**os.environ, "CHAINS_CACHE": "off"}  # the user's is for the user
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            number, kind, text = line.rstrip("\n").split(" ", 2)
            done = int(number)
            yield done, kind, text
        process.stdout.close()
        if process.wait() or done < end - 1:
            errors.seek(0)
            text = errors.read()[-3000:].strip().replace("\n", " | ")
            yield min(done + 1, end - 1), "failure", f"the process ended with {process.returncode}: {text}"


def _attempts(attempt: Callable[[int, int], str], count: int, seed: int, first: int) -> None:
    """Make attempts, and say of each what came of it, a line each."""
    for number in range(first, first + count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            said = f"outcome {attempt(seed, number)}"
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
            said = f"failure {type(error).__name__} at {place}: {error}"
        print(number, said.replace("\n", " | ")[:4000], flush=True)
    faulthandler.cancel_dump_traceback_later()


def main(
    attempt: Callable[[int, int], str], notes: Callable[[], Iterable[str]] = tuple, missing: Callable[[], str] = str
) -> int:
    """The command line of a campaign. ``attempt(seed, number)`` returns its outcomes, with commas between, or raises.

    ``missing()`` says what else must be installed; empty if nothing.
    """
    script = sys.modules["__main__"]
    module = script.__spec__.name if script.__spec__ is not None else ""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(script.__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many attempts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first attempt")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    need = missing() if sys.platform == "linux" else "it needs Linux, for /proc and signals to threads"
    if need:
        print(f"{module}: {need}", file=sys.stderr)
        return 2
    if chosen.child:
        _attempts(attempt, chosen.count, chosen.seed, chosen.first)
        for note in notes():
            print(chosen.first + chosen.count - 1, "note", note, flush=True)
        return 0
    start = time.monotonic()
    tally = run(module, chosen.count, chosen.seed, chosen.first)
    seconds, failed = time.monotonic() - start, len(tally.failures)
    print(f"{module}: {chosen.count:,} attempts of seed {chosen.seed} in {seconds:.0f} s, {failed} failed\n{tally}")
    return 1 if failed else 0
