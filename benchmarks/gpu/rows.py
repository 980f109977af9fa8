"""The rows of `benchmarks.gpu`, the most important ones first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.gpu import jax_peer, ladder, processors, torch_peer, training
from benchmarks.gpu.backends import CONVOLUTIONS, FUSED
from benchmarks.gpu.calls import CALLS, check_call
from benchmarks.gpu.correctness import check_case, names
from benchmarks.gpu.problems import Result

UNTIMED = ("ladder", "correct")  # problems whose rows measure no time: many run together
SMALL = ("matrix_exp", "matrix_exp_200", "matrix_exp_1", "mnist_mlp")
MEMBERS = 1000  # of an ensemble
PROFILES = (
    ("lenet5", "float32"), ("lenet5", "tf32-tuned"), ("gru", "float32"), ("rosetta_cnn", "tf32-tuned"),
    ("mnist_mlp", "float32"), ("matrix_exp", "float32"), ("wide", "tf32"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement: `work` makes it in a process for the rows of one `peer`.

    `expected` is about its seconds on an H200, for the plan; after `limit` seconds the process is ended. `alone`: in
    a new process.
    """

    problem: str
    who: str
    peer: str
    work: Callable[..., Result]
    expected: float = 5.0
    limit: float = 60.0
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.problem}: {self.who}"


def _row(peer: str, problem: str, who: str, expected: float, work: Callable[..., Result], *given: Any) -> Row:
    return Row(problem, who, peer, partial(work, *given), expected, 40.0 + 2 * expected)


def _chains(problem: str, what: str, work: Callable[..., Result], *given: Any, expected: float = 5.0) -> Row:
    return _row("chains", problem, f"chains {what}", expected, work, *given)


def _trained(keys: tuple[str, ...], *names: str) -> list[Row]:
    return [_chains(key, name, training.measure, key, name, expected=4.0) for key in keys for name in names]


def _torch(keys: tuple[str, ...], modes: tuple[str, ...], precision: str) -> list[Row]:
    return [
        _row("torch", key, f"PyTorch {mode} {precision}", 25.0 if mode == "compile" else 5.0,
             torch_peer.measure, key, mode, precision)
        for mode in modes for key in keys
    ]  # fmt: skip


def _jax(keys: tuple[str, ...], precision: str) -> list[Row]:
    return [_row("jax", key, f"JAX scan {precision}", 8.0, jax_peer.measure, key, precision, 0) for key in keys]


def _cases(name: str, tiny: bool) -> list[Row]:
    return [Row("correct", f"{name}: {case}", "chains", partial(check_case, name, case), 0.7) for case in names(name, tiny)]


def rows(tiny: bool = False) -> list[Row]:
    """All rows, in order of worth; in a rehearsal with few cases."""
    images = ("lenet5", "rosetta_cnn")
    return [
        *(Row("ladder", name, "chains", step, 4.0, alone=True) for name, step in ladder.STEPS.items()),
        *(Row("correct", f"call: {name}", "chains", partial(check_call, name), 3.0) for name in CALLS),
        # chains with the settings that should be best, then the peers at their best
        *_trained((*SMALL, *images, "gru", "wide"), "float32"),
        *_trained(images, "tuned", "tf32-tuned"),
        *_trained(("wide",), "tf32"),
        _chains("ensemble", f"{MEMBERS:,} networks", training.members, MEMBERS, expected=3.0),
        *(
            _chains("bfgs", f"{key}, {who}", training.bfgs, key, 100, who, expected=3.0)
            for key in SMALL[:2]
            for who in ("float32", "native")
        ),
        *(_chains("profile", f"{key}, {name}", training.profile, key, name, expected=4.0) for key, name in PROFILES),
        *_torch((*SMALL, *images, "gru", "wide"), ("graph",), "float32"),
        *_torch(("rosetta_cnn",), ("channels-last",), "tf32"),
        *_torch((*images, "wide"), ("graph",), "tf32"),
        # correctness
        *_cases("float32", tiny),
        # other modes, memory and streams
        *_torch((*SMALL[:1], SMALL[-1], "gru"), ("eager",), "float32"),
        *_jax((*SMALL, *images, "wide"), "float32"),
        _row("jax", "ensemble", f"JAX vmap, {MEMBERS:,} networks", 8.0, jax_peer.measure, "ensemble", "float32", MEMBERS),
        *_torch((*SMALL[:1], SMALL[-1]), ("compile",), "float32"),
        *(_chains("allocations", key, training.allocations, key, False) for key in (*SMALL, *images)),
        _chains("allocations", "mnist_mlp, streamed", training.allocations, "mnist_mlp", True),
        *(_chains("overlap", f"data streamed, width {width:,}", training.streamed, width) for width in training.WIDTHS),
        _chains("overlap", "products on both processors", training.both_processors),
        Row("processors", "the native backend on more threads", "native", processors.measure, 90.0, 150.0),
        # where time remains: other settings, modes and precisions
        *_trained(images, "tf32"),
        *_trained(SMALL, *FUSED),
        *(row for name in CONVOLUTIONS if "tf32" not in name for row in _cases(name, tiny)),
        *_trained(SMALL, "tf32"),
        *_trained(images, "cudnn", "tf32-cudnn"),
        *(row for name in FUSED for row in _cases(name, tiny)),
        *_torch((*images, "wide"), ("eager",), "float32"),
        *_torch((*images, "gru"), ("compile",), "float32"),
        *_torch((*images, "wide"), ("eager", "compile"), "tf32"),
        *_jax((*images, "wide"), "tf32"),
    ]
