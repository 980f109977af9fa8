"""What one network and the members of an ensemble have apart in training: their seeds, optimisers and states."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Executable
from chains.network import ensembles, runs
from chains.network.network import Network
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.program.settings import numbers_of, structure
from chains.support import arguments
from chains.support.checks import check_is
from chains.support.memory import memory_of
from chains.support.messages import counted, shown
from chains.training.batches import ArrayBatches, SourceBatches


def check_trained(network: Network, p: Any, seed: Any, optimizer: Any, comm: Any) -> tuple[np.ndarray, Any, list[Optimizer]]:
    """These arguments of train: `p`, the seed or a list of seeds, and a list of one optimiser or one for each member.

    Raises TypeError or ValueError where they do not fit.
    """
    if not ensembles.is_ensemble(p):
        p, seed = arguments.check_trained(p, network.n_params), arguments.check_seed(seed)
        return p, seed, [optimizer]
    if comm is not None:
        raise ValueError("`comm` is for one network: the members of an ensemble need no messages, divide them instead")
    p = ensembles.check_members(p, network.n_params, trained=True)
    return p, _seeds(seed, len(p)), _optimizers(optimizer, len(p))


def _seeds(seed: Any, count: int) -> int | list[int]:
    if not isinstance(seed, (list, tuple, range, np.ndarray)):
        return arguments.check_seed(seed, f", or one for each of {counted(count, 'member')}")
    _check_count("seed", seed, count)
    return [arguments.check_seed(each.item() if isinstance(each, np.generic) else each) for each in seed]


def _optimizers(optimizer: Any, count: int) -> list[Optimizer]:
    if not isinstance(optimizer, (list, tuple)):
        check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3), or one for each member")
        return [optimizer]
    _check_count("optimizer", optimizer, count)
    first = optimizer[0]
    for number, each in enumerate(optimizer):
        check_is(f"optimizer[{number}]", each, Optimizer, "an optimiser such as Adam(1e-3)")
        if structure(each) != structure(first):
            raise ValueError(
                f"`optimizer` must hold optimisers that differ in numbers alone, none of them zero, since all share one "
                f"program: optimizer[{number}] is {each!r}, but optimizer[0] is {first!r}"
            )
    return list(optimizer)


def _check_count(name: str, given: Any, count: int) -> None:
    if len(given) != count:
        raise ValueError(f"`{name}` (={shown(given)}) must be one, or one for each of {counted(count, 'member')}")


def check_state(
    network: Network, p: np.ndarray, step: Executable, state: Any, batches: ArrayBatches | SourceBatches
) -> np.ndarray | None:
    """The state, if the network has one. Raises TypeError or ValueError where it does not fit, or is missing."""
    members = batches.members
    if members is None or state is None:
        arrays = {"p": p} if members is not None else {"p": p, **batches.arrays}
        return runs.state_for(network, step.program, state, p.dtype, False, arrays).get("state")
    ensembles.add_state(members, network, state, p, True)
    return members.arrays.pop("state")


def optimizer_rows(p: np.ndarray, step: Executable, objective: Criterion, optimizers: list[Optimizer]) -> dict[str, np.ndarray]:
    """The inputs of a step for the numbers of the members' optimisers, a row for each; none if all share one."""
    if len(optimizers) == 1:
        return {}
    rows = [step.program.tuned(numbers_of((objective, optimizer))) for optimizer in optimizers]
    return {name: memory_of(p).contiguous(np.stack([row[name] for row in rows])) for name in rows[0]}
