"""Two processes that write one cache of compiled code at once, one of them killed now and then: what is there is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from chains import Chain, Dense, SquaredLoss, tanh
from chains.backends.native import NativeBackend
from chains.backends.native.llvm import cache as code_cache
from tests.campaign import running

NETWORKS = 4


def writer(widths: list[int]) -> None:
    """Compile the gradients of networks of these widths; print how many came from the cache, and their bits."""
    runner, bits, cached = NativeBackend(threads=1), [], 0
    for width in widths:
        net = Chain(Dense(3, width, tanh), Dense(width, 2))
        cached += runner.compile(net.program(SquaredLoss())).code.cached
        value, g = net.value_and_grad(net.init(), np.ones((5, 3)), np.zeros((5, 2)), SquaredLoss())
        bits.append(f"{value!r} {float(np.abs(g).sum())!r}")
    print(json.dumps([cached, bits]))


def _started(place: Path, widths: list[int]) -> subprocess.Popen[str]:
    code = f"from tests.campaign.caches import writer; writer({widths})"
    env = {**os.environ, "CHAINS_CACHE": str(place)}
    return subprocess.Popen([sys.executable, "-c", code], cwd=running.ROOT, env=env, stdout=subprocess.PIPE, text=True)


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    widths = rng.choice(np.arange(2, 60), NETWORKS, replace=False).tolist()
    killed = bool(rng.random() < 0.5)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "cache"
        first, second = _started(place, widths), _started(place, widths[::-1])
        if killed:
            while not (place.exists() and any(place.iterdir())) and first.poll() is None:
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0.0, 0.4)))
            second.kill()
        results = [json.loads(text) for text in (p.communicate()[0] for p in (first, second)) if text.strip()]
        assert first.returncode == 0
        assert killed or second.returncode == 0
        if len(results) > 1:
            assert results[0][1] == results[1][1][::-1], "the processes disagree"
        os.environ["CHAINS_CACHE"] = str(place)
        names = [path.stem for path in place.glob("*.o")]
        assert len(names) >= NETWORKS
        assert all(code_cache.load(name) for name in names), "a file is damaged"
        third = _started(place, widths)
        cached, bits = json.loads(third.communicate()[0])
        assert (cached, bits) == (NETWORKS, results[0][1]), "what is in the cache is not what was compiled"
    return "one was killed" if killed and second.returncode else "both ended"


if __name__ == "__main__":
    sys.exit(running.main(attempt))
