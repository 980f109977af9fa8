"""The rows of `benchmarks.gpu`, the most important ones first, with the seconds that each is thought to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import gpu_chains, gpu_jax, gpu_ladder, gpu_products, gpu_profile, gpu_sanitizer, gpu_torch
from benchmarks.gpu_problems import Setting

Result = dict[str, Any]

LARGE = ("wider", "wider_relu", "wide")
TRAINED = ("matrix_exp", "mnist_mlp", "lenet5", "rosetta_cnn")
SIDE_BY_SIDE = ("ladder", "correct", "sanitizer")  # problems whose rows measure no time: many are done at once


@dataclass(frozen=True)
class Row:
    """One measurement: `work` makes it, within `limit` seconds, in a process that serves the rows of one `peer`.

    `expected` are the seconds it is thought to take on an H200: an estimate, for the plan alone.
    """

    problem: str
    who: str
    peer: str
    limit: float
    work: Callable[[Setting], Result]
    expected: float = 5.0

    def __str__(self) -> str:
        return f"{self.problem}: {self.who}"

    @property
    def alone(self) -> bool:
        """Whether the row wants a process of its own."""
        return self.problem == "ladder"


def rows() -> list[Row]:
    """All rows in order of worth."""
    return [*_checks(), *_ours(), *_peers(), *_products(), *_memory(), *_later()]


def _chains(
    problem: str, what: str, work: Callable[..., Result], *given: Any, limit: float = 60.0, expected: float = 5.0
) -> Row:
    return Row(problem, f"chains {what}".strip(), "chains", limit, partial(work, *given), expected)


def _torch(key: str, mode: str, precision: str) -> Row:
    work = partial(gpu_torch.measure, key, mode, precision)
    slow = mode == "compile"
    return Row(key, f"PyTorch {mode} {precision}", "torch", 150.0 if slow else 90.0, work, 45.0 if slow else 10.0)


def _jax(key: str, mode: str, precision: str) -> Row:
    return Row(key, f"JAX {mode} {precision}", "jax", 90.0, partial(gpu_jax.measure, key, mode, precision), 20.0)


def _cases(way: str, expected: float) -> list[Row]:
    parts, prefix = gpu_chains.PARTS, "" if way == "float32" else f"{way}, "
    named = [(f"{prefix}cases {part + 1} of {parts}", part) for part in range(parts)]
    return [_chains("correct", who, gpu_chains.check_cases, part, way, limit=150.0, expected=expected) for who, part in named]


def _checks() -> list[Row]:
    """Single steps, then every case of the tests' harness, then compute-sanitizer."""
    ladder = [Row("ladder", name, "chains", 60.0, step, 4.0) for name, step in gpu_ladder.STEPS.items()]
    watched = [
        Row("sanitizer", f"{name}, {tool}", "sanitizer", 90.0, partial(gpu_sanitizer.check, name, tool), 20.0)
        for name, tool in gpu_sanitizer.TOOLS
    ]
    training = _chains("correct", "training and streams", gpu_chains.check_training)
    return [*ladder, training, *_cases("float32", 40.0), *watched]


def _ours() -> list[Row]:
    """The problems by this project alone, each where it should be best, then the other ways."""
    us = gpu_chains
    first = [_chains(key, "float32", us.measure, key, "float32", limit=90.0, expected=12.0) for key in TRAINED]
    fast = [
        _chains(key, way, us.measure, key, way, limit=90.0, expected=12.0)
        for key, way in (
            ("rosetta_cnn", "tf32-cudnn"),
            ("rosetta_cnn", "tf32-own"),
            ("lenet5", "tf32"),
        )
    ]
    ways = [_chains(key, way, us.measure, key, way) for key in TRAINED[:2] for way in us.KERNELS]
    profiles = [_chains("profile", f"{key}, {way}", gpu_profile.measure, key, way, expected=8.0) for key, way in
                (("matrix_exp", "float32"), ("mnist_mlp", "float32"), ("lenet5", "float32"), ("rosetta_cnn", "tf32-cudnn"),
                 ("rosetta_cnn", "own"), ("wide", "tf32"))]  # fmt: skip
    return [*first, *fast, *ways, *profiles]


def _peers() -> list[Row]:
    """PyTorch's graphs in float32 and TF32, and one eager row a problem."""
    graphs = [_torch(key, "graph", "float32") for key in TRAINED]
    rounded = [_torch(key, mode, "tf32") for key, mode in
               (("rosetta_cnn", "channels-last"), ("rosetta_cnn", "graph"), ("lenet5", "graph"))]  # fmt: skip
    return [*graphs, *rounded, *(_torch(key, "eager", "float32") for key in ("matrix_exp", "mnist_mlp"))]


def _products() -> list[Row]:
    return [_chains(key, p, gpu_products.share, key, p, expected=8.0) for key in LARGE for p in gpu_chains.PRECISIONS]


def _memory() -> list[Row]:
    """Allocations, and copies meanwhile."""
    us = gpu_chains
    return [
        *(_chains("allocations", key, us.allocations, key, False) for key in TRAINED),
        _chains("allocations", "mnist_mlp, streamed", us.allocations, "mnist_mlp", True),
        _chains("overlap", "copies back", us.copy_back),
        *(_chains("overlap", f"data streamed, width {width:,}", us.streamed_training, width) for width in (4096, 64)),
        _chains("overlap", "processor and GPU", us.both_machines),
        *(_chains("async_memory", f"loss read {text}", us.async_memory, every) for text, every in
          (("at every step", True), ("later", False))),
    ]  # fmt: skip


def _later() -> list[Row]:
    """What is done where time remains."""
    us, others = gpu_chains, ("rosetta_cnn", "wide", "wider", "lenet5")
    convolving = [way for way in us.CONVOLUTIONS if "tf32" not in way]
    return [
        *(_chains("correct", f"convolutions, {way}", us.check_convolutions, way) for way in convolving),
        *(_chains(key, "tf32", us.measure, key, "tf32", limit=90.0) for key in ("rosetta_cnn", "mnist_mlp", "matrix_exp")),
        *(_chains(key, way, us.measure, key, way) for key in ("rosetta_cnn", "lenet5") for way in us.CONVOLUTIONS
          if (key, way) != ("rosetta_cnn", "tf32-cudnn") and (key, way) != ("rosetta_cnn", "tf32-own")),
        *(row for way in us.KERNELS for row in _cases(way, 20.0)),
        *(_torch(key, "eager", "float32") for key in ("lenet5", "rosetta_cnn")),
        *(_torch(key, "graph", "tf32") for key in ("wide", "wider")),
        *(_jax(key, mode, "float32") for key in TRAINED for mode in ("scan", "jit")),
        *(_torch(key, "compile", "float32") for key in TRAINED),
        *(_torch(key, "eager", "tf32") for key in others),
        *(_torch(key, "compile", "tf32") for key in ("rosetta_cnn", "lenet5", "wide")),
        *(_torch(key, mode, "tf32") for key in ("matrix_exp", "mnist_mlp") for mode in ("graph", "eager", "compile")),
        *(_torch(key, mode, "float32") for key in ("wide", "wider") for mode in ("graph", "eager")),
        *(_jax(key, "scan", "tf32") for key in ("rosetta_cnn", "wide", "lenet5")),
    ]  # fmt: skip
