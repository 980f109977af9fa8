"""Every command that a page names is there, takes the arguments it is named with, and does its work in its smallest form."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
pytest.importorskip("threadpoolctl", reason="the commands of the benchmarks set NumPy's threads")

from benchmarks.gpu.rows import rows
from benchmarks.harness import machine
from benchmarks.problems.networks import Conv, Dense, Dropout, Flatten, Pool
from benchmarks.studies import first_call, ports
from chains import tanh
from chains.backends import registry
from tests.data.test_sequences import write_imdb
from tests.house.test_examples import write_cifar10, write_mnist
from tests.tools import fortran_mpi_fault, mpiexec, tool

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TOOLS = {"pip", "venv", "mpi4py", "pytest", "sphinx"}  # modules of others; tests/house/test_site.py runs sphinx

CHEAP = "--quick --rounds 1 --seconds 1e-6 --peers chains --backends numpy"
ONE_EPOCH = "--accuracy --seeds 0 --epochs 1 --peers chains --backends numpy"
PHOTOGRAPHS = {
    "rosetta_cnn.LAYERS": (Conv(3, 2, 3, 1), Pool(relu=True), Dropout(0.25), Flatten(), Dense(512, 10, relu=False)),
    "rosetta_cnn.PARAMETERS": 5186,
}
KERNELS = [row for row in rows() if str(row) == "ladder: kernels"]
REVIEWS = {f"rosetta_rnn.{name}": value for name, value in {"BATCH": 2, "STEPS": 3, "WORDS": 100, "SECONDS": 0.0}.items()}
NO_TORCH = "raise ImportError(\"No module named 'torch'\")"
SMALL = "Chain(Dense(2, 2)), MSELoss(), Adam(1e-3), 10"
# The arguments of each command's smallest form, and constants that are smaller there.
SMALLEST: dict[str, tuple[str, dict[str, object]]] = {
    "benchmarks": (f"{CHEAP} --dtype float64 --json results.json", {"__main__.PROBLEMS": {"latency": 23}}),
    "benchmarks attention": (CHEAP, {}),
    **dict.fromkeys(("benchmarks burgers", "benchmarks helmholtz"), (CHEAP, {
        "time_to_error.ADAM": 2, "time_to_error.EVERY": 2, "time_to_error.ITERATIONS": 2})),
    "benchmarks ensemble": (CHEAP, {"ensemble.MEMBERS": 3, "ensemble.STEPS": 2}),
    "benchmarks ensemble_calls": (CHEAP, {"ensemble_calls.MEMBERS": 3, "ensemble_calls.WIDTHS": ((2, 3, 1),)}),
    "benchmarks events": (CHEAP, {"events.SAMPLES": 2, "events.STEPS": 2}),
    "benchmarks fits": (CHEAP, {"fits.MEMBERS": 2, "fits.STEPS": {1: 2, 2: 2}}),
    "benchmarks latency": (CHEAP, {}),
    "benchmarks lenet5": (CHEAP, {"lenet5.SAMPLES": 8, "lenet5.BATCHES": (4, 8)}),
    "benchmarks lenet5 --accuracy": (ONE_EPOCH, {}),
    "benchmarks matrix_exp": (CHEAP, {"matrix_exp.SAMPLES": (10,)}),
    "benchmarks mnist_mlp": (CHEAP, {"mnist_mlp.SAMPLES": 100}),
    "benchmarks mnist_mlp --accuracy": (ONE_EPOCH, {"mnist_mlp.SAMPLES": 100}),
    "benchmarks recurrent": (CHEAP, {"recurrent.STEPS": 3}),
    "benchmarks rosetta_cnn": (CHEAP, {"rosetta_cnn.BATCH": 2, **PHOTOGRAPHS}),
    "benchmarks rosetta_cnn --accuracy": (ONE_EPOCH, PHOTOGRAPHS),
    "benchmarks rosetta_rnn": (CHEAP, REVIEWS),
    "benchmarks rosetta_rnn --accuracy": (ONE_EPOCH, REVIEWS),
    "benchmarks sde": (CHEAP, {"sde.STEPS": 4, "sde.BATCHES": (1, 2)}),
    "benchmarks sensitivities": (CHEAP, {"sensitivities.TIMES": np.linspace(0.0, 1.0, 3), "sensitivities.COMPILE": "print(1)"}),
    "benchmarks solver": (CHEAP, {"solver.CALLS": 10}),
    "benchmarks steady": (CHEAP, {}),
    "benchmarks dense_output": (CHEAP, {"dense_output.TIMES": (3,)}),
    "benchmarks ude": (CHEAP, {"ude.CHECKPOINTS": (None,), "ude.STEPS": 1}),
    "benchmarks ude --accuracy": (ONE_EPOCH, {"ude.ADAM": 2, "ude.BFGS": 2, "ude.STEPS": 1}),
    "benchmarks wide": (CHEAP, {"wide.LAYERS": (Dense(2048, 8), Dense(8, 10, relu=False)), "wide.BATCH": 4}),
    "benchmarks.studies.compilation": (
        "", {"compilation.NETWORKS": {}, "compilation.WIDTHS": SMALL, "compilation.DEPTHS": (1,), "compilation.BASE": 0,
             "compilation.ROUNDS": 1}),
    "benchmarks.studies.control": ("--contestants chains --widths --layers --seconds 1e-4", {}),
    "benchmarks.studies.derived": ("--only Dense --repetitions 10", {}),
    "benchmarks.studies.elementary": (
        "", {"elementary.TIMES": 1, "elementary.SAMPLES": 1, "elementary.FUNCTIONS": {"tanh": tanh}}),
    "benchmarks.studies.assembly": ("assembly.json --every 400", {}),
    "benchmarks.studies.estimators": ("--seeds 1 --folds 2 --data wine", {}),
    "benchmarks.studies.export": ("", {}),
    "benchmarks.studies.fits": ("--count 2 --rounds 1", {}),
    "benchmarks.studies.hosts": ("--ranks 1 2 --members 2 --steps 5 --rounds 1", {}),
    "benchmarks.studies.first_call": (
        "--rounds 1", {"first_call.BATCHES": (1,), "first_call.MEASURE": first_call.MEASURE.replace("int(0.5", "int(1e-6")}),
    "benchmarks.studies.interpolants": ("", {"interpolants.METHODS": {"tsit5": (1e-2,)}}),
    "benchmarks.studies.way": ("", {}),
    "benchmarks.gpu": ("--plan", {}),
    "benchmarks.gpu.array_api": ("numpy:cpu --only Dense-linear", {}),
    "benchmarks.gpu.kernels": ("kernels.tar.xz --problems ladder", {"kernels.rows": lambda: KERNELS}),
    "benchmarks.studies.natural_units": ("well --seeds 1 --iterations 2", {}),
    "benchmarks.studies.nist": ("Misra1a --perturbed 0 --backend numpy", {}),
    "benchmarks.studies.nlme": ("Orange", {}),  # without R, a sentence
    "benchmarks.studies.optimisers": ("--starts 1 --iterations 2 --methods BFGS", {}),
    "benchmarks.studies.pinnacle": ("Poisson2d-MS Heat2d-MS --iterations 1 --seconds 1e-6", {}),
    "benchmarks.studies.pinnacle_deepxde": ("Poisson2d-C", {}),  # without its solution, a sentence
    "benchmarks.studies.population": ("--subjects 3 --seconds 1e-6", {}),
    "benchmarks.studies.ports": ("", {"ports.KERNELS": {"tanh": ports.KERNELS["tanh"]}}),
    "benchmarks.studies.ports --neon": ("", {"ports.KERNELS": {"tanh": ports.KERNELS["tanh"]}}),
    "benchmarks.studies.queued": ("async_memory --rounds 1 --steps 1", {"queued.TORCH": NO_TORCH}),
    "benchmarks.studies.records": ("wave --seeds 0", {"records.ADAM": 4, "records.EVERY": 4, "records.ITERATIONS": 4}),
    "benchmarks.studies.scaling": ("matrix_exp_200 --ranks 1 2 --rounds 1 --seconds 0.001", {}),
    "benchmarks.studies.ode_fits": (
        "", {"ode_fits.STARTS": 1, "ode_fits.ITERATIONS": {"LM": 2}, "ode_fits.MONTHS": np.linspace(0.0, 0.1, 3),
             "ode_fits.SECONDS": np.linspace(0.0, 1.0, 3)}),
    "benchmarks.studies.whole_fits": (
        "building --starts 1 --peers chains",
        {"whole_fits.MOST": {"LM": 2, "BFGS": 2, "Adam": 2}, "whole_fits.THIN": 12}),
    "benchmarks.studies.slowest": ("Dense-linear", {}),
    "benchmarks.studies.steps": ("", {"steps.STEPS": 10, "steps.ROUNDS": 1, "steps.sgemm_rates": lambda: RATES}),
    "benchmarks.studies.stiff": ("", {"stiff.SECONDS": 0.0, "stiff.LEAST": 1}),
    "benchmarks.studies.threads": ("matrix_exp_200 --rounds 1 --seconds 0.001", {}),
    "benchmarks.studies.updates": ("--sizes 20 --threads 1 --seconds 0.01", {}),
}  # fmt: skip
NEEDS = {"benchmarks.studies.estimators": "sklearn", "benchmarks.gpu.kernels": "nvidia"}  # packages that the tests' extra lacks
TOOLS_NEEDED = {
    "benchmarks.studies.export": ("gcc",),
    "benchmarks.studies.control": ("gcc",),
}
RATES = {"1 thread": 1.0, "all threads": 1.0}
# The tests that run the others.
ELSEWHERE = {
    **{f"examples/{path.name}": "tests/house/test_examples.py" for path in (ROOT / "examples").glob("*.py")},
    "benchmarks.studies.by_hand": "tests/benchmarks/test_by_hand.py",
    "docs/tutorials/equations/burgers.py": "tests/house/test_tutorials.py",
    "examples/export/make.py": "tests/exporting/test_languages.py",
    "examples/export/cortex/make.py": "tests/exporting/test_languages.py",
    "examples/hosts/make.py": "tests/exporting/test_hosts.py",
    **{f"tests.campaign.{path.stem}": "tests/campaign/test_campaigns.py" for path in (ROOT / "tests/campaign").glob("*.py")},
    "rosetta cnn": "tests/house/test_rosetta.py",
    "rosetta rnn": "tests/house/test_rosetta.py",
    "chains": "tests/commands/test_info.py",
    "chains export": "tests/commands/test_export.py",
}


def commands(text: str) -> list[str]:
    """The commands of Python and pip in a page: in blocks of the shell, in indented lines and in backticks."""
    text = text.replace("\\\n", " ")
    blocks = "".join(re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.M | re.S))
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    lines = [*blocks.splitlines(), *re.findall(r"^    (\S.*)$", rest, re.M), *re.findall(r"`+([^`]+)`+", rest)]
    parts = [" ".join(part.split()) for line in lines for part in line.split("  #")[0].split(" && ")]
    return [part for part in parts if re.match(r"([A-Z_]+=\S+ )*(python|pip) ", part)]


def words(command: str) -> list[str]:
    """A command without the variables before it, `python` and `-m`."""
    found = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    return found[1 + (found[1] == "-m") :] if found[0] == "python" else found


NAMED = sorted({command for page in PAGES for command in commands(page.read_text())})
OURS = [command for command in NAMED if words(command)[0] not in {*TOOLS, "-c"}]


def keys(command: str) -> list[str]:
    """What the tables above call a command: one with several problems has several names."""
    module, *arguments = words(command)
    if module not in ("benchmarks", "rosetta", "chains"):
        return [module + " --neon" * ("--neon" in arguments)]
    names = re.match(r"(\w+ )*", " ".join(arguments) + " ")[0].split()
    names = names[:1] if module == "chains" else names
    accuracy = " --accuracy" * ("--accuracy" in arguments)
    return [f"{module} {name}{accuracy}" for name in names] or [module]


def test_each_command_has_a_smallest_form():
    found = {key for command in OURS for key in keys(command)}
    assert found - SMALLEST.keys() - ELSEWHERE.keys() == set()
    assert SMALLEST.keys() - found == set()
    for key in found & ELSEWHERE.keys():
        name = re.findall(r"\w+", key.removesuffix(".py"))[-1]
        assert re.search(rf"\b{name}\b", (ROOT / ELSEWHERE[key]).read_text()), key


class ParsedError(Exception):
    """The arguments are fine; no more is done."""


@pytest.mark.parametrize("command", [command for command in OURS if len(words(command)) > 1])
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_arguments_are_those_of_the_command(command, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise ParsedError

    name, *arguments = words(command)
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [name, *(word for word in arguments if word != "...")])
    monkeypatch.syspath_prepend(ROOT / "examples")
    run = runpy.run_path if name.endswith(".py") else runpy.run_module
    with pytest.raises(SystemExit if "--help" in arguments else ParsedError) as ended:
        run(str(ROOT / name) if name.endswith(".py") else name, run_name="__main__")
    assert getattr(ended.value, "code", 0) == 0


@pytest.mark.parametrize("command", [command for command in NAMED if command not in OURS])
def test_what_other_tools_are_given_is_there(command):
    name, *arguments = words(command)
    extras = [
        extra
        for word in arguments
        for found in re.findall(r"^(?:chains-nn|\.)\[([\w,]+)\]$", word)
        for extra in found.split(",")
    ]
    assert set(extras) <= EXTRAS.keys()
    if name == "-c":
        exec(arguments[0], {})
    if name == "pytest":
        assert all((ROOT / word).exists() for word in arguments if word.endswith(".py"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Patterns in the place of digits and photographs, random reviews, sines for counts."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("mnist", "cifar10", "imdb"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHAINS_DATA", str(folder))
        write_mnist(folder / "mnist", (200, 20))
        write_cifar10(folder / "cifar10", patched)
        write_imdb(folder / "imdb", 64)
        (folder / "sciml").mkdir()
        lines = [f"{1900 + k},{20 + 9 * np.sin(k)},{30 + 9 * np.cos(k)}" for k in range(21)]
        (folder / "sciml" / "hudson-bay-lynx-hare.csv").write_text("\n".join(["# counts", "#", "Year, Lynx, Hare", *lines]))
        yield


@pytest.fixture
def same_threads(number):
    """Commands choose numbers of threads for the whole process. Afterwards they are as before."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.mark.parametrize("key", SMALLEST)
def test_smallest_forms_run(key, data, same_threads, tmp_path, monkeypatch, capfd):
    module, *rest = key.split()
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    for name in TOOLS_NEEDED.get(module, ()):
        tool(name)
    if module == "benchmarks.studies.hosts" and (reason := fortran_mpi_fault()):
        pytest.skip(reason)
    if module == "benchmarks.studies.scaling":
        mpiexec()
    arguments, constants = SMALLEST[key]
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in constants.items():
        folder = "benchmarks" if name.startswith("__main__") else module.rpartition(".")[0] or "benchmarks.problems"
        monkeypatch.setattr(f"{folder}.{name}", value)
    monkeypatch.setattr(machine, "sgemm_rates", lambda: RATES)
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(sys, "argv", [module, *(word for word in rest if word != "--accuracy"), *arguments.split()])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))  # for its processes
    monkeypatch.chdir(tmp_path)
    if module == "benchmarks.studies.export":
        runpy.run_module(module, run_name="__main__")
    else:
        is_package = importlib.util.find_spec(module).submodule_search_locations is not None
        importlib.import_module(f"{module}.__main__" if is_package else module).main()
    out = capfd.readouterr().out
    assert out
    assert "left out" not in out
