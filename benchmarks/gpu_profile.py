"""Where the time of a step goes on a GPU: each command of it alone, between two events."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.gpu_chains import Trainer
from benchmarks.gpu_problems import Setting, problem
from chains.backends.cupy.device.interface import Work

SHOWN = 12  # commands


def measure(key: str, way: str, setting: Setting) -> dict[str, Any]:
    """The commands of a step that take the longest, with microseconds, and how many there are.

    Alone, each takes longer than within a graph by what it costs to launch; where a single launch does many steps, there is
    nothing to take apart.
    """
    trainer = Trainer(problem(key, setting), way, setting)
    trainer.epochs(1)
    binding, device = trainer.binding, trainer.device
    times = [(device.seconds(work, 3) * 1e6, named(work)) for work in binding.work]
    total = sum(seconds for seconds, _ in times)
    longest = sorted(times, reverse=True)[:SHOWN]
    text = ", ".join(f"{name} {microseconds:.1f}" for microseconds, name in longest)
    return {"value": total, "note": f"us, of {len(times)} commands: {text}", "commands": [list(each) for each in times]}


def named(work: Work) -> str:
    """The name of a kernel, or of the function that starts a product or a convolution."""
    function = work.func if isinstance(work, partial) else work
    return str(getattr(function, "name", getattr(function, "__name__", type(function).__name__)))
