"""Small changes of the sources, one at a time: how many of them the tests find, the quick ones and the rest.

``python -m tests.campaign.reach REACH -n 2``, and again with ``--rest``, find out which tests reach which lines.
``python -m tests.campaign.mutants results.jsonl REACH --count 300`` then changes a line of a copy of the package, and runs the
quick tests that reach it, some of its room first, and the rest's if those pass. Tests that take long are left out after
`MOST` seconds. Each result is a line of the file, and a second call with the same file continues. Every number is drawn from
the seed and itself, so that parts of a campaign can run on several machines: ``--first 100 --count 50``, or ``--rooms layers``.
The rooms have mutants in proportion to their lines. Give it a copy of the sources that does not change while it runs.

`tests/campaign/README.md` has what was found.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.campaign.reach import Reach
from tests.campaign.running import ROOT, draws

MOST = 5.0  # seconds of processor time, as measured before, of the tests that are run on a mutant
PATIENCE = 1200.0  # seconds for one run of the tests; a mutant that waits for ever is found
FEW = 20  # tests that reach a line; if they are fewer, it may be in a function whose result is kept for the tests after them
FIRST = 3, 15  # files of tests of the mutant's room that are tried first, and tests of each
# Imported once, before the processes of the tests are forked. None of them imports this package.
SHARED = ("numpy", "scipy.optimize", "scipy.stats", "sklearn", "matplotlib.pyplot", "llvmlite.binding", "torch", "jax")
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
    """A change of one file, and the tests that found it: "quick", "rest", or "none"; and the name of the first one."""

    number: int
    room: str
    file: str
    line: int
    before: str
    after: str
    found_by: str = "none"
    test: str = ""


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


def lines_of(source: str, line: int) -> tuple[set[int], set[str]]:
    """The lines of the statement at a line, of its head if it holds others; and the names it binds, if an import runs it."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]  # from the outermost to the innermost
    found = around[-1]
    inner = getattr(found, "body", None)
    end = inner[0].lineno - 1 if inner else found.end_lineno or line
    names = set[str]()
    if not any(isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line for node in around):
        if isinstance(found, ast.FunctionDef | ast.ClassDef):
            names = {found.name}
        else:
            names = {node.id for node in ast.walk(found) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return set(range(found.lineno, max(end, found.lineno) + 1)), names


def reaching(mutant: Mutant, source: str, reach: Reach) -> list[str]:
    """The tests that may find a mutant: those that run its lines, or lines with a name that it gives another value.

    Where its lines run while tests are collected, such as those of layers that all tests share, or few tests run them, such as
    those of machine code that all share, the tests of its room may too.
    """
    file = mutant.file.removeprefix(f"chains{os.sep}")
    numbers, names = lines_of(source, mutant.line)
    lines = [(file, line) for line in numbers]
    found = reach.tests(lines + (list(reach.users(names)) if names else []))
    if len(found) < FEW or not reach.collected.isdisjoint(lines):
        found += [test for test in reach.inside(f"{folder}/" for folder in folders_of(mutant.room)) if test not in {*found}]
    return found


def first_of(tests: Sequence[str], room: str) -> list[str]:
    """Some short tests in few files, of the mutant's room if it has any: most mutants are found by them."""
    folders = tuple(f"{folder}/" for folder in folders_of(room))
    near = [test for test in tests if test.startswith(folders)] or tests
    files = [file for file, _ in Counter(_file(test) for test in near).most_common(FIRST[0])]
    return [test for file in files for test in [each for each in near if _file(each) == file][: FIRST[1]]]


def in_turn(tests: Sequence[str]) -> list[str]:
    """The first test of each file, then the second of each, and so on: those that say most of a line may be in any file."""
    before, places = Counter[str](), {}
    for test in tests:
        places[test] = before[_file(test)]
        before[_file(test)] += 1
    return sorted(tests, key=places.__getitem__)


def _file(test: str) -> str:
    return test.partition("::")[0]


class Chosen:
    """A plugin that runs these tests alone, in this order, and writes the name of the first that fails."""

    def __init__(self, tests: Sequence[str], said: Path) -> None:
        self._places, self._said = {test: place for place, test in enumerate(tests)}, said

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid])

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        if not self._said.exists():
            self._said.write_text(node.nodeid)


