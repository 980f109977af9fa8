"""How the package is built: floors, backends of one signature, names that are public."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import chains
from chains import Chain
from chains.activations import Activation
from chains.backends import Backend, Binding, backend
from chains.backends.numpy.backend import NumpyBackend
from chains.program.operations import Gather, Operation
from chains.program.places import Part
from tests.harness import BACKENDS, package_modules, public_things

PACKAGE = Path(chains.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# From the ground up: a module imports from lower floors only. A folder is one floor.
FLOORS = [
    ["version"],
    ["support"],
    ["data"],
    ["expr", "initializers"],
    ["bounds", "program"],
    ["params", "jets", "lowering"],
    ["activations", "schedules", "optimizers", "backends"],
    ["layers", "penalties", "metrics"],
    ["losses", "minimize"],
    ["residuals"],
    ["network"],
    ["objectives"],
    ["chain"],
    ["training", "models", "exporting"],
    ["solving"],
    ["callbacks", "queueing", "sampling", "testing"],
    ["files", "interop", "sklearn"],
    ["population"],
    ["__main__"],
]
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
FLOOR["train"] = FLOOR["training"]  # the function


STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")  # where a statement has others


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_nodes(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[ast.Import | ast.ImportFrom]]:
    """The imports of a file, anywhere in it, and those within functions."""
    everywhere, inside = [], []
    left: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while left:  # through statements alone: to walk through expressions takes longer than to parse
        node, within = left.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            everywhere.append(node)
            inside += [node] * within
        within |= isinstance(node, ast.FunctionDef)
        left += [(each, within) for name in STATEMENTS for each in getattr(node, name, ())]
    return everywhere, inside


def imports(path: Path) -> set[str]:
    """The top-level names within `chains` that a file imports, anywhere in it."""
    found = set()
    for node in import_nodes(path)[0]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert not node.level, f"a relative import in {path}"
            names = {f"chains.{alias.name}" for alias in node.names} if node.module == "chains" else {node.module or ""}
            found |= names
    return {name.split(".")[1] for name in found if name.startswith("chains.")}


def too_high(path: Path) -> set[str]:
    """What a file imports from its own floor or above."""
    own = module_name(path).split(".")[1]
    return {name for name in imports(path) if name != own and not FLOOR[name] < FLOOR[own]}


def modules_imported(path: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, anywhere in it: for type checking or in a function too."""
    found = set()
    for node in import_nodes(path)[0]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= parts & modules if parts <= modules else {*(parts & modules), node.module}
    return found & modules


def check_no_circle(paths: list[Path]) -> None:
    """Raise CycleError, which names its modules, where modules import each other in a circle."""
    modules = {module_name(path) for path in paths}
    graph = {module_name(path): modules_imported(path, modules) - {module_name(path)} for path in paths}
    graphlib.TopologicalSorter(graph).prepare()


def test_no_modules_import_each_other_in_a_circle():
    check_no_circle(FILES)


def test_no_benchmarks_import_each_other_in_a_circle(monkeypatch):
    folder = PACKAGE.parent / "benchmarks"
    if not folder.exists():
        pytest.skip("the benchmarks are not here")
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", folder)
    check_no_circle(sorted(folder.rglob("*.py")))


def test_a_circle_is_found(tmp_path, monkeypatch):
    package = tmp_path / "chains"
    package.mkdir()
    (package / "first.py").write_text("def f():\n    from chains.second import g\n")
    (package / "second.py").write_text("if TYPE_CHECKING:\n    from chains import first\n")
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    with pytest.raises(graphlib.CycleError, match=r"chains\.first"):
        check_no_circle(sorted(package.glob("*.py")))


def late_imports(path: Path) -> list[str]:
    """What the functions of a file import from the package."""
    return [text for text in map(ast.unparse, import_nodes(path)[1]) if "chains" in text]


# Whose backends need packages that may be missing; and who loads what writes assembly, which is seldom needed.
OPTIONAL = {
    "backends/registry.py",
    "backends/auto.py",
    "backends/native/compiled.py",
    "exporting/export.py",
    "interop/to_casadi.py",
}


def test_functions_import_no_module_of_the_package():
    assert {path for path in FILES if late_imports(path)} == {PACKAGE / name for name in OPTIONAL}


inner_files = [path for path in FILES if path.parent != PACKAGE or path.name != "__init__.py"]
house_files = [path for path in inner_files if path.relative_to(PACKAGE).parts[0] != "data"]


