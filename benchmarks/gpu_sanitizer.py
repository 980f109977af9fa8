"""Tiny networks under NVIDIA's compute-sanitizer: ``python -m benchmarks.gpu_sanitizer NETWORK`` is what it watches."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_chains import device_of, on_host
from benchmarks.gpu_problems import NoGpuError, Setting
from chains import GRU, SGD, Adam, Chain, Conv, CrossEntropyLoss, Dense, Embedding, Flatten, MaxPool, relu, tanh, train

NETWORKS = {
    "dense": Chain(Dense(6, 16, tanh), Dense(16, 3)),
    "images": Chain(Conv(3, 8, 3, relu), MaxPool(2), Conv(8, 40, 3), Flatten(), Dense(160, 3), input_shape=(3, 10, 10)),
    "sequences": Chain(Embedding(20, 5), GRU(5, 6), Dense(6, 3), input_shape=(4,)),
}
TOOLS = (
    ("dense", "racecheck"),
    ("dense", "memcheck"),
    ("images", "memcheck"),
    ("sequences", "memcheck"),
    ("dense", "initcheck"),
)
FOUND = 86  # the exit code where the tool found something


def work(name: str) -> None:
    """Two steps of training, on samples for one block and for several, and a call."""
    device, net, rng = device_of("float32", Setting()), NETWORKS[name], np.random.default_rng(0)
    shape = net.input_shape
    for samples in (10, 3000) if name == "dense" else (10,):
        x = rng.integers(0, 20, (samples, *shape)) if name == "sequences" else rng.random((samples, *shape), np.float32)
        p = device.array(net.init(seed=0))
        optimizer = SGD(0.1) if name == "images" else Adam(0.01)
        train(net, p, x, rng.integers(0, 3, samples), CrossEntropyLoss(), optimizer, epochs=2, batch_size=samples)
        assert np.isfinite(on_host(device, net(device.array(x), p))).all()


def check(name: str, tool: str, setting: Setting) -> dict[str, Any]:
    """What compute-sanitizer finds in a network. Raises NoGpuError where it is not installed."""
    own = Path("/usr/local/cuda/bin/compute-sanitizer")
    command = shutil.which("compute-sanitizer") or (str(own) if own.exists() else None)
    if command is None:
        raise NoGpuError("compute-sanitizer is not installed")
    rest = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"]
    run = [command, *rest, sys.executable, "-m", "benchmarks.gpu_sanitizer", name]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    text = (done.stdout + done.stderr).strip()
    if done.returncode not in (0, FOUND):
        raise RuntimeError(f"{' '.join(run[:3])} ended with the code {done.returncode}: {text[-2000:]}")
    return {"holds": done.returncode == 0, "note": text[-2000:] if done.returncode else text.splitlines()[-1]}


if __name__ == "__main__":
    work(sys.argv[1])
