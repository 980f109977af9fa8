"""docs/api.md and docs/api/: every public name is there, every signature is that of the code, every example runs."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import chains
from chains import backends, callbacks, data, expr, initializers, layers, losses, models, program, schedules, testing
from chains.activations import ACTIVATIONS, Activation
from chains.initializers import INITIALIZERS
from chains.minimize.minimize import minimize
from chains.network.network import network_of

FOLDER = Path(__file__).parents[2] / "docs"
FILES = [FOLDER / "api.md", *sorted((FOLDER / "api").glob("*.md"))]
PAGE = "\n".join(path.read_text() for path in FILES)
PACKAGE = Path(chains.__file__).parent
# A row of a table may begin with the signature of something, or with an attribute: `net.init(seed=0)`, `net.n_params`.
ROWS = re.findall(r"^\| `([\w.]+)(\(.*?\))?`", PAGE, re.MULTILINE)
SIGNATURES = {name: written for name, written in ROWS if written}
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def owners() -> dict[str, Any]:
    """What the names in front of a dot stand for on the page."""
    net = chains.Chain(chains.Dense(2, 1), backend="numpy")
    p, x, loss = net.init(), np.zeros((3, 2)), chains.SquaredLoss()
    history, program = chains.History(), net.program()
    draws = chains.sample(net, p, x, x[:, :1], loss, chains.HMC(step_size=0.1), draws=2, warmup=0)
    with chains.Queue() as queue:
        result = queue.call(np.zeros, 3)
    return {
        "net": net,
        "bound": net.bound(p),
        "layout": net.layout,
        "history": history,
        "draws": draws,
        "laplace": chains.Laplace(net, p, x, x[:, :1] + 1.0),
        "state": chains.callbacks.TrainingState(net, p, 1, history),
        "objective": net.objective(x, x[:, :1], loss),
        "free": net.objective(x, x[:, :1], loss).free,
        "checkpoint": chains.Checkpoint("folder"),
        "q": queue,
        "result": result,
        "update": chains.Updater(chains.SGD(0.1), p),
        "program": program,
        "batches": data.Batches(x, batch_size=2),
        "layer": net[0],
        "criterion": loss,
        "shooting": chains.MultipleShooting(chains.ODE(chains.Dense(1, 1), (0.0, 1.0)), [[0.0], [1.0]], 1, backend="numpy"),
        "problem": chains.ResidualProblem(("x", "y"), ("u",), [chains.Term(lambda u: u.x, x)]),
        "optimizer": chains.Adam(),
        "penalty": chains.L2Penalty(0.1),
        "f": chains.tanh,
        "d": network_of(net).declaration,
        "ops": chains.program.Recorder("", np.float32),
        "view": program.operations[0].outs[0],
    }


OWNERS = owners()
MODULES = {"data": data, "expr": expr, "models": models, "schedules": schedules, "testing": testing}
ROOMS = {  # imported from there
    "callbacks": callbacks, "initializers": initializers, "layers": layers, "losses": losses, "program": program,
}  # fmt: skip
MET = {"Draws", "EnsembleHistory", "Objective", "Trajectory"}  # classes of results, not imported
LATER = ("interop", "population", "sklearn")  # modules that users import themselves
# Public by their names, but for the package itself; of a network also what it has as a layer, which stands at `layer`.
INSIDE = {
    "testing": "Checked Kink filled",
    "bound": "net p state",
    "shooting": "given ode observed times",
    "objective": "compiled_fits second_order state",
    "result": "accesses ended error followers fresh held name owner place readers value waits work",
    "net": "advice short_repr declare fixed_input forward pullback may_fail has_series has_tangents",
    "layout": "count index what",
    "program": "settings tuned",
    "checkpoint": "amount unit",
    "batches": "arrays augment batch_size drop_last scale seed shuffle",
    "layer": "activation bias bias_init has_series inputs outputs weight_bounds weight_init",  # of Dense
    "criterion": "average derivative factors function name",  # of SquaredLoss
    "optimizer": "beta1 beta2 clip_norm eps learning_rate record settings",  # of Adam
    "penalty": "patterns settings strength",  # of L2Penalty
    "f": "derivative formula function needs_input slope_formula",
    "d": "carried_shapes check_series timed has_other_steps output_times has_time_axis keeps_time output_steps max_steps "
    "kept_axes check_tangents has_tangents without_lengths "
    "may_fail advice all most_demanding saved_shapes shared_shapes slices smallest_batch state_slices temporary_shapes",
    "ops": "again aside carried depth external finish held in_loop keeps_parts linearises lengths map_formula name "
    "operations output_lengths pop_operations symbolic",
    "view": "advancing at buffer is_whole loop_stride loop_strides name offset over runs strides text within",
}
# Classes that users meet, but do not make, have no signature on the page.
NOT_MADE = {
    testing.Conformance,
    chains.FallbackWarning,
    chains.NumpyOnlyWarning,
    chains.layers.Cell,
    chains.layers.Declaration,
    chains.sampling.draws.Draws,
    chains.training.ensemble_history.EnsembleHistory,
    chains.History,
    chains.objectives.objective.Objective,
    chains.Optimizer,
    chains.program.Program,
    chains.network.ode_steps.Trajectory,
    chains.program.View,
}


def found(name: str) -> Any:
    """What a name on the page stands for."""
    head, *rest = name.split(".")
    if head in LATER:
        pytest.importorskip(f"chains.{head}", exc_type=ImportError)
    owned = head in OWNERS and name not in BEHIND_ROOMS
    thing = OWNERS[head] if owned else minimize if head == "minimize" else getattr(chains, head)
    for part in rest:
        thing = getattr(thing, part)
    return thing


class Text(str):
    """A text that is printed without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(thing: Any) -> str:
    """A signature without types, as the page writes it."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(thing).parameters.values()]
    for k, parameter in enumerate(parameters):
        if isinstance(parameter.default, Activation):
            parameters[k] = parameter.replace(default=Text(parameter.default.name))
        elif isinstance(parameter.default, type) and issubclass(parameter.default, np.generic):
            parameters[k] = parameter.replace(default=Text(f"np.{parameter.default.__name__}"))
    return str(inspect.Signature(parameters))


def public(module: ModuleType) -> set[str]:
    """The names that a module offers: those it lists, else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    things = {name: thing for name, thing in vars(module).items() if inspect.isfunction(thing) or inspect.isclass(thing)}
    return {name for name, thing in things.items() if thing.__module__ == module.__name__ and not name.startswith("_")}


