"""The executables of a network, recorded or found, and the arrays that calls run them on.

These are the caller's data, the parameters, the state, random numbers, the numbers that processes share, and the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from chains.activations import sigmoid
from chains.backends import Executable
from chains.layers.combine import last_layer
from chains.layers.softmax import Softmax
from chains.losses import Loss
from chains.network import checks, record
from chains.network.network import Network
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.program import Program
from chains.support import arguments
from chains.support.checks import check_is
from chains.support.communicator import check_communicator, own, words_of
from chains.support.memory import memory_of

# An array that a call fills: its shape, the caller's array or None, and the caller's name for it.
Output = tuple[tuple[int, ...], Any, str]
FAILED = -1  # the number of samples of a process that has failed


def run(
    network: Network, executable: Executable, p: np.ndarray, data: dict[str, Any], outs: Mapping[str, Output],
    state: Any = None, training: bool = False, seed: int = 0, processes: Agreement | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Run an executable on checked parameters and data. Returns its outputs, by name.

    All other arguments are checked before anything is written. The data are copied to the memory of the parameters if
    necessary.
    """
    batch, memory = len(data["x"]), memory_of(p)
    arrays = {**arguments.to_device_of(p, data), "p": p}
    arrays |= state_for(network, executable.program, state, p.dtype, arrays)
    results: dict[str, np.ndarray] = {}
    for name, (shape, given, called) in outs.items():
        if given is None:
            results[name] = memory.empty(shape, p.dtype)
        else:
            results[name] = arguments.check_out(given, shape, p.dtype, arrays, called)
            arrays[called] = given  # no program has a buffer of this name; further outputs may not overlap it
    arrays |= random_numbers(executable, seed, p)
    total, first = (batch, 0) if processes is None else processes.part_of(batch)
    if training:
        network.check_batch(total)
    if processes is not None:
        arrays |= part_arrays(processes.comm, executable, total, first, p)
    arrays |= results
    executable(batch, arrays)
    return results


def random_numbers(executable: Executable, seed: int, like: Any) -> dict[str, Any]:
    """The checked seed, in the memory of `like`, for a program that draws random numbers."""
    seed = arguments.check_seed(seed)
    if "random" not in executable.program.buffers:
        return {}
    return {"random": memory_of(like).contiguous(np.array([seed, 0], np.uint64))}


