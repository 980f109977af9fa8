"""The benchmark of the GPU without a GPU: a rehearsal, rows that hang or fail, a second run on the same folder, goals."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import correctness, problems, processors, running, training
from benchmarks.gpu.calls import CALLS, check_call
from benchmarks.gpu.goals import goals
from benchmarks.gpu.ladder import STEPS
from benchmarks.gpu.problems import PROBLEMS, NoGpuError, Setting, problem
from benchmarks.gpu.processes import Here, Worker, attempt
from benchmarks.gpu.report import Report, line
from benchmarks.gpu.rows import Row, rows
from benchmarks.gpu.running import LATE, Run, is_done, plan
from tests.cupy.support import needs_compiler

TINY = Setting(None, True)


@pytest.fixture
def few(monkeypatch):
    """Some rows of each kind; `--rehearse` by hand runs all."""
    rare = (
        "lenet5",
        "rosetta_cnn",
        "tf32",
        "tuned",
        "width 64",
        "one-kernel,",
        "kernel-by-kernel,",
        "mnist_mlp: chains one-kernel",
    )
    rare += tuple(f"ladder: {each}" for each in STEPS if each != "kernels")
    rare += tuple(f"call: {each}" for each in CALLS if each not in ("forward", "minimize, BFGS"))
    chosen = [row for row in rows(tiny=True) if row.peer == "chains" and not any(text in str(row) for text in rare)]
    monkeypatch.setattr(command, "rows", lambda tiny: chosen)
    monkeypatch.delenv("CHAINS_DATA", raising=False)
    monkeypatch.setenv("CUPY_CACHE_DIR", "")  # so that it is as before, after the test
    return chosen


@needs_compiler
def test_a_rehearsal(few, capsys, tmp_path):
    """Every kind of row gives a figure; a second run finds all of it done."""
    assert command.main(["--rehearse", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "emulated by the processor: no figure means anything" in text
    checked = sum(row.problem == "correct" for row in few)
    assert f"correct: {checked} of {checked} cases" in text
    assert "kernels: 0 modules were there, 0 were compiled" in text
    assert {path.name for path in tmp_path.iterdir()} == {"results.json"}
    content = json.loads((tmp_path / "results.json").read_text())
    assert {(r["problem"], r["who"]) for r in content["results"]} == {(row.problem, row.who) for row in few}
    assert [r for r in content["results"] if "failed" in r] == []
    figures = [r[name] for r in content["results"] for name in ("seconds", "value", "loss") if name in r]
    assert np.isfinite(figures).all()
    notes = {f"{r['problem']}: {r['who']}": r.get("note", "") for r in content["results"]}
    assert notes["matrix_exp: chains one-kernel"].startswith("all steps by one block")
    assert "commands" in notes["matrix_exp: chains kernel-by-kernel"]
    verdicts = {goal["goal"].split(",")[0]: goal["verdict"] for goal in content["goals"]}
    assert verdicts["device allocations in steady steps"] == "holds"
    assert verdicts["lenet5: accuracy"] == "not measured"
    assert all(goal["goal"] in text for goal in content["goals"])
    command.main(["--plan", "--out", str(tmp_path)])
    planned = capsys.readouterr().out.splitlines()
    assert [text.split()[0] for text in planned[:-1]] == ["done"] * len(few)
    assert command.main(["--rehearse", "--out", str(tmp_path), "--problems", "correct"]) == 0
    assert "ladder" not in capsys.readouterr().out


@pytest.mark.few(6)
@needs_compiler
@pytest.mark.parametrize("name", STEPS)
def test_each_step_of_the_ladder_works(name):
    result = STEPS[name](TINY)
    assert "failed" not in result
    assert result.get("value", 0.0) < 0.03


def test_rows_can_be_sent_to_processes():
    sent = pickle.dumps([row.work for row in rows()])
    assert [each.args for each in pickle.loads(sent) if isinstance(each, partial)]


def test_problems_that_do_not_exist(capsys):
    with pytest.raises(SystemExit):
        command.main(["--problems", "lenet"])
    assert "`--problems` (='lenet') must be one of ladder, correct, matrix_exp" in capsys.readouterr().err


def test_sizes_of_the_problems(monkeypatch):
    """As benchmarks elsewhere define them."""

    def images(setting, name, load, shape, sample):
        zeros = np.zeros((shape[0], *sample), np.float32), np.zeros(shape[0], np.int64)
        return zeros, zeros, ""

    monkeypatch.setattr(problems, "_images", images)
    monkeypatch.setattr(problems, "_made", {})
    sizes = {
        "matrix_exp": (756, 10_000, 10_000, 1000),
        "mnist_mlp": (23_860, 50_000, 10, 5000),
        "lenet5": (44_426, 60_000, 2048, 290),
        "rosetta_cnn": (3_441_592, 50_000, 64, 781),
        "wide": (25_214_986, 1024, 1024, 50),
        "matrix_exp_200": (756, 200, 200, 1000),
        "matrix_exp_1": (756, 1, 1, 1000),
        "gru": (68_302, 1280, 64, 20),
        "ensemble": (105, 64, 64, 500),
    }
    for key in PROBLEMS:
        found = problem(key, Setting())
        assert (found.net("numpy").n_params, len(found.x), found.batch, found.steps) == sizes[key]


# Rows that fail, hang, or end their process


def works(setting):
    return {"seconds": 0.0, "value": float(os.getpid())}


def fails(setting):
    raise ValueError("of no use")


def spoils(setting):
    raise RuntimeError("cudaErrorIllegalAddress")


def hangs(setting):
    time.sleep(3600)


def begins_another(setting):
    print("begun", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid, flush=True)
    os._exit(3)


def ends(setting):
    os._exit(3)


def lacks(setting):
    raise NoGpuError("installed for processors alone")


def imports(setting):
    import no_such_module  # noqa: F401


def run(chosen, report, minutes=1.0, start=Worker, crew=2):
    Run(TINY, report, minutes, start, crew)(chosen)


def test_rows_that_hang_end_or_spoil_their_process_leave_the_others(capsys):
    chosen = [
        Row("overlap", f"{k} {f.__name__}", "chains", f) for k, f in enumerate((works, fails, works, ends, spoils, works))
    ]
    chosen.insert(3, Row("overlap", "hangs", "chains", hangs, limit=0.1))
    report = Report({}, None)
    run(chosen, report)
    failed = [result.get("failed") for result in report.results]
    took, ended = "took longer than 0.1 s, and was ended", "the process ended with the code 3"
    spoilt = "RuntimeError: cudaErrorIllegalAddress"
    assert failed == [None, "ValueError: of no use", None, took, ended, spoilt, None]
    first, second, last = (result["value"] for result in report.results if "value" in result)
    assert first == second != last  # one process, until it ends
    assert 'raise ValueError("of no use")' in report.results[1]["traceback"]
    assert "of no use" in capsys.readouterr().out


def test_what_a_row_began_ends_with_it(capfd):
    """A process that a row leaves would use the GPU while others are timed."""
    assert Worker(TINY)(begins_another, 3600.0)["failed"] == "the process ended with the code 3"
    status = Path(f"/proc/{int(capfd.readouterr().out.split()[-1])}/status")
    while status.exists() and "zombie" not in status.read_text():  # until the system has ended it
        time.sleep(0.05)


def test_steps_of_the_ladder_each_have_a_process():
    chosen = [Row("ladder", str(k), "chains", works, alone=True) for k in range(3)]
    chosen += [Row("correct", str(k), "chains", f) for k, f in enumerate((works, fails, works))]
    report = Report({}, None)
    run(chosen, report, crew=1)
    values = [result["value"] for result in report.results if "value" in result]
    assert len(set(values)) == 4  # and one for all cases
    assert values[3] == values[4]
    assert report.find("correct", "1")["failed"] == "ValueError: of no use"


def sticky(setting):
    """A process in which an error of CUDA has happened refuses everything."""
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        raise RuntimeError("cudaErrorIllegalAddress in kernel_3")
    os.environ["SPOILT"] = "1"
    raise RuntimeError("cudaErrorIllegalAddress")


def healthy(setting):
    if "SPOILT" in os.environ:
        raise RuntimeError("cudaErrorIllegalAddress, of an earlier case")
    return {"value": 0.0, "holds": True}


def test_a_case_that_spoils_its_process_spoils_no_other(tmp_path, monkeypatch):
    """It is repeated alone, with launches that are waited for, and the report is kept."""
    monkeypatch.setattr(running, "sanitized", lambda setting, case, seconds: f"sanitized {setting} {case}")
    cases = ["healthy", "sticky", *(f"healthy {k}" for k in range(5)), "hangs", "ends", "healthy 9"]
    found = {"sticky": sticky, "hangs": hangs, "ends": ends}
    chosen = [
        Row("correct", f"float32: {each}", "chains", found.get(each, healthy), limit=0.5 if each == "hangs" else 60.0)
        for each in cases
    ]
    report = Report({}, tmp_path / "results.json")
    run(chosen, report, minutes=10.0, crew=1)
    failed = {result["who"]: result["failed"] for result in report.results if "failed" in result}
    assert failed == {
        "float32: sticky": "RuntimeError: cudaErrorIllegalAddress",
        "float32: hangs": "took longer than 0.5 s, and was ended",
        "float32: ends": "the process ended with the code 3",
    }
    details = (tmp_path / "details.txt").read_text()
    assert "cudaErrorIllegalAddress in kernel_3" in details
    assert "sanitized float32 sticky" in details


@needs_compiler
def test_a_wrong_number_is_reported_with_its_place_and_its_kernel(monkeypatch):
    def wrong(program, name, *given, run=correctness.run_program, **settings):
        found = run(program, name, *given, **settings)
        if name != "numpy":
            found["g"] = found["g"].copy()
            found["g"][3] += 1.0
        return found

    monkeypatch.setattr(correctness, "run_program", wrong)
    result = correctness.check_case("float32", "Dense", TINY)
    assert not result["holds"]
    assert result["note"].count("1.weight[0] is") == 4
    assert "(1 of 19 entries differ)" in result["note"]
    assert "KERNEL" in result["details"]


def test_a_sanitizer_that_is_missing(monkeypatch):
    monkeypatch.setattr(correctness, "SANITIZER", ("no-such-tool",))
    assert correctness.sanitized("float32", "Dense", 1.0) == ""


@pytest.mark.few(3)
@needs_compiler
@pytest.mark.parametrize("name", CALLS)
def test_calls_give_the_same_results(name):
    assert check_call(name, TINY)["holds"]


def test_processors_are_measured_as_far_as_there_is_time(monkeypatch):
    """Of a process that is ended, what it has printed is kept."""
    script = "import json, time; print(json.dumps(['wide', {'chains': 2.0, 'PyTorch': 3.0}]), flush=True); time.sleep(%d)"
    times = iter((0, 60, 60, 60, 60))

    def begun(threads, first, setting):
        command = [sys.executable, "-c", script % next(times)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(processors, "_begun", begun)
    monkeypatch.setattr(processors, "LIMIT", 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    begin = time.monotonic()
    result = processors.measure(TINY)
    assert time.monotonic() - begin < 10.0  # two limits: four processes share one
    assert result["tables"] == {"wide": {str(n): {"chains": 2.0, "PyTorch": 3.0} for n in (1, 2, 4, 8, 16)}}
    assert "1: 2 1.5  2: 2 1.5" in result["note"]


def test_a_process_that_cannot_be_ended_is_left(monkeypatch):
    class Stuck:
        pid = 1 << 30

        def kill(self):
            pass

        def join(self, timeout=None):
            assert timeout is not None

        close = kill

    worker = Worker(TINY, {}, Stuck(), Stuck())
    worker.end()
    assert worker._process is None


def test_warnings_are_kept_with_a_row():
    def warns(setting):
        warnings.warn("commands cannot be captured:\nTraceback ...", RuntimeWarning, stacklevel=1)
        return {"value": 1.0}

    result = attempt(warns, TINY)
    assert result["warnings"] == ["RuntimeWarning: commands cannot be captured:\nTraceback ..."]
    assert "warned: RuntimeWarning: commands cannot be captured:" in line({"problem": "wide", "who": "us"} | result)


def test_libraries_that_are_missing_are_tried_once():
    works_by = (("torch", lacks), ("jax", imports), ("torch", works), ("chains", works))
    report = Report({}, None)
    run([Row("overlap", f"row {k}", peer, work) for k, (peer, work) in enumerate(works_by)], report, start=Here)
    lacking, missing = "installed for processors alone", "not installed: No module named 'no_such_module'"
    assert [result.get("failed") for result in report.results] == [lacking, missing, lacking, None]


# A second run, and time


def test_a_second_run_continues_the_first(tmp_path):
    """It leaves what is done, and repeats what failed, was wrong or had no time."""
    asked = []

    def case(setting):
        asked.append("case")
        return {"holds": len(asked) > 2, "value": 0.0}

    chosen = [
        Row("matrix_exp", "works", "chains", lambda setting: asked.append("work") or {"value": 1.0}),
        Row("wide", "fails", "chains", fails),
        Row("correct", "case", "chains", case),
        Row("wide", "late", "chains", works),
    ]
    path = tmp_path / "results.json"
    run(chosen[:3], Report({}, path), start=Here)
    run(chosen[3:], Report({}, path), 0.0, Here)
    again = Report({}, path)
    assert [is_done(row, again) for row in chosen] == [True, False, False, False]
    assert again.find("wide", "late")["failed"] == LATE
    assert [each.startswith("    done") for each in plan(chosen, again, 1.0)] == [True, False, False, False, False]
    run([row for row in chosen if not is_done(row, again)], again, start=Here)
    assert asked == ["work", "case", "case"]
    assert [is_done(row, Report({}, path)) for row in chosen] == [True, False, True, True]
    assert len(json.loads(path.read_text())["results"]) == 4


def test_the_plan_marks_rows_without_time():
    lines = list(plan(rows(), Report({}, None), 9.5))
    assert len(lines) == len(rows()) + 1 == len({str(row) for row in rows()}) + 1
    starts = [float(line.split("s")[0]) for line in lines]
    assert all(("no time" in line) == (start >= 570) for line, start in zip(lines[:-1], starts[:-1], strict=True))
    timely = {line[18:] for line in lines if "no time" not in line}
    assert {
        "wide: chains tf32",
        "rosetta_cnn: PyTorch channels-last tf32",
        "correct: float32: Dense",
        "matrix_exp: JAX scan float32",
    } <= timely


def test_rows_without_time_are_reported(monkeypatch):
    """Checks have a third of the time, so that something is measured in any case."""
    now, limits = [100.0], []
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])

    class Slow(Here):
        def __call__(self, work, limit):
            limits.append(limit)
            now[0] += 19.5
            return super().__call__(work, limit)

    report = Report({}, None)
    of = ("correct", "correct", "overlap", "overlap", "correct")
    run([Row(each, f"works {k}", "chains", works, limit=30.0) for k, each in enumerate(of)], report, start=Slow, crew=1)
    assert [result.get("failed") for result in report.results] == [None, LATE, None, None, LATE]
    assert limits == [20.0, 30.0, 21.0]


@needs_compiler
def test_long_runs_are_not_repeated(monkeypatch):
    """A problem that takes longer than estimated is measured too."""
    monkeypatch.setattr(training, "device_of", lambda name, setting, of=training.device_of: of(name, TINY))
    monkeypatch.setattr(training, "backend_name", lambda name, setting: "emulated")
    monkeypatch.setattr(training, "problem", lambda key, setting: problem(key, TINY))
    for seconds, runs in ((1.0, 4), (8.0, 3), (60.0, 2)):
        done = []
        monkeypatch.setattr(training.Trainer, "epochs", lambda self, done=done, seconds=seconds: done.append(1) or seconds)
        result = training.measure("matrix_exp", "float32", Setting())
        assert (result["seconds"], len(done)) == (seconds, runs)


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
        row("rosetta_cnn", "chains cudnn", 4.5),
        row("rosetta_cnn", "PyTorch graph float32", 6.0),
        row("rosetta_cnn", "PyTorch eager float32", 4.0),
        {"problem": "rosetta_cnn", "who": "PyTorch graph tf32", "failed": "out of memory"},
        row("lenet5", "chains float32", 0.2, accuracy=0.96),
        {"problem": "allocations", "who": "chains matrix_exp", "value": 0.0},
        {"problem": "allocations", "who": "chains lenet5", "value": 2.0},
        row("overlap", "chains data streamed, width 64", 1.0, value=1.3),
    ]
    found = {goal["goal"]: (goal["figure"], goal["verdict"]) for goal in goals(results)}
    assert found["matrix_exp: us a step of 10,000 samples, at most 25"] == ("20", "holds")
    assert found["matrix_exp, float32: times as fast as PyTorch eager, at least 20"] == ("25", "holds")
    assert found["matrix_exp, float32: times as fast as PyTorch graph, at least 2"] == ("1.5", "does not hold")
    assert found["rosetta_cnn: seconds an epoch, at most 0.4"] == ("3", "does not hold")
    best = "rosetta_cnn, {}: times as fast as PyTorch's best mode, at least 1"
    assert found[best.format("float32")] == ("0.8889", "does not hold")
    assert found[best.format("tf32")] == ("-", "not measured")
    assert found["lenet5: accuracy, at least 0.97"] == ("0.96", "does not hold")
    assert found["device allocations in steady steps, the most of all problems, at most 0"] == ("2", "does not hold")
    assert found["data streamed, width 64: time over that of the largest part, at most 1.1"] == ("1.3", "does not hold")
