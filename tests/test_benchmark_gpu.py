"""The benchmark of the GPU, without one: all of it at tiny sizes, rows that hang or fail, what is kept between two runs."""

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

from benchmarks import gpu, gpu_chains, gpu_goals, gpu_kept, gpu_ladder, gpu_problems, gpu_processes
from benchmarks.gpu_problems import PROBLEMS, NoGpuError, Setting, activation_of, problem
from benchmarks.gpu_processes import Here, Worker
from benchmarks.gpu_report import Report, line
from benchmarks.gpu_rows import Row
from tests.cupy.support import needs_compiler

TINY = Setting(None, True)


@pytest.fixture
def few(monkeypatch):
    """Some rows of each kind; the others are left to `--rehearse` by hand."""
    rare = ("lenet5", "rosetta_cnn", "tf32", "tuned", "width 64", "wider", "mnist_mlp: chains one-kernel", "sequences")
    rare += (
        *(f"cases {k} of" for k in range(2, 13)),
        "ladder: network",
        "ladder: loops",
        "ladder: training",
        "ladder: convolution",
    )
    chosen = [row for row in gpu.rows() if row.peer == "chains" and not any(text in str(row) for text in rare)]
    monkeypatch.setattr(gpu, "rows", lambda: chosen)
    monkeypatch.delenv("CHAINS_DATA", raising=False)
    monkeypatch.setenv("CUPY_CACHE_DIR", "")  # so that it is as before, after the test
    return chosen