def members(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def mentioned(name: str) -> bool:
    return re.search(rf"`{re.escape(name)}\b", PAGE) is not None


# What `chains/__init__.py` imports, in a star import or not.
IMPORTED = {
    alias.asname or alias.name
    for node in ast.walk(ast.parse(Path(chains.__file__).read_text()))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname != "_late"
}
NAMES = IMPORTED - set(MODULES)
BEHIND_ROOMS = {f"{head}.{name}" for head, module in ROOMS.items() for name in set(module.__all__) - NAMES}
BEHIND_DOTS = (
    BEHIND_ROOMS
    | {f"{head}.{name}" for head, module in MODULES.items() for name in public(module)}
    | {f"{head}.{name}" for head, owner in OWNERS.items() for name in members(owner)}
)
ARGUMENTS = set(inspect.signature(chains.train).parameters)
VARIABLES = {name for path in PACKAGE.rglob("*.py") for name in re.findall(r'"(CHAINS_[A-Z_]+)"', path.read_text())}
HIDDEN = {f"{head}.{name}" for head, names in INSIDE.items() for name in names.split()}


def test_every_public_name_is_there():
    names = NAMES | (BEHIND_DOTS - HIDDEN)
    missing = {name for name in names if not mentioned(name)}
    assert not missing, f"docs/api/ has no row for {', '.join(sorted(missing))}"
    things = {name: found(name) for name in names}
    made = {
        name for name, thing in things.items() if inspect.isroutine(thing) or (inspect.isclass(thing) and thing not in NOT_MADE)
    }
    assert {name: SIGNATURES.get(name) for name in made} == {name: signature(things[name]) for name in made}


def test_nothing_is_left_out_that_is_gone():
    assert HIDDEN <= BEHIND_DOTS
    assert set(MODULES) == {name for name in IMPORTED if inspect.ismodule(getattr(chains, name))}
    assert set(chains.__all__) <= NAMES


def test_there_are_rows_and_examples():
    assert len(ROWS) > 200
    assert len(EXAMPLE.findall(PAGE)) > 15


def of_later(name: str) -> bool:
    return name.partition(".")[0] in LATER


def test_rows_are_true():
    here = {name: written for name, written in SIGNATURES.items() if not of_later(name)}
    assert here == {name: signature(found(name)) for name in here}
    others = {name for name, written in ROWS if not written and not of_later(name)}
    for name in others:
        if "." in name:
            found(name)
    assert {name for name in others if "." not in name} <= NAMES | MET | ARGUMENTS | VARIABLES


@pytest.mark.parametrize("name", sorted(filter(of_later, SIGNATURES)))
def test_rows_of_other_packages_are_true(name):
    assert SIGNATURES[name] == signature(found(name))


def test_arguments_of_train():
    rows = PAGE[PAGE.index("| argument of `train` |") : PAGE.index("| `History` |")].splitlines()
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")}
    elsewhere = {"net", "p", "loss", "optimizer", "penalty", "state", "callbacks"}
    assert ARGUMENTS - explained <= elsewhere


def test_another_signature_is_told_apart():
    assert signature(chains.Dense) != signature(chains.Conv)
    assert signature(found("net.init")) == "(seed=0, dtype=np.float32, *, device='cpu')"
    assert "activation=identity" in signature(chains.Dense)


def test_names_in_quotes():
    own = {name for name in backends.registry._BACKENDS if "kernel" not in name}  # the benchmark adds some of its own
    real = {name for name in own if name.startswith(("auto", "native", "numpy", "cupy"))}
    for name in [*ACTIVATIONS, *INITIALIZERS, *real]:
        assert f'"{name}"' in PAGE
    backend_rows = PAGE[PAGE.index("| `backend=` |") :].split("\n#")[0]
    assert set(re.findall(r'`"([\w-]+)"`', backend_rows)) == real


def test_environment_variables():
    assert {name for name, _ in ROWS if name.startswith("CHAINS_")} == VARIABLES


@pytest.mark.parametrize("page", FILES[1:], ids=lambda path: path.stem)
def test_examples_give_what_they_show(page):
    """A page is one session after the lines of docs/api.md. Its text becomes empty lines: failures tell the right line."""
    runner, session = doctest.DocTestRunner(), {}
    for path in (FILES[0], page):
        content, text, end = path.read_text(), "", 0
        for block in EXAMPLE.finditer(content):
            assert block[1].startswith(">>> ")
            text += "\n" * content.count("\n", end, block.start(1)) + block[1]
            end = block.end(1)
        example = doctest.DocTestParser().get_doctest(text, session, path.name, str(path), 0)
        runner.run(example, clear_globs=False)
        session = example.globs
    assert runner.tries > 8
    assert runner.failures == 0
