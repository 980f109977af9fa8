"""``python -m benchmarks [problem ...] [--quick] [--dtype float64] [--simd avx2] [--json FILE]`` or ``--plot``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.harness import charts, machine, report, simd
from benchmarks.harness.peers import PEERS, Options
from benchmarks.harness.timing import Contest, Criterion, Table, race
from benchmarks.peers import chains_dense as chains_peer

# One module each, with `contests(options)`, or `runs(options)`: texts with criteria. With the seconds that --quick took on two
# processors of an EPYC with AVX-512, all peers installed.
PROBLEMS = {
    "matrix_exp": 37, "mnist_mlp": 26, "latency": 23, "wide": 30, "lenet5": 49, "rosetta_cnn": 36, "pinn": 11,
    "derivatives": 19, "recurrent": 25, "attention": 5, "ude": 33, "sde": 19, "solver": 6, "rosetta_rnn": 60,
    "ensemble": 30, "ensemble_calls": 30, "fits": 40, "burgers": 44, "helmholtz": 45, "steady": 7, "events": 14,
    "dense_output": 60, "sensitivities": 25,
}  # fmt: skip
PICTURES = Path(__file__).parents[1] / "docs" / "_static"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Chains and its peers, side by side.")
    parser.add_argument("problems", nargs="*", metavar="problem", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="three short turns; of torch.compile the whole step alone")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--simd", choices=list(simd.WIDTHS), help="hold everybody to this vector width")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="who takes part; all by default")
    parser.add_argument("--backends", nargs="+", choices=chains_peer.CHOICES, help="of chains; all there are by default")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 11, with --quick 3)")
    parser.add_argument("--seconds", type=float, help="length of a turn (default 0.2, with --quick 0.05)")
    parser.add_argument(
        "--accuracy", action="store_true", help="test accuracy of mnist_mlp, lenet5, rosetta_cnn, rosetta_rnn instead of times"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="with --accuracy: of the runs (five for mnist_mlp, else three)")
    parser.add_argument("--epochs", type=int, help="with --accuracy: of a run (lenet5 10, rosetta_cnn 1, rosetta_rnn 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured, with the machine and the day")
    drawn = {"nargs": "?", "const": PICTURES, "type": Path, "metavar": "FOLDER"}
    parser.add_argument("--plot", **drawn, help="measure nothing, draw what is stored")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.problems if name not in PROBLEMS]
    if unknown:
        parser.error(f"no problem is called {unknown[0]!r}: choose of {', '.join(PROBLEMS)}")
    if arguments.plot:
        print(*charts.draw(arguments.plot), sep="\n")
        return 0
    options = Options(arguments.quick, arguments.dtype, arguments.peers, arguments.backends, arguments.seeds, arguments.epochs)
    problems = arguments.problems or PROBLEMS
    rounds = arguments.rounds or (3 if options.quick else 11)
    seconds = arguments.seconds or (0.05 if options.quick else 0.2)
    plan = _plan_of_accuracy(problems) if arguments.accuracy else _plan(problems, options, rounds, seconds)
    print(plan, end="\n\n", flush=True)
    denied = simd.hold_to(arguments.simd) if arguments.simd else False
    facts = machine.describe()
    if arguments.simd:
        facts["held to"] = " ".join(f"{name}={value}" for name, value in simd.held_to(arguments.simd).items())
        facts["held to"] += "; CPUID denies more" if denied else "; CPUID cannot be trapped: JAX's products may be wider"
    print("\n".join(f"{name:>9}  {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
    if arguments.accuracy:
        return _summary(_accuracy(problems, options))
    tables: list[Table] = []
    criteria: list[Criterion] = []
    for name in problems:
        try:
            module = import_module(f"benchmarks.problems.{name}")
            contests = module.contests(options) if hasattr(module, "contests") else []
        except OSError as error:  # no data
            print(f"{name}: left out: {error}", end="\n\n")
            continue
        for text, found in module.runs(options) if hasattr(module, "runs") else []:
            print(text, end="\n\n", flush=True)
            criteria += [] if options.quick else found
        for contest in contests:
            table = _race(contest, rounds, seconds)
            if options.quick:  # so short turns decide nothing
                table.criteria = []
            tables.append(table)
            print(report.text(table), end="\n\n", flush=True)
    if arguments.json:
        report.save_json(arguments.json, facts, tables)
    return _summary([*criteria, *(criterion for table in tables for criterion in table.criteria)])


def _plan(problems: Sequence[str], options: Options, rounds: int, seconds: float) -> str:
    """What is going to be done."""
    lines = [
        f"Measures {', '.join(problems)} with {', '.join(PEERS[name] for name in options.peers)}, those that are installed.",
        f"Each row of a table gets {rounds} turns of {seconds:g} s or more, after a run that is not timed.",
    ]
    lines += ["Each row of torch.compile is compiled first, for 10 s or more."] * ("torch" in options.peers)
    quick = sum(PROBLEMS[name] for name in problems)
    about = f"{quick} s" if quick < 100 else f"{round(quick / 60)} minutes"
    longer = "" if options.quick else ", without it several times as long"
    return "\n".join([*lines, f"On two processors, with all peers, --quick takes about {about}{longer}."])


def _plan_of_accuracy(problems: Sequence[str]) -> str:
    """What is going to be trained."""
    trained = [name for name in problems if hasattr(import_module(f"benchmarks.problems.{name}"), "accuracies")]
    return (
        f"Trains the networks of {', '.join(trained) or 'none'} once for each seed, and tests them on data they have not seen."
    )


def _race(contest: Contest, rounds: int, seconds: float) -> Table:
    total = len(contest.contestants) * (1 + (contest.rounds or rounds))
    with report.progress_bar(total, "turn") as bar:

        def tick(name: str) -> None:
            bar.set_description(f"{contest.key}: {name}", refresh=True)
            bar.update()

        return race(contest, rounds, seconds, tick)


def _accuracy(problems: Sequence[str], options: Options) -> list[Criterion]:
    criteria: list[Criterion] = []
    for name in problems:
        accuracies = getattr(import_module(f"benchmarks.problems.{name}"), "accuracies", None)
        try:
            for text, found in accuracies(options) if accuracies else []:
                print(text, end="\n\n", flush=True)
                criteria += found
        except OSError as error:  # no data
            print(f"{name}: left out: {error}", end="\n\n")
    return criteria


def _summary(criteria: list[Criterion]) -> int:
    """Print how many criteria hold; the exit status is 1 where one does not."""
    missed = [criterion for criterion in criteria if not criterion.ok]
    print(
        f"{len(criteria) - len(missed)} of {len(criteria)} criteria hold"
        if criteria
        else "Ratios within a run say more than times, since other programs slow all rows down."
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