@needs_compiler
def test_a_rehearsal(few, capsys, tmp_path):
    """Every kind of row gives a figure; a second run finds all of it done."""
    assert gpu.main(["--rehearse", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "emulated by the processor: no figure means anything" in text
    assert "correct: 6 of 6 parts" in text
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
    gpu.main(["--plan", "--folder", str(tmp_path)])
    planned = capsys.readouterr().out.splitlines()
    assert [text.split()[0] for text in planned[:-1]] == ["done"] * len(few)
    assert gpu.main(["--rehearse", "--folder", str(tmp_path), "--problems", "correct"]) == 0
    assert "ladder" not in capsys.readouterr().out


@pytest.mark.few(6)
@needs_compiler
@pytest.mark.parametrize("name", gpu_ladder.STEPS)
def test_each_step_of_the_ladder_works(name):
    result = gpu_ladder.STEPS[name](TINY)
    assert "failed" not in result
    assert result.get("value", 0.0) < 0.03


def test_rows_can_be_sent_to_processes():
    sent = pickle.dumps([row.work for row in gpu.rows()])
    assert [each.args for each in pickle.loads(sent) if isinstance(each, partial)]


def test_problems_that_do_not_exist(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--problems", "lenet"])
    assert "no problem is called 'lenet': choose of ladder, correct, sanitizer, matrix_exp" in capsys.readouterr().err


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
    assert found.steps == found.full_steps == 781
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


def begins_another(setting):
    print("begun", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
    time.sleep(60)


def ends(setting):
    os._exit(3)


def lacks(setting):
    raise NoGpuError("installed for processors alone")


def imports(setting):
    import no_such_module  # noqa: F401


def run(rows, report, minutes=1.0, start=Worker, crew=2):
    gpu.Run(TINY, report, minutes, start, crew)(rows)


def test_rows_that_hang_end_or_spoil_their_process_leave_the_others(capsys):
    rows = [
        Row("overlap", f"{k} {f.__name__}", "chains", 30.0, f) for k, f in enumerate((works, fails, works, ends, spoils, works))
    ]
    rows.insert(3, Row("overlap", "hangs", "chains", 0.1, hangs))
    report = Report({}, None)
    run(rows, report)
    failed = [result.get("failed") for result in report.results]
    took, ended = "took longer than 0.1 s, and was ended", "the process ended with the code 3"
    spoilt = "RuntimeError: cudaErrorIllegalAddress"
    assert failed == [None, "ValueError: of no use", None, took, ended, spoilt, None]
    first, second, last = (result["value"] for result in report.results if "value" in result)
    assert first == second != last  # one process, until it ends
    assert 'raise ValueError("of no use")' in report.results[1]["traceback"]
    assert "of no use" in capsys.readouterr().out


def test_what_a_row_began_ends_with_it(capfd):
    """Such as compute-sanitizer, which would use the GPU while others are timed."""
    worker = Worker(TINY)
    assert worker(begins_another, 5.0)["failed"] == "took longer than 5 s, and was ended"
    begun = int(capfd.readouterr().out.split()[-1])
    for _ in range(100):
        if not Path(f"/proc/{begun}").exists() or "zombie" in Path(f"/proc/{begun}/status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the process goes on")


def test_checks_are_done_side_by_side_and_steps_of_the_ladder_each_in_a_process():
    rows = [Row("ladder", str(k), "chains", 30.0, works) for k in range(2)]
    rows += [Row("correct", str(k), "chains", 30.0, f) for k, f in enumerate((works, works, fails))]
    report = Report({}, None)
    run(rows, report)
    values = {f"{r['problem']} {r['who']}": r.get("value") for r in report.results}
    assert set(values) == {"ladder 0", "ladder 1", "correct 0", "correct 1", "correct 2"}
    assert len({values["ladder 0"], values["ladder 1"], values["correct 0"]}) == 3
    assert report.find("correct", "2")["failed"] == "ValueError: of no use"


def test_a_process_that_cannot_be_ended_is_left(monkeypatch):
    class Stuck:
        pid = 1 << 30

        def kill(self):
            pass

        def join(self, timeout=None):
            assert timeout is not None

    class Connection:
        def close(self):
            pass

    worker = Worker(TINY, Stuck(), Connection())
    worker.end()
    assert worker._process is None


def test_warnings_and_tracebacks_are_kept_with_a_row():
    def warns(setting):
        warnings.warn("commands cannot be captured:\nTraceback ...", RuntimeWarning, stacklevel=1)
        return {"value": 1.0}

    result = gpu_processes.attempt(warns, TINY)
    assert result["warnings"] == ["RuntimeWarning: commands cannot be captured:\nTraceback ..."]
    assert "warned: RuntimeWarning: commands cannot be captured:" in line({"problem": "wide", "who": "us"} | result)


# What is kept between runs


def test_a_run_goes_on_where_one_before_stopped(tmp_path, capsys):
    """What is done is left, what failed or had no time is done again, and of cases the wrong ones alone."""
    asked = []

    def cases(setting, only=()):
        asked.append(only)
        return {"holds": bool(only), "value": 0.0} | ({} if only else {"wrong": {"Dense": "an error", "Conv": "another"}})

    rows = [
        Row("matrix_exp", "works", "chains", 30.0, lambda setting: asked.append("work") or {"value": 1.0}),
        Row("wide", "fails", "chains", 30.0, fails),
        Row("correct", "cases", "chains", 30.0, cases),
        Row("wide", "late", "chains", 30.0, works),
    ]
    path = tmp_path / "results.json"
    run(rows[:3], Report({}, path), start=Here)
    run(rows[3:], Report({}, path), 0.0, Here)
    again = Report({}, path)
    assert [gpu.is_done(row, again) for row in rows] == [True, False, False, False]
    assert again.find("wide", "late")["failed"] == gpu.LATE
    text = list(gpu.plan(rows, again, 1.0))
    assert [each.startswith("    done") for each in text[:-1]] == [True, False, False, False]
    run([row for row in rows if not gpu.is_done(row, again)], again, start=Here)
    assert asked == ["work", (), ("Dense", "Conv")]
    assert [gpu.is_done(row, Report({}, path)) for row in rows] == [True, False, True, True]
    assert len(json.loads(path.read_text())["results"]) == 4


def test_kernels_are_kept_in_archives_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_kept, "PART_BYTES", 100)
    monkeypatch.setenv("CUPY_CACHE_DIR", "")
    place = gpu_kept.unpacked(tmp_path)
    assert os.environ["CUPY_CACHE_DIR"] == str(place)
    contents = {f"{k}.cubin": os.urandom(size) for k, size in enumerate((60, 60, 30, 400))}
    for name, content in contents.items():
        (place / name).write_bytes(content)
    gpu_kept.pack(place, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"kernels-{k}.tar.gz" for k in range(3)]
    again = gpu_kept.unpacked(tmp_path)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == contents
    (again / "3.cubin").unlink()
    gpu_kept.pack(again, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    gpu_kept.pack(again, None)


def test_every_row_of_the_plan_is_in_time_or_said_not_to_be():
    lines = list(gpu.plan(gpu.rows(), Report({}, None), 9.5))
    assert len(lines) == len(gpu.rows()) + 1 == len({str(row) for row in gpu.rows()}) + 1
    starts = [float(line.split("s")[0]) for line in lines]
    assert all(("no time" in line) == (start >= 570) for line, start in zip(lines[:-1], starts[:-1], strict=True))
    assert {"wider: chains tf32", "overlap: chains copies back", "rosetta_cnn: PyTorch channels-last tf32"} <= {
        line[18:] for line in lines if "no time" not in line
    }


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
    rows = [Row("overlap", f"row {k}", peer, 1.0, work) for k, (peer, work) in
            enumerate((("torch", lacks), ("jax", imports), ("torch", works), ("chains", works)))]  # fmt: skip
    report = Report({}, None)
    run(rows, report, start=Here)
    lacking, missing = "installed for processors alone", "not installed: No module named 'no_such_module'"
    assert [result.get("failed") for result in report.results] == [lacking, missing, lacking, None]


def test_what_there_is_no_time_for_is_said(monkeypatch):
    """Checks have a third of the time, so that something is measured in any case."""
    now, limits = [100.0], []
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])

    class Slow(Here):
        def __call__(self, work, limit):
            limits.append(limit)
            now[0] += 19.5
            return super().__call__(work, limit)

    problems = ("correct", "correct", "overlap", "overlap", "correct")
    report = Report({}, None)
    rows = [Row(problem, f"works {k}", "chains", 30.0, works) for k, problem in enumerate(problems)]
    run(rows, report, start=Slow, crew=1)
    assert [result.get("failed") for result in report.results] == [None, gpu.LATE, None, None, gpu.LATE]
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
    assert found["rosetta_cnn: seconds an epoch, at most 0.4"] == ("3", "does not hold")
    best = "rosetta_cnn, {}: times as fast as PyTorch's best mode, at least 1"
    assert found[best.format("float32")] == ("0.8889", "does not hold")
    assert found[best.format("tf32")] == ("-", "not measured")
    assert found["lenet5: seconds for 10 epochs, at most 0.25"] == ("0.2", "holds")
    assert found["lenet5: accuracy, at least 0.97"] == ("0.96", "does not hold")
    assert found["wider, tf32: share of cuBLAS's rate, at least 0.85"] == ("0.9", "holds")
    assert found["wider_relu, float32: share of cuBLAS's rate, at least 0.85"] == ("0.8", "does not hold")
    assert found["device allocations in steady steps, the most of all problems, at most 0"] == ("2", "does not hold")
    assert found["copies back: time over that of the largest part, at most 1.1"] == ("1.05", "holds")
    assert found["data streamed, width 64: time over that of the largest part, at most 1.1"] == ("1.3", "does not hold")
