"""What a solver's callback pays: the value and gradient of 4-32-16-4 for one sample, called from Python."""

from __future__ import annotations

from benchmarks.harness.peers import Options, rows
from benchmarks.harness.timing import Contest, Criterion, Table
from benchmarks.peers import chains_dense as chains_peer
from benchmarks.problems import matrix_exp
from benchmarks.problems.dense import gradient_error


def contests(options: Options) -> list[Contest]:
    """In both types, whatever --dtype says."""
    return [_calls(dtype, options) for dtype in ("float32", "float64")]


def _calls(dtype: str, options: Options) -> Contest:
    p = matrix_exp.problem(1, dtype)
    return Contest(
        key=f"latency_{dtype}",
        title=f"latency, value and gradient for one sample, {dtype}",
        unit="call",
        contestants=rows("call", p, options),
        judged="relative error",
        judge=lambda result: gradient_error(p, result),
        criteria=lambda table: criteria(dtype, table),
    )


def criteria(dtype: str, table: Table) -> list[Criterion]:
    """What a call costs, absolutely and beside the peers."""
    native, inside = table.best("chains native"), table.best(chains_peer.INSIDE)
    if native is None or inside is None:
        return []
    found = [
        Criterion(f"latency, {dtype}: microseconds a call of chains native", native.median * 1e6, "<= 2.5"),
        Criterion(f"latency, {dtype}: microseconds a sample inside the loop", inside.median * 1e6, "<= 0.25"),
    ]
    for peer, factor in {"PyTorch": 150, "JAX": 18}.items():
        text = f"latency, {dtype}: {peer}'s best mode against chains native"
        found += table.compare(text, table.best(peer), native, f">= {factor}")
    return found