def test_modules_import_from_lower_floors_only():
    assert {path: names for path in house_files if (names := too_high(path))} == {}


def test_an_import_from_above_is_found(tmp_path, monkeypatch):
    wrong = tmp_path / "chains" / "program" / "view.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("def f():\n    from chains.layers import Dense\n    from chains import train\n    import chains.expr\n")
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", wrong.parent.parent)
    assert too_high(wrong) == {"layers", "train"}


def private_imports(path: Path) -> list[str]:
    """The names beginning with an underscore that a file imports from the package."""
    nodes = [node for node in import_nodes(path)[0] if isinstance(node, ast.ImportFrom)]
    own = [node for node in nodes if (node.module or "").startswith("chains")]
    return [alias.name for node in own for alias in node.names if alias.name.startswith("_") and not alias.name.endswith("_")]


def test_modules_import_no_private_names():
    assert {str(path): found for path in FILES if (found := private_imports(path))} == {}


def test_a_private_import_is_found(tmp_path):
    (tmp_path / "one.py").write_text("from chains.jets import _rule, rule\nfrom sklearn import _own\n")
    assert private_imports(tmp_path / "one.py") == ["_rule"]


def test_data_stands_beside_the_house():
    assert {path for path in inner_files if path not in house_files and not imports(path) <= {"data", "support"}} == set()


# The native backend's own floors: assembler, kernels, plan. What lies flat in its folder stands above.
NATIVE_FLOORS = ["llvm", "kernels", "plan"]
native_files = [path for path in inner_files if path.parent.parent.name == "native" and path.parent.name in NATIVE_FLOORS]
MODULES = {module_name(path) for path in FILES}


def above(path: Path) -> set[str]:
    """The folders of the native backend above its own that a file imports from."""
    modules = modules_imported(path, MODULES)
    folders = {parts[3] for module in modules if len(parts := module.split(".")) > 4 and parts[2] == "native"}
    return folders - set(NATIVE_FLOORS[: NATIVE_FLOORS.index(path.parent.name) + 1])


def test_kernels_know_no_plan_and_the_assembler_no_kernel():
    assert len(native_files) > 30
    assert {path: folders for path in native_files if (folders := above(path))} == {}


def test_a_kernel_that_knows_the_plan_is_found(tmp_path):
    wrong = tmp_path / "kernels" / "images.py"
    wrong.parent.mkdir()
    wrong.write_text(
        "from chains.backends.native.llvm.emit import Value\nfrom chains.backends.native.plan.layout import IMAGES\n"
    )
    assert above(wrong) == {"plan"}


def test_backends_know_no_layer_and_layers_no_backend():
    for path in inner_files:
        known = imports(path)
        folder = path.relative_to(PACKAGE).parts[0]
        assert not (folder == "backends" and known & {"layers", "losses", "optimizers", "activations", "chain", "record"})
        assert not (folder == "layers" and "backends" in known)


# Backends


def subclasses(base: type) -> list[type]:
    package_modules()  # so that all of them are loaded
    return [c for c in base.__subclasses__() if c.__module__.startswith("chains.")]


@pytest.mark.parametrize("base", [Backend, Binding])
def test_backends_keep_the_signatures(base):
    for found in subclasses(base):
        assert_same_signatures(base, found)


def assert_same_signatures(base: type, other: type) -> None:
    for name, method in vars(base).items():
        if inspect.isfunction(method):
            wanted, actual = (inspect.signature(m, eval_str=True).parameters for m in (method, getattr(other, name)))
            assert list(wanted.values()) == list(actual.values()), f"{other.__name__}.{name}"


def test_there_are_backends_to_check():
    assert {backend(name).name for name in BACKENDS} == set(BACKENDS)
    assert len(subclasses(Backend)) >= len(BACKENDS)


def test_another_signature_is_found():
    class Odd(Backend):
        def bind(self, program, arrays, batch=1, scratch=None): ...

    with pytest.raises(AssertionError, match=r"Odd\.bind"):
        assert_same_signatures(Backend, Odd)


def operations(module: str) -> set[type]:
    """The classes of operations that programs, or a backend's own plans, are made of, which a module or those in it define."""
    package_modules()
    found, left = set(), [Operation]
    while left:
        left += (below := left.pop().__subclasses__())
        found |= {c for c in below if f"{c.__module__}.".startswith(f"{module}.") and not c.__name__.startswith("_")}
    return found


