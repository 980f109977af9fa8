"""``python -m benchmarks [problem ...] [--quick] [--dtype float64] [--json FILE] [--plot FILE]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import product

from tqdm.auto import tqdm

from benchmarks import chains_peer, machine, report
from benchmarks.peers import PEERS, Options
from benchmarks.timing import Contest, Criterion, Table, race

PROBLEMS = ("matrix_exp", "mnist_mlp", "latency")  # one module each, with `contests(options)`


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Chains and its peers, side by side.")
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="about a minute: no torch.compile, a tenth of an epoch")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="who takes part; all by default")
    parser.add_argument("--backends", nargs="+", choices=chains_peer.BACKENDS, help="of chains; all there are by default")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 11, with --quick 3)")
    parser.add_argument("--seconds", type=float, help="length of a turn (default 0.2, with --quick 0.05)")
    parser.add_argument("--accuracy", action="store_true", help="mnist_mlp: test accuracy of chains over five seeds instead")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--plot", metavar="FILE", help="draw a bar chart (needs matplotlib)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.problems if name not in PROBLEMS]
    if unknown:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(PROBLEMS)}")
    facts = machine.describe()
    print("\n".join(f"{name:>9}  {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
    if arguments.accuracy:
        return _summary(_accuracy(arguments.backends))
    options = Options(arguments.quick, arguments.dtype, arguments.peers, arguments.backends)
    rounds = arguments.rounds or (3 if options.quick else 11)
    seconds = arguments.seconds or (0.05 if options.quick else 0.2)
    tables = []
    for name in arguments.problems or PROBLEMS:
        try:
            contests = import_module(f"benchmarks.{name}").contests(options)
        except OSError as error:  # no data
            print(f"{name}: left out: {error}", end="\n\n")
            continue
        for contest in contests:
            table = _race(contest, rounds, seconds)
            tables.append(table)
            print(report.text(table), end="\n\n", flush=True)
    if arguments.json:
        report.save_json(arguments.json, facts, tables)
    if arguments.plot:
        report.save_plot(arguments.plot, facts, tables)
    return _summary([criterion for table in tables for criterion in table.criteria])


def _race(contest: Contest, rounds: int, seconds: float) -> Table:
    total = len(contest.contestants) * (1 + (contest.rounds or rounds))
    with tqdm(total=total, file=sys.stderr, unit="turn", leave=False, dynamic_ncols=True) as bar:

        def tick(name: str) -> None:
            bar.set_description(f"{contest.key}: {name}", refresh=True)
            bar.update()

        return race(contest, rounds, seconds, tick)


def _accuracy(backends: Sequence[str] | None) -> list[Criterion]:
    from benchmarks import mnist_mlp

    criteria: list[Criterion] = []
    for backend in chains_peer.backends(backends):
        for dtype, start in product(("float32", "float64"), ("N(0,1)", "default")):
            with tqdm(total=50, file=sys.stderr, unit="epoch", leave=False, dynamic_ncols=True) as bar:

                def tick(text: str, bar: tqdm = bar) -> None:
                    bar.set_description(text, refresh=False)
                    bar.update()

                text, found = mnist_mlp.accuracies(dtype, backend, start, tick)
            criteria += found
            print(text, end="\n\n", flush=True)
    return criteria


def _summary(criteria: list[Criterion]) -> int:
    """Print how many criteria hold; the exit status is 1 where one does not."""
    missed = [criterion for criterion in criteria if not criterion.ok]
    print(f"{len(criteria) - len(missed)} of {len(criteria)} criteria hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