def failing(place: Path, tests: Sequence[str], seconds: float, *, rest: bool) -> str:
    """The first of some tests that fails in a copy of the project, in a process of its own; empty if none does.

    A process that takes more than ten times the processor time that the tests took before has failed.
    """
    said = place.parent / "failed"
    said.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _run(place, tests, Chosen(tests, said), int(10 * seconds) + 30, rest)
        os._exit(3)
    end, status = time.monotonic() + PATIENCE, None
    while status is None and time.monotonic() < end:
        time.sleep(0.02)
        done, ended = os.waitpid(child, os.WNOHANG)
        status = ended if done else None
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if said.exists():
        return said.read_text()
    return "" if status is not None and os.waitstatus_to_exitcode(status) in (0, 5) else "the process"  # 5: no such tests


def _run(place: Path, tests: Sequence[str], chosen: Chosen, seconds: int, rest: bool) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    null = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(null, handle)
    os.chdir(place)
    os.environ |= {"CHAINS_CACHE": str(place.parent / "cache"), "PYTHONPATH": str(place)}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "chains", "benchmarks")]:
        del sys.modules[name]  # they are those of the original
    sys.path[:] = [str(place), *(path for path in sys.path if path not in ("", str(ROOT)))]
    files = list(dict.fromkeys(_file(test) for test in tests))
    options = ["--rest"] if rest else []
    os._exit(int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *options, *files], plugins=[chosen])))


def within(tests: Sequence[str], reach: Reach, most: float = MOST) -> tuple[list[str], float]:
    """The first tests that take `most` seconds together, and their seconds."""
    found, spent = [], 0.0
    for test in tests:
        if spent + reach.seconds[test] <= most:
            found.append(test)
            spent += reach.seconds[test]
    return found, spent


@dataclass
class Judge:
    """Runs tests on mutants, in `place`, a copy of the project; `sound` are tests that have passed there without a change."""

    place: Path
    reach: Reach
    stages: Sequence[str]
    sound: set[str] = field(default_factory=set)

    def judged(self, mutant: Mutant, text: str) -> Mutant:
        """Run tests on a mutant, from the nearest to all that reach it, until one fails that passes without the change."""
        path = self.place / mutant.file
        original = path.read_text()
        tests = reaching(mutant, original, self.reach)
        for stage in self.stages:
            known = [test for test in tests if (test in self.reach.quick) == (stage == "quick")]
            first = first_of(known, mutant.room)
            for some in (first, in_turn([test for test in known if test not in first])):
                chosen, seconds = within(some, self.reach)
                path.write_text(text)
                try:
                    test = failing(self.place, chosen, seconds, rest=stage == "rest") if chosen else ""
                finally:
                    path.write_text(original)
                before = chosen[: chosen.index(test) + 1] if test in chosen else chosen
                if test and (test in self.sound or not failing(self.place, before, seconds, rest=stage == "rest")):
                    self.sound.update(before if test in chosen else ())
                    mutant.found_by, mutant.test = stage, test
                    return mutant
        return mutant


def table(mutants: list[Mutant]) -> str:
    """The counts of each room, and the mutants that no quick test found."""
    counts = Counter((each.room, each.found_by) for each in mutants)
    stages = ("quick", "rest", "none")
    rows = [f"{'':24}" + "".join(f"{stage:>8}" for stage in stages)]
    for room in sorted({each.room for each in mutants}):
        rows.append(f"{room:24}" + "".join(f"{counts[room, stage]:8}" for stage in stages))
    rows.append(f"{'in all':24}" + "".join(f"{sum(each.found_by == stage for each in mutants):8}" for stage in stages))
    left = [each for each in mutants if each.found_by != "quick"]
    rows += [f"{each.found_by:5} {each.number}: {each.file}:{each.line}: {each.before} -> {each.after}" for each in left]
    return "\n".join(rows)


def stored(path: Path) -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a file of results, which is continued")
    parser.add_argument("reach", type=Path, nargs="?", help="the folder of tests.campaign.reach; without it, print the results")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", nargs="+", choices=("quick", "rest"), default=["quick", "rest"])
    parser.add_argument("--rooms", nargs="+", help="run the mutants of these rooms only")
    given = parser.parse_args()
    if given.reach is not None:
        _campaign(given, range(given.first, given.first + given.count))
    print(table(stored(given.results)))
    return 0


def _campaign(given: argparse.Namespace, numbers: Sequence[int]) -> None:
    known, reach = {each.number for each in stored(given.results)}, Reach(given.reach)
    for name in SHARED:
        with suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "project"
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".git", ".*_cache", "__pycache__"))
        judge = Judge(place, reach, given.stages)
        for number in [number for number in numbers if number not in known]:
            mutant, text = drawn(given.seed, number)
            if given.rooms and mutant.room not in given.rooms:
                continue
            mutant = judge.judged(mutant, text)
            with given.results.open("a") as file:
                file.write(json.dumps(asdict(mutant)) + "\n")
            print(
                f"{number}: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}: {mutant.found_by} {mutant.test}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
