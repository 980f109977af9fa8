"""The executables of a network, recorded or found, and the arrays that calls run them on.

These are the caller's data, the parameters, the state, random numbers, the numbers that processes share, and the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

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


def run(
    network: Network, executable: Executable, p: np.ndarray, data: dict[str, Any], outs: Mapping[str, Output],
    state: Any = None, training: bool = False, seed: int = 0, processes: Any = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Run an executable on checked parameters and data. Returns its outputs, by name.

    All other arguments are checked before anything is written. The data are copied to the memory of the parameters if
    necessary.
    """
    batch, memory = len(data["x"]), memory_of(p)
    arrays = {**arguments.to_device_of(p, data), "p": p}
    total, first = (batch, 0) if processes is None else part_of(processes, batch)
    arrays |= state_for(network, executable.program, state, p.dtype, training, arrays, total)
    results: dict[str, np.ndarray] = {}
    for name, (shape, given, called) in outs.items():
        if given is None:
            results[name] = memory.empty(shape, p.dtype)
        else:
            results[name] = arguments.check_out(given, shape, p.dtype, arrays, called)
            arrays[called] = given  # no program has a buffer of this name; further outputs may not overlap it
    if processes is not None:
        arrays |= part_arrays(processes, executable, total, first, p)
    arrays |= random_numbers(executable, seed, p)
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
    network: Network, program: Program, state: Any, dtype: np.dtype[Any] | None, training: bool, inputs: dict[str, np.ndarray],
    batch: int | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The checked state by buffer name, for a run of a program on these inputs. The batch is checked too.

    `batch` is the size of the whole batch, if the inputs are a part of it.
    """
    if state is None and network.is_stateless:
        return {}
    if training:
        network.check_batch(batch or len(inputs["x"]))
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


def check_comm(comm: Any) -> Any:
    """Our duplicate of a caller's communicator. Raises TypeError for anything else."""
    return own(check_communicator(comm))


def part_of(comm: Any, samples: int) -> tuple[int, int]:
    """The number of samples of all processes, and of those before this process."""
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([samples], np.int64), counts)
    return int(counts.sum()), int(counts[: comm.rank].sum())


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
