"""The plan of a training: the arguments of `train`, checked, with everything that a run needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.chain import Chain
from chains.losses import Loss
from chains.network import checks, ensembles, executables
from chains.network.call import Call
from chains.network.network import Network, network_of
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.settings import structure
from chains.support import arguments
from chains.support.checks import check_count, check_flags, check_is
from chains.support.messages import counted, shown
from chains.training.batches import ArrayBatches, SourceBatches, check_source, from_arrays, source_epoch, source_settings
from chains.training.checkpoint import as_checkpoint
from chains.training.checkpoint_writer import watched_quantity
from chains.training.ensemble_history import EnsembleHistory
from chains.training.evaluator import Evaluator
from chains.training.history import History
from chains.training.interrupts import Interrupts
from chains.training.processes import Processes, check_divided
from chains.training.resume import Start

LATE_BYTES = 1 << 20  # smaller data are checked in less than a tenth of a millisecond


class Given:
    """The arguments of `train` by name, which the checks replace: lists of optimisers and seeds, counts, a checkpoint."""

    net: Chain
    p: Any
    x: Any
    t: Any
    loss: Loss
    optimizer: Any
    epochs: Any
    batch_size: Any
    seed: Any
    shuffle: Any
    drop_last: Any
    weights: Any
    lengths: Any
    penalty: Penalty | None
    state: Any
    validation: Any
    metrics: Any
    progress: Any
    callbacks: Any
    check_finite: Any
    checkpoint: Any
    resume: Any
    comm: Any

    def __init__(self, arguments: dict[str, Any]) -> None:
        vars(self).update(arguments)
        self.network: Network = network_of(self.net)
        self.optimizers: list[Optimizer] = []  # one, or one for each member

    def call(self) -> Call:
        """The arguments as those of a call."""
        return Call(self.network, vars(self))


@dataclass
class Plan:
    """Everything that a run needs: the `given` arguments, its start, batches, the program of a step, the work after epochs."""

    given: Given
    start: Start
    batches: ArrayBatches | SourceBatches
    step: Executable
    state: np.ndarray | None
    evaluator: Evaluator
    watched: str  # the quantity whose best epoch is kept, or empty
    interrupts: Interrupts
    processes: Processes | None
    unchecked: dict[str, np.ndarray] = field(default_factory=dict)  # data whose numbers are checked in the first epoch

    @property
    def p(self) -> np.ndarray:
        """The parameters, updated in place."""
        p: np.ndarray = self.given.p
        return p

    @property
    def history(self) -> History:
        """The history to extend."""
        return self.start.history

    @property
    def members(self) -> EnsembleHistory | None:
        """That of an ensemble, which knows which members still train."""
        return self.history if isinstance(self.history, EnsembleHistory) else None

    @property
    def trained(self) -> dict[str, np.ndarray]:
        """The arrays that are updated in place."""
        return {"p": self.p} if self.state is None else {"p": self.p, "state": self.state}

    def begin(self) -> None:
        """Tell the callbacks, and restore what a checkpoint has. From here on, things are written."""
        for callback in self.given.callbacks:
            if hasattr(callback, "begin"):
                callback.begin(["loss", *self.evaluator.names, "seconds"])
        self.start.load_callbacks(self.given.callbacks)
        self.start.restore(self.p, self.state)


def check_arguments(given: Given) -> None:
    """The arguments one by one. Raises TypeError or ValueError if one is invalid."""
    network = given.network
    checks.check_order(network, given.p, given.x, "train(net, p, x, t, loss, optimizer)")
    _check_trained(given)
    checks.check_loss(given.loss)
    check_is("optimizer", given.optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    arguments.check_functions("callbacks", given.callbacks, "functions to call with a `TrainingState`", 1)
    arguments.check_functions("metrics", given.metrics, "functions of targets and outputs", 2)
    given.epochs = check_count("epochs", given.epochs, 0)
    check_flags(shuffle=given.shuffle, drop_last=given.drop_last, check_finite=given.check_finite)
    if given.progress is not None:
        check_flags(progress=given.progress)
    given.checkpoint = as_checkpoint(given.checkpoint)


def check(given: Given, start: Start, processes: Processes | None) -> Plan:
    """The plan from checked arguments and a start. Raises TypeError or ValueError where they do not fit together."""
    network, p = given.network, given.p
    call = given.call()
    batches = _source(given, start) if given.t is None else _arrays(call, given, start, processes)
    step = executables.training_step(network, p, batches.criterion, given.optimizer, parallel=processes is not None)
    state = given.state = batches.check_state(call, step.program)
    history = start.history
    evaluator = Evaluator(given.net, p, state, given.loss, given.penalty, given.validation, given.metrics, history)
    plan = Plan(given, start, batches, step, state, evaluator, "", Interrupts(), processes)
    read = {**batches.arrays, **evaluator.arrays}
    for name, array in plan.trained.items():
        arguments.check_apart(name, array, read)
    if given.check_finite:
        numbers = {**batches.counted_numbers(network), **evaluator.counted_numbers()}
        if late := _unchecked(plan, numbers):
            plan.unchecked = late
            numbers = {name: array for name, array in numbers.items() if not any(array is each for each in late.values())}
        arguments.check_finite(p.dtype, **start.vectors(p, state), **numbers)
    names = ["loss", *evaluator.names, "seconds"]
    start.check_columns(names)
    plan.watched = "" if given.checkpoint is None else watched_quantity(given.checkpoint, names)
    return plan


def _unchecked(plan: Plan, numbers: dict[str, Any]) -> dict[str, np.ndarray]:
    """The large data whose numbers can be checked in the first epoch, as its batches are taken (see `LateCheck`).

    There are none if an earlier part of this epoch is done, or if others see the parameters before its end.
    """
    given, batches, start = plan.given, plan.batches, plan.start
    found: dict[str, np.ndarray] = {}
    for name, array in batches.arrays.items():
        if type(array) is not np.ndarray or array.nbytes < LATE_BYTES or array.dtype not in arguments.DTYPES:
            continue
        if numbers[name] is array and not any(array is other for other in found.values()):
            found[name] = array
    if not found or type(batches) is not ArrayBatches or batches.batch_size == batches.samples:
        return {}
    seen = [plan.processes, given.checkpoint, start.saved]
    seen += [callback for callback in given.callbacks if hasattr(callback, "begin") or hasattr(callback, "on_batch_end")]
    if start.position.step or given.epochs <= start.history.epochs or any(each is not None for each in seen):
        return {}
    return found


def _source(given: Given, start: Start) -> SourceBatches:
    """The batches of a source."""
    x = given.x
    decided = {"batch_size": given.batch_size, "shuffle": not given.shuffle, "drop_last": given.drop_last}
    check_source(x, given.p, given.comm, **decided, weights=given.weights, lengths=given.lengths)
    position = start.position_in(source_settings(x, given.seed), source_epoch(x))
    return SourceBatches(
        x, given.network, given.p, given.loss, given.penalty,
        epochs=given.epochs - start.history.epochs, position=position, check_finite=given.check_finite,
    )  # fmt: skip


def _arrays(call: Call, given: Given, start: Start, processes: Processes | None) -> ArrayBatches:
    """The batches of arrays."""
    batches = from_arrays(call, given.batch_size, drop_last=given.drop_last, shuffle=given.shuffle, seed=given.seed)
    start.position_in(batches.settings)
    if processes is not None:
        check_divided(batches, given.optimizer, processes.comm.size)
    validation = given.validation
    if given.lengths is not None and isinstance(validation, (tuple, list)) and (*validation, None)[2] is None:
        raise ValueError("`validation` must be (x, t, lengths) with `lengths`: its samples would have none")
    return batches


def _check_trained(given: Given) -> None:
    """`p`, the seed or a list of seeds, and the optimiser or a list of one for each member."""
    size, optimizer = given.network.n_params, given.optimizer
    if not checks.is_ensemble(given.p):
        given.p, given.seed = arguments.check_trained(given.p, size), arguments.check_seed(given.seed)
        given.optimizers = [optimizer]
        return
    if given.comm is not None:
        raise ValueError("`comm` is for one network: the members of an ensemble need no messages, divide them instead")
    given.p = ensembles.check_members(given.p, size, trained=True)
    given.seed, given.optimizers = _seeds(given.seed, len(given.p)), _optimizers(optimizer, len(given.p))
    given.optimizer = given.optimizers[0]


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