def missing(base: type[Backend]) -> set[str]:
    """The classes of operations that a backend has no code for: those of programs, and its own. A `Part` is in no program."""
    own = operations(base.__module__.rpartition(".")[0]) if base.__module__.count(".") > 2 else set()
    return {c.__name__ for c in operations("chains.program") | own if c not in {*base.lowered, Part}}


def test_backends_lower_every_operation():
    """`Relayout` and `Solve` are the native backend's own."""
    lacking = {base.__name__: lacks for base in subclasses(Backend) if (lacks := missing(base) - {"Relayout", "Solve"})}
    assert lacking == {}


def test_records_of_the_native_backend_are_whole():
    """Each has a kernel, and names functions that there are; only the backend's own operations have no limit."""
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    table = importlib.import_module("chains.backends.native.operations")
    assert all(record.rows or record.lanes for record in table.RECORDS.values())
    assert {c.__name__ for c, record in table.RECORDS.items() if record.limit is None} == {"Relayout", "Solve"}
    for record in table.RECORDS.values():
        assert all(callable(each.loaded) for each in record.functions)


def test_an_operation_that_a_backend_lacks_is_found(monkeypatch):
    monkeypatch.setattr(NumpyBackend, "lowered", NumpyBackend.lowered - {Gather})
    assert missing(NumpyBackend) == {"Gather"}
    assert {c.__name__ for c in operations("chains.backends")} >= {"Relayout", "PoolRun"}


# Names


def described(thing: object) -> bool:
    text = thing.__doc__ or ""
    return "\n" in text or text.rstrip().endswith((".", ":", ","))


def test_public_things_have_a_docstring():
    things = {name: thing for name, thing in (vars(chains) | public_things()).items() if not name.startswith("_")}
    made = {
        name for name, thing in things.items() if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing)
    }
    assert len(made) > 100
    assert {name for name in made if not described(things[name])} == set()


def test_a_star_brings_what_networks_are_made_of():
    """Names that are likely to stand for something else beside it are left alone."""
    found = dict.fromkeys(("Parallel", "Series", "minimize", "train", "loss", "data", "testing", "accuracy"))
    exec("from chains import *", found)
    assert {name for name, value in found.items() if value is None} == {
        "Parallel", "Series", "minimize", "train", "loss", "data", "testing", "accuracy",
    }  # fmt: skip
    made_of = [chains.Layer, chains.Loss, chains.Optimizer, chains.Penalty, Activation, Chain]
    for name, value in public_things().items():
        kind = value if inspect.isclass(value) else type(value)
        if issubclass(kind, tuple(made_of)) and kind not in (*made_of[:4], chains.Parallel, chains.Series):
            assert found.get(name) is value, f"chains.{name} belongs in `__all__` of chains/__init__.py: add it there"
    assert all(name in found for name in chains.__all__)


def test_sigma_is_sigmoid():
    assert chains.σ is chains.sigmoid
    assert chains.__version__.count(".") == 2


HEAVY = ("scipy.optimize", "matplotlib", "torch", "pooch", "tqdm", "llvmlite", "cupy", "cudnn", "sklearn", "pytest")
LATE = ("numpy.ma", "importlib.metadata", "tarfile", "html", "chains.training", "chains.exporting", "chains.sampling")
LIGHT_IMPORT = f"import sys, chains; print([name for name in {HEAVY + LATE} if name in sys.modules])"


def test_late_names_are_those_of_type_checkers():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"]
    told = {}
    for node in block.body:
        told |= {a.name: f"chains.{a.name}" if node.module == "chains" else node.module for a in node.names}
    assert told == {name: source for name, source in chains._LATE.items() if name in told or name not in chains._ROOMS}
    assert told.keys() <= set(dir(chains))
    assert not [name for name in dir(chains) if name.startswith("_") and not name.endswith("__")]


def test_late_names_are_found_once(monkeypatch):
    for name, source in chains._LATE.items():
        monkeypatch.delitem(vars(chains), name, raising=False)
        found = getattr(chains, name)
        assert found is vars(chains)[name] is getattr(importlib.import_module(source), name, found)
    with pytest.raises(AttributeError, match="module 'chains' has no attribute 'trian'"):
        _ = chains.trian


def test_import_is_light():
    done = subprocess.run([sys.executable, "-W", "error", "-c", LIGHT_IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
