"""Small changes of the sources, one at a time: how many of them the tests find, the quick ones and all.

``python -m tests.campaign.mutants results.jsonl --count 300`` changes a line of a copy of the package, runs the quick tests of
the changed room, then all quick tests if those pass, and with ``--stages room quick all`` every case after that. Each result
is a line of the file, and a second call with the same file continues. Every number is drawn from the seed and itself, so that
parts of a campaign can run on several machines: ``--first 100 --count 50``, or ``--rooms layers network``. The rooms have
mutants in proportion to their lines.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.campaign.running import ROOT, draws

PATIENCE = 1800  # seconds for one run of the tests; a mutant that loops for ever is found
# The tests of each room, where they are not in the folder of tests with the room's name.
TESTS = {
    "__init__.py": ["house"], "__main__.py": ["commands"], "activations.py": ["layers"], "backends/": ["backends", "network"],
    "backends/numpy": ["program", "layers"], "chain.py": ["network", "layers"], "initializers.py": ["layers"],
    "lowering": ["exporting", "cupy"], "losses.py": ["layers", "network"], "metrics.py": ["training", "layers"],
    "params.py": ["network"], "penalties.py": ["layers", "network"], "residuals": ["jets", "residuals", "solving"],
    "schedules.py": ["optimizers"], "support": ["support", "bad_input"], "version.py": ["commands"],
    "data": ["data", "bad_input"], "models": ["models", "layers"], "objectives": ["network", "minimize"],
}  # fmt: skip
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass
class Mutant:
    """A change of one file, and the first tests that found it: "room", "quick", "all"; or "none"."""

    number: int
    room: str
    file: str
    line: int
    before: str
    after: str
    found_by: str = "none"


def room_of(path: Path) -> str:
    """The room of a source: its folder or file in the package; a folder of a backend is a room."""
    parts = path.relative_to(ROOT / "chains").parts
    if parts[0] == "backends":
        return "/".join(parts[:2]) if len(parts) > 2 else "backends/"
    return parts[0]


def folders_of(room: str) -> list[str]:
    """The folders of tests that belong to a room."""
    return [f"tests/{name}" for name in TESTS.get(room, [room.rpartition("/")[2]])]


def changes(source: str) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Expressions and statements of a source, and what a mutant has instead. Texts and annotations stay."""
    tree = ast.parse(source)
    skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        for name in ("annotation", "returns", "decorator_list"):
            found = getattr(node, name, None) or []
            skipped |= {id(part) for each in (found if isinstance(found, list) else [found]) for part in ast.walk(each)}
        if id(node) not in skipped:
            yield from _changed(node)


def _changed(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node, ast.Compare(node.left, [SWAPPED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        yield node, ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(SWAPPED[type(node.op)](), node.values)
        yield node, ast.BoolOp(node.op, node.values[1:]) if len(node.values) > 2 else node.values[1]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, node.operand
    elif isinstance(node, ast.IfExp):
        yield node, node.orelse
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield node, ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.If):
        yield node.test, ast.Constant(False)
        yield node.test, ast.Constant(True)
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield node, ast.Pass()


def mutated(source: str, node: ast.AST, new: ast.AST) -> str:
    """The source with the text of a node replaced."""
    lines = source.splitlines(keepends=True)
    starts = [sum(len(line.encode()) for line in lines[:k]) for k in range(len(lines) + 1)]
    first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    text = ast.unparse(new) if isinstance(new, ast.Pass) else f"({ast.unparse(new)})"
    data = source.encode()
    return (data[:first] + text.encode() + data[last:]).decode()


def drawn(seed: int, number: int) -> tuple[Mutant, str]:
    """A mutant and the text of its file. Files are drawn in proportion to their lines, then one of the changes of the file."""
    rng = draws(seed, number)
    files = sorted((ROOT / "chains").rglob("*.py"))
    lines = [len(path.read_text().splitlines()) for path in files]
    while True:
        path = files[int(rng.choice(len(files), p=[n / sum(lines) for n in lines]))]
        source = path.read_text()
        found = list(changes(source))
        if not found:
            continue
        node, new = found[int(rng.integers(len(found)))]
        text = mutated(source, node, new)
        mutant = Mutant(
            number, room_of(path), str(path.relative_to(ROOT)), node.lineno, ast.unparse(node)[:200], ast.unparse(new)[:200]
        )
        return mutant, text


def passes(place: Path, arguments: list[str]) -> bool:
    """Whether these tests pass in a copy of the project. A run that does not end in time has not passed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", *arguments]
    env = {**os.environ, "CHAINS_CACHE": str(place.parent / "cache"), "PYTHONPATH": str(place)}
    try:
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)  # 5: there are no such tests


def judged(mutant: Mutant, text: str, place: Path, stages: list[str], workers: str) -> Mutant:
    """Run the tests on a mutant, from the nearest to all of them, until one fails."""
    runs = {
        "room": ["-n", "0", *(folder for folder in folders_of(mutant.room) if (place / folder).exists())],
        "quick": ["-n", workers],
        "all": ["-n", workers, "--all-cases"],
    }
    path = place / mutant.file
    original = path.read_text()
    try:
        path.write_text(text)
        mutant.found_by = next((stage for stage in stages if not passes(place, runs[stage])), "none")
    finally:
        path.write_text(original)
    return mutant


def table(mutants: list[Mutant]) -> str:
    """The counts of each room, and the mutants that no quick test found."""
    counts = Counter((each.room, each.found_by) for each in mutants)
    stages = ("room", "quick", "all", "none")
    rows = [f"{'':24}" + "".join(f"{stage:>8}" for stage in stages)]
    for room in sorted({each.room for each in mutants}):
        rows.append(f"{room:24}" + "".join(f"{counts[room, stage]:8}" for stage in stages))
    rows.append(f"{'in all':24}" + "".join(f"{sum(each.found_by == stage for each in mutants):8}" for stage in stages))
    left = [each for each in mutants if each.found_by in ("all", "none")]
    rows += [f"{each.found_by:5} {each.number}: {each.file}:{each.line}: {each.before} -> {each.after}" for each in left]
    return "\n".join(rows)


def stored(path: Path) -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a file of results, which is continued")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", nargs="+", choices=("room", "quick", "all"), default=["room", "quick"])
    parser.add_argument("--rooms", nargs="+", help="run the mutants of these rooms only")
    parser.add_argument("--workers", default="auto", help="of pytest-xdist")
    parser.add_argument("--table", action="store_true", help="print the results so far, and run nothing")
    given = parser.parse_args()
    known = {each.number for each in stored(given.results)}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "project"
        if not given.table:
            shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for number in range(given.first, given.first + given.count):
            if number in known or given.table:
                continue
            mutant, text = drawn(given.seed, number)
            if given.rooms and mutant.room not in given.rooms:
                continue
            mutant = judged(mutant, text, place, given.stages, given.workers)
            with given.results.open("a") as file:
                file.write(json.dumps(asdict(mutant)) + "\n")
            print(f"{number}: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}: {mutant.found_by}", flush=True)
    print(table(stored(given.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