def state_for(
    network: Network, program: Program, state: Any, dtype: np.dtype[Any] | None, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The checked state by buffer name, for a run of a program on these inputs."""
    if state is None and network.is_stateless:
        return {}
    buffer = program.buffers.get("state")
    updated = buffer is not None and buffer.role == "state"
    if state is not None:
        return {"state": arguments.check_state(state, network.n_state, dtype, updated, inputs)}
    if buffer is not None:
        raise ValueError(
            f"`state` is missing: this network has one ({network.state_layout[0].name}, ...), which this call "
            f"{'updates' if updated else 'reads'}; begin with net.init_state() and pass it to every call"
        )
    return {}


# Programs, which are recorded the first time.


def problem(
    network: Network, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any = None
) -> tuple[dict[str, np.ndarray], record.Criterion]:
    """The checked data by buffer name, and the criterion to minimise."""
    data = checks.check_data(network.declaration, x, t, loss, weights, lengths)
    return data, criterion(network, loss, *checks.target_shapes(data), penalty)


def criterion(
    network: Network,
    loss: Loss,
    target: tuple[int, ...],
    weights: tuple[int, ...] | None,
    masked: bool,
    penalty: Penalty | None,
) -> record.Criterion:
    """The criterion to minimise. Raises TypeError or ValueError for a loss that does not fit the last layer."""
    checks.check_loss(loss)
    last = last_layer(network.declaration.layer)
    if loss.takes_logits and isinstance(last, Softmax):
        raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave that layer out")
    if loss.takes_logits and sigmoid in (getattr(last, "activation", None), getattr(last, "f", None)):
        raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave its sigmoid out")
    if penalty is not None:
        check_is("penalty", penalty, Penalty, "a penalty such as L2Penalty(1e-4)")
    return record.Criterion(loss, target, weights, penalty, masked)


def forward_pass(network: Network, p: Any, training: bool, masked: bool = False) -> Executable:
    """A call of the network with these parameters."""
    make = partial(record.forward, network, p.dtype, training, masked=masked)
    return network.program(p, ("forward", p.dtype, training, masked), make)


def backward_pass(network: Network, p: Any, training: bool = False, masked: bool = False) -> Executable:
    """The pullback of a call with these parameters."""
    make = partial(record.vjp, network, p.dtype, training, masked=masked)
    return network.program(p, ("vjp", p.dtype, training, masked), make)


def gradient_of(
    network: Network, like: Any, criterion: record.Criterion, dtype: np.dtype[Any], training: bool, parallel: bool,
    *, pure: bool = False,
) -> Executable:  # fmt: skip
    """The value and the gradient of a criterion, for arrays in the memory of `like`."""
    make = partial(record.gradient, network, criterion, dtype, training, pure=pure, parallel=parallel)
    return network.program(like, ("gradient", dtype, training, pure, parallel), make, criterion)


def training_step(
    network: Network, p: Any, criterion: record.Criterion, optimizer: Optimizer, *, parallel: bool = False
) -> Executable:
    """A training step from `p`, for training loops."""
    make = partial(record.training_step, network, criterion, optimizer, p.dtype, parallel=parallel)
    return network.program(p, ("training step", p.dtype, parallel), make, criterion, optimizer)


# Calls of several processes together, each with its samples, over a communicator of mpi4py.


class Agreement:
    """The processes of a call, which all refuse it if one of them does: otherwise the others would wait for it.

    Used as a context around the checks of a call. The first message, `part_of`, follows the last check of this process alone;
    a process that has an error before takes part in it. Raises TypeError unless `comm` is a communicator.
    """

    def __init__(self, comm: Any) -> None:
        self.given, self.comm = comm, own(check_communicator(comm))  # the caller's, and our duplicate
        self._told = False  # whether this process has sent the message

    def part_of(self, samples: int) -> tuple[int, int]:
        """The number of samples of all processes, and of those before this process. RuntimeError if another one has failed."""
        counts = self._exchange(samples, "")
        return int(counts.sum()), int(counts[: self.comm.rank].sum())

    def _exchange(self, samples: int, error: str) -> np.ndarray:
        self._told = True
        counts = np.empty(self.comm.size, np.int64)
        self.comm.Allgather(np.array([samples], np.int64), counts)
        if (counts == FAILED).any():
            texts = self.comm.allgather(error)
            rank = int(np.argmax(counts == FAILED))
            if not error:
                raise RuntimeError(f"process {rank} of {self.comm.size} failed: {texts[rank]}")
        return counts

    def __enter__(self) -> Self:
        self._told = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not self._told:
            self._exchange(FAILED, f"{type(error).__name__}: {error}")


def agreement(comm: Any) -> AbstractContextManager[Agreement | None]:
    """That of the argument `comm` of a call: a communicator of mpi4py, None, or the agreement of a call that makes this one."""
    if comm is None:
        return nullcontext()
    return comm if isinstance(comm, Agreement) else Agreement(comm)


def part_arrays(comm: Any, executable: Executable, total: int, first: int, like: Any) -> dict[str, np.ndarray]:
    """The arrays with a program's part of a batch of `total` samples: it has those from `first` on.

    They are in the memory of `like`, except the communicator, which is for the host. All processes call this.
    """
    dtype, place = executable.program.dtype, memory_of(like)
    executable.backend.join(comm)
    arrays = {
        "communicator": words_of(comm, dtype),
        "inverse_total": place.contiguous(np.array(1.0 / total, dtype)),
        "first_sample": place.contiguous(np.array(first, np.uint64)),
    }
    return {name: array for name, array in arrays.items() if name in executable.program.buffers}
