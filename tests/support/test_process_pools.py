"""Workers of process pools use one thread each, unless more are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import chains
from chains.support import threads

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

POOLS = '''
import json, multiprocessing, os, sys, threading
import numpy as np
from chains import Chain, Dense, SquaredLoss, get_num_threads, set_num_threads, tanh

NET = Chain(Dense(64, 256, tanh), Dense(256, 64), backend="native")

def task(k):
    """How many threads a process says it uses, and how many it has started."""
    x, t = np.full((300, 64), 0.1 * k, np.float32), np.zeros((300, 64), np.float32)
    for _ in range(3):
        NET.value_and_grad(NET.init(seed=0), x, t, SquaredLoss())
    alive = {int(each) for each in os.listdir("/proc/self/task")}  # as the system counts them
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("chains-worker")]
    assert {thread.native_id for thread in workers} <= alive
    return get_num_threads(), len(workers), os.getpid()

def run(kind, used_before):
    parent = task(1) if used_before else None
    if kind == "loky":
        import joblib
        found = joblib.Parallel(n_jobs=2)(joblib.delayed(task)(k) for k in range(4))
    else:
        with multiprocessing.get_context(kind).Pool(2) as pool:
            found = pool.map(task, range(4), chunksize=1)
    print(json.dumps([parent, found]))

if __name__ == "__main__":
    if len(sys.argv) > 3:
        set_num_threads(int(sys.argv[3]))
    run(sys.argv[1], sys.argv[2] == "used")
'''


def in_pool(tmp_path, *arguments, **variables):
    script = tmp_path / "pools.py"
    script.write_text(POOLS)
    free = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "CHAINS_NUM_THREADS", "LOKY_MAX_CPU_COUNT")}
    path = str(Path(chains.__file__).parents[1])
    ignored = ["-W", "ignore::DeprecationWarning"]  # multiprocessing's, of forks where there are threads
    done = subprocess.run(
        [sys.executable, *ignored, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env=free | {"PYTHONPATH": path} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


linux = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


@pytest.mark.few(2)
@linux
@pytest.mark.parametrize(
    ("kind", "used"), [("spawn", "used"), ("fork", "used"), ("fork", "fresh"), ("forkserver", "fresh"), ("loky", "used")]
)
def test_workers_of_process_pools_have_one_thread_each(kind, used, tmp_path):
    """Not as many as there are processors, whether or not their parent has threads."""
    if kind == "loky":
        pytest.importorskip("joblib")
    parent, found = in_pool(tmp_path, kind, used)
    most = threads.processors()
    if parent:
        assert parent[:2] == [most, most - 1]
    assert all(number == max(1, most // 2 if kind == "loky" else 1) for number, *_ in found)  # joblib divides processors
    assert all(started == number - 1 for number, started, *_ in found)
    assert len({process for *_, process in found}) <= 2


@linux
@pytest.mark.parametrize(("kind", "name"), [("spawn", "CHAINS_NUM_THREADS"), ("fork", "OMP_NUM_THREADS")])
def test_workers_take_what_is_asked_for(kind, name, tmp_path):
    _, found = in_pool(tmp_path, kind, "used", **{name: "3"})
    assert all(each[:2] == [3, 2] for each in found)


@linux
def test_a_number_that_was_chosen_goes_along_with_a_fork(tmp_path):
    parent, found = in_pool(tmp_path, "fork", "used", "3")
    assert parent[:2] == [3, 2]
    assert all(each[:2] == [3, 2] for each in found)
