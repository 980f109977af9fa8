"""The benchmark of the GPU, without one: all of it at tiny sizes, rows that hang or fail, and what is made of the figures."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from benchmarks import gpu, gpu_chains, gpu_goals, gpu_problems
from benchmarks.gpu_problems import PROBLEMS, NoGpuError, Setting, activation_of, problem
from tests.cupy.support import needs_compiler

TINY = Setting(None, True)


@needs_compiler
def test_a_rehearsal(monkeypatch, capsys, tmp_path):
    """Every kind of row gives a figure; convolutions, and more of a kind, are left to `--rehearse` by hand."""
    rare = ("lenet5", "rosetta_cnn", "bf16", "tf32", "width 64", "wider", "mnist_mlp: chains one-kernel")
    rare += tuple(f"cases {k} of" for k in range(2, 13))
    chosen = [row for row in gpu.rows() if row.peer == "chains" and not any(text in str(row) for text in rare)]
    monkeypatch.setattr(gpu, "rows", lambda: chosen)
    monkeypatch.delenv("CHAINS_DATA", raising=False)
    file = tmp_path / "gpu.json"
    assert gpu.main(["--rehearse", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "emulated by the processor: no figure means anything" in text
    assert "correct: 7 of 7 parts" in text
    content = json.loads(file.read_text())
    assert [(r["problem"], r["who"]) for r in content["results"]] == [(row.problem, row.who) for row in chosen]
    assert [r for r in content["results"] if "failed" in r] == []
    figures = [r[name] for r in content["results"] for name in ("seconds", "value", "loss") if name in r]
    assert np.isfinite(figures).all()
    verdicts = {goal["goal"].split(",")[0]: goal["verdict"] for goal in content["goals"]}
    assert verdicts["device allocations in steady steps"] == "holds"
    assert verdicts["lenet5: accuracy"] == "not measured"
    assert all(goal["goal"] in text for goal in content["goals"])


def test_problems_that_do_not_exist(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--problems", "lenet"])
    assert "no problem is called 'lenet': choose of correct, matrix_exp" in capsys.readouterr().err


def test_sizes_of_the_problems(monkeypatch):
    """As benchmarks elsewhere define them."""

    def images(setting, name, load, shape, sample):
        zeros = np.zeros((shape[0], *sample), np.float32), np.zeros(shape[0], np.int64)
        return zeros, zeros, ""

    def noise(samples, shape, classes):
        return np.zeros((samples, *shape), np.float32), np.zeros(samples, np.int64)

    monkeypatch.setattr(gpu_problems, "_images", images)
    monkeypatch.setattr(gpu_problems, "_noise", noise)
    monkeypatch.setattr(gpu_problems, "_made", {})
    counts = {"matrix_exp": 756, "mnist_mlp": 23_860, "lenet5": 44_426, "rosetta_cnn": 3_441_592}
    for key, wanted in counts.items():
        found = problem(key, Setting())
        assert found.net("numpy").n_params == wanted
        assert (len(found.x), found.batch) in {(10_000, 10_000), (50_000, 10), (60_000, 2048), (50_000, 64)}
    assert found.steps == found.full_steps == 7_810
    assert problem("lenet5", Setting()).steps == 300
    large = {"wide": (1024, [2048, 4096, 4096, 10], "relu")}
    large |= {key: (8192, [8192] * 3, name) for key, name in (("wider", "tanh"), ("wider_relu", "relu"))}
    for key, wanted in large.items():
        found = problem(key, Setting())
        layers = found.layers
        lengths = [layers[0].inputs, *(layer.outputs for layer in layers)]
        assert (found.batch, lengths, activation_of(layers[0])) == wanted
        assert len(found.x) == found.batch
    assert {*counts, *large} == set(PROBLEMS)


# Rows that fail, hang, or end their process


def works(setting):
    return {"seconds": 0.0, "value": float(os.getpid())}


def fails(setting):
    raise ValueError("of no use")


def spoils(setting):
    raise RuntimeError("cudaErrorIllegalAddress")


def hangs(setting):
    time.sleep(60)


def ends(setting):
    os._exit(3)


def lacks(setting):
    raise NoGpuError("installed for processors alone")


def imports(setting):
    import no_such_module  # noqa: F401


def test_rows_that_hang_or_end_their_process_leave_the_others(capsys):
    rows = [gpu.Row("overlap", f.__name__, "chains", 30.0, f) for f in (works, fails, works, ends, works)]
    rows.insert(3, gpu.Row("overlap", "hangs", "chains", 0.1, hangs))
    report = gpu.Report({}, None)
    gpu.run(rows, TINY, report, 1.0)
    failed = [result.get("failed") for result in report.results]
    took, ended = "took longer than 0.1 s, and was ended", "the process ended with the code 3"
    assert failed == [None, "ValueError: of no use", None, took, ended, None]
    first, second, last = (result["value"] for result in report.results if "value" in result)
    assert first == second != last  # one process, until it ends
    assert capsys.readouterr().out.count("\n") == len(rows)


def test_a_row_that_spoils_its_process_leaves_the_others():
    rows = [gpu.Row("overlap", f.__name__, "chains", 30.0, f) for f in (works, fails, works, spoils, works)]
    report = gpu.Report({}, None)
    gpu.run(rows, TINY, report, 1.0)
    assert [result["failed"] for result in report.results[1::2]] == [
        "ValueError: of no use", "RuntimeError: cudaErrorIllegalAddress",
    ]  # fmt: skip
    first, second, last = (result["value"] for result in report.results if "value" in result)
    assert first == second != last


@needs_compiler
def test_long_runs_are_not_repeated(monkeypatch):
    """So that a problem that takes longer than was thought is measured all the same."""
    monkeypatch.setattr(gpu_chains, "device_of", lambda precision, setting, own=gpu_chains.device_of: own(precision, TINY))
    monkeypatch.setattr(gpu_chains, "backend_name", lambda way, setting: "emulated")
    monkeypatch.setattr(gpu_chains, "problem", lambda key, setting: problem(key, TINY))
    for seconds, runs in ((1.0, 4), (8.0, 3), (60.0, 2)):
        done = []
        monkeypatch.setattr(gpu_chains.Trainer, "epochs", lambda self, done=done, seconds=seconds: done.append(1) or seconds)
        result = gpu_chains.measure("matrix_exp", "float32", Setting())
        assert (result["seconds"], len(done)) == (seconds, runs)


def test_libraries_that_are_missing_are_tried_once():
    rows = [gpu.Row("overlap", "row", peer, 1.0, work) for peer, work in
            (("torch", lacks), ("jax", imports), ("torch", works), ("chains", works))]  # fmt: skip
    report = gpu.Report({}, None)
    gpu.run(rows, TINY, report, 1.0, gpu.Here)
    lacking, missing = "installed for processors alone", "not installed: No module named 'no_such_module'"
    assert [result.get("failed") for result in report.results] == [lacking, missing, lacking, None]


def test_what_there_is_no_time_for_is_said(monkeypatch):
    """Correctness has a third of the time, so that something is measured in any case."""
    now, limits = [100.0], []
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])

    class Slow(gpu.Here):
        def __call__(self, work, limit):
            limits.append(limit)
            now[0] += 19.5
            return super().__call__(work, limit)

    problems = ("correct", "correct", "overlap", "overlap", "correct")
    report = gpu.Report({}, None)
    gpu.run([gpu.Row(problem, "works", "chains", 30.0, works) for problem in problems], TINY, report, 1.0, Slow)
    late = "not run: the time was over"
    assert [result.get("failed") for result in report.results] == [None, late, None, None, late]
    assert limits == [20.0, 30.0, 21.0]


# The goals


def test_goals_compare_like_with_like():
    def row(problem, who, seconds, **more):
        return {"problem": problem, "who": who, "seconds": seconds, **more}

    results = [
        row("matrix_exp", "chains float32", 0.02, us_a_step=20.0),
        row("matrix_exp", "chains tf32", 0.03, us_a_step=30.0),
        row("matrix_exp", "PyTorch eager float32", 0.5),
        row("matrix_exp", "PyTorch graph float32", 0.03),
        row("rosetta_cnn", "chains float32", 5.0),
        row("rosetta_cnn", "chains tf32", 3.0),
        row("rosetta_cnn", "chains tf32-cudnn", 3.5),
        row("rosetta_cnn", "chains cudnn", 4.5),
        row("rosetta_cnn", "PyTorch graph float32", 6.0),
        row("rosetta_cnn", "PyTorch eager float32", 4.0),
        {"problem": "rosetta_cnn", "who": "PyTorch graph tf32", "failed": "out of memory"},
        row("lenet5", "chains float32", 0.2, accuracy=0.96),
        row("wider", "chains tf32", 1.0, value=0.9),
        row("wider_relu", "chains float32", 1.0, value=0.8),
        row("wider_relu", "chains no epilogues, float32", 0.9, value=0.89),
        {"problem": "allocations", "who": "chains matrix_exp", "value": 0.0},
        {"problem": "allocations", "who": "chains lenet5", "value": 2.0},
        row("overlap", "chains copies back", 1.0, value=1.05),
        row("overlap", "chains data streamed, width 64", 1.0, value=1.3),
    ]
    found = {goal["goal"]: (goal["figure"], goal["verdict"]) for goal in gpu_goals.goals(results)}
    assert found["matrix_exp: us a step of 10,000 samples, at most 25"] == ("20", "holds")
    assert found["matrix_exp, float32: times as fast as PyTorch eager, at least 20"] == ("25", "holds")
    assert found["matrix_exp, float32: times as fast as PyTorch graph, at least 2"] == ("1.5", "does not hold")
    assert found["rosetta_cnn: seconds for 10 epochs, at most 4"] == ("3", "holds")
    best = "rosetta_cnn, {}: times as fast as PyTorch's best mode, at least 1"
    assert found[best.format("float32")] == ("0.8889", "does not hold")
    assert found[best.format("tf32")] == ("-", "not measured")
    assert found["lenet5: seconds for 10 epochs, at most 0.25"] == ("0.2", "holds")
    assert found["lenet5: accuracy, at least 0.97"] == ("0.96", "does not hold")
    assert found["wider, tf32: share of cuBLAS's rate, at least 0.85"] == ("0.9", "holds")
    assert found["wider_relu, float32: share of cuBLAS's rate, at least 0.85"] == ("0.8", "does not hold")
    assert found["wider, bf16: share of cuBLAS's rate, at least 0.85"] == ("-", "not measured")
    assert found["device allocations in steady steps, the most of all problems, at most 0"] == ("2", "does not hold")
    assert found["copies back: time over that of the largest part, at most 1.1"] == ("1.05", "holds")
    assert found["data streamed, width 64: time over that of the largest part, at most 1.1"] == ("1.3", "does not hold")
