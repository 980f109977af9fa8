"""The rows of `benchmarks.gpu`, the most important ones first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu import jax_peer, ladder, torch_peer, training
from benchmarks.gpu.backends import CONVOLUTIONS, FUSED
from benchmarks.gpu.correctness import PARTS, check_cases
from benchmarks.gpu.problems import TRAINED, Result

UNTIMED = ("ladder", "correct")  # problems whose rows measure no time: many run together


@dataclass(frozen=True)
class Row:
    """One measurement: `work` makes it in a process for the rows of one `peer`.

    `expected` is an estimate of its seconds on an H200, for the plan; after `limit` seconds the process is ended.
    """

    problem: str
    who: str
    peer: str
    work: Callable[..., Result]
    expected: float = 5.0
    limit: float = 60.0

    def __str__(self) -> str:
        return f"{self.problem}: {self.who}"


def _row(peer: str, problem: str, who: str, expected: float, work: Callable[..., Result], *given: Any) -> Row:
    return Row(problem, who, peer, partial(work, *given), expected, 60.0 + 3 * expected)


def _chains(problem: str, what: str, work: Callable[..., Result], *given: Any, expected: float = 5.0) -> Row:
    return _row("chains", problem, f"chains {what}", expected, work, *given)


def _trained(keys: tuple[str, ...], *names: str) -> list[Row]:
    return [_chains(key, name, training.measure, key, name, expected=12.0) for key in keys for name in names]


def _torch(keys: tuple[str, ...], modes: tuple[str, ...], precision: str) -> list[Row]:
    return [
        _row("torch", key, f"PyTorch {mode} {precision}", 45.0 if mode == "compile" else 10.0,
             torch_peer.measure, key, mode, precision)
        for mode in modes for key in keys
    ]  # fmt: skip


def _jax(keys: tuple[str, ...], precision: str) -> list[Row]:
    return [_row("jax", key, f"JAX scan {precision}", 20.0, jax_peer.measure, key, precision) for key in keys]


def _cases(name: str, parts: int, expected: float) -> list[Row]:
    whos = [f"{name}, {k + 1} of {parts}" for k in range(parts)]
    return [_chains("correct", who, check_cases, k, parts, name, expected=expected) for k, who in enumerate(whos)]


def rows() -> list[Row]:
    """All rows, in order of worth."""
    profiles = {
        "matrix_exp": "float32",
        "mnist_mlp": "float32",
        "lenet5": "float32",
        "rosetta_cnn": "tf32-cudnn",
        "wide": "tf32",
    }
    small, images = TRAINED[:2], ("lenet5", "rosetta_cnn")
    return [
        *(Row("ladder", name, "chains", step, 4.0) for name, step in ladder.STEPS.items()),
        *_cases("float32", PARTS, 40.0),
        # chains, first with the settings that should be best
        *_trained(TRAINED, "float32"),
        *_trained(("rosetta_cnn",), "tf32-cudnn", "tf32-own"),
        *_trained(("lenet5",), "tf32"),
        *_trained(("wide",), "tf32", "float32"),
        *_trained(small, *FUSED),
        *(_chains("profile", f"{key}, {name}", training.profile, key, name, expected=8.0) for key, name in profiles.items()),
        # the peers at their best
        *_torch(TRAINED, ("graph",), "float32"),
        *_torch(("rosetta_cnn",), ("channels-last",), "tf32"),
        *_torch(("rosetta_cnn", "lenet5", "wide"), ("graph",), "tf32"),
        *_torch(small, ("eager",), "float32"),
        # memory and streams
        *(_chains("allocations", key, training.allocations, key, False) for key in TRAINED),
        _chains("allocations", "mnist_mlp, streamed", training.allocations, "mnist_mlp", True),
        *(_chains("overlap", f"data streamed, width {width:,}", training.streamed, width) for width in training.WIDTHS),
        # where time remains: other settings, modes and precisions
        *(row for name in CONVOLUTIONS if "tf32" not in name for row in _cases(name, 1, 5.0)),
        *_trained(("rosetta_cnn", *small), "tf32"),
        *_trained(("rosetta_cnn",), *(name for name in CONVOLUTIONS if name not in ("tf32-cudnn", "tf32-own"))),
        *_trained(("lenet5",), *CONVOLUTIONS),
        *(row for name in FUSED for row in _cases(name, PARTS, 20.0)),
        *_torch(images, ("eager",), "float32"),
        *_jax(TRAINED, "float32"),
        *_torch(TRAINED, ("compile",), "float32"),
        *_torch((*images, "wide"), ("eager", "compile"), "tf32"),
        *_torch(small, ("graph", "eager", "compile"), "tf32"),
        *_torch(("wide",), ("graph", "eager"), "float32"),
        *_jax((*images, "wide"), "tf32"),
    ]
