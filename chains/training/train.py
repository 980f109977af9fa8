"""The training loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.chain import Chain
from chains.losses import Loss
from chains.network import checks, ensembles, executables
from chains.network.call import Call, state_of
from chains.network.network import Network, network_of
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.settings import numbers_of, structure
from chains.support import arguments
from chains.support.checks import check_count, check_flags, check_is, with_hints
from chains.support.memory import memory_of
from chains.support.messages import counted, shown
from chains.training.batches import ArrayBatches, SourceBatches, check_source, from_arrays, source_epoch, source_settings
from chains.training.checkpoint import Checkpoint, as_checkpoint
from chains.training.checkpoint_writer import CheckpointWriter, watched_quantity
from chains.training.ensemble_history import EnsembleHistory
from chains.training.evaluator import Evaluator, Metric
from chains.training.folder_lock import FolderLock
from chains.training.history import History
from chains.training.interrupts import Interrupts
from chains.training.processes import check_divided, processes_of
from chains.training.resume import Resume, begin
from chains.training.run import Callback, Run, interrupted
from chains.training.source_steps import SourceSteps
from chains.training.steps import ArraySteps, Steps


@with_hints
def train(
    net: Chain, p: np.ndarray, x: Any, t: Any, loss: Loss, optimizer: Optimizer | Sequence[Optimizer], *,
    epochs: int = 1, batch_size: int | None = None, seed: int | Sequence[int] = 0, shuffle: bool = True,
    drop_last: bool = False, weights: Any = None, lengths: Any = None, penalty: Penalty | None = None,
    state: np.ndarray | None = None, validation: tuple[Any, Any] | None = None, metrics: Sequence[Metric] = (),
    progress: bool | None = None, callbacks: Sequence[Callback] = (), check_finite: bool = True,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None, resume: Resume | None = None, comm: Any = None,
) -> History:  # fmt: skip
    """Train a network or an ensemble. The parameters, and the state if there is one, are updated in place.

    In an ensemble, with `p` (members, n_params), each member is trained with the bits that it would have alone. If its loss is
    not finite or a callback ends it, the others continue. `x`, `t`, `weights`, `lengths` and `validation` are shared, or have
    an axis of members in front; `state` always has this axis. Each member has its own seed, and may have its own optimiser.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,) or (members, n_params), float32 or float64
        The parameters, updated in place. Their type is that of the computation.
    x : array, shape (samples, *input_shape), or iterable
        The inputs. Or a source of batches (x, t) or (x, t, weights), such as `data.Batches` or a list, with `t` None: an epoch
        is a pass over the source. Then leave out `batch_size`, `shuffle`, `drop_last` and `weights`. A batch that does not fit
        is refused before its step; the error names its number.
    t : array or None
        The targets, in the shape that the loss takes.
    loss : Loss
        The loss to minimise, together with the `penalty`.
    optimizer : Optimizer, or a list of them
        The rule of a step. A list has one for each member of an ensemble: of one kind, with different numbers.
    epochs : int
        The number of passes over all samples; with a history or a folder, see `resume`.
    batch_size : int, optional
        Samples a step; None for all of them. A last, smaller batch is used too, unless `drop_last` is set.
    seed : int, or a list of them
        The seed of the order of samples, of dropout and of noise. The same seed gives the same run. In an ensemble, one number
        stands for the seeds `member_seeds` of the members; a list has one for each.
    shuffle, drop_last : bool
        Whether every epoch has a new order; whether a last, smaller batch is left out.
    weights : array, shape (samples,), or that of `t` or what broadcasts to it, optional
        Factors of the samples' losses, or of their terms, as in `Chain.value_and_grad`. A target of weight 0 may be NaN. For an
        ensemble, (members, samples) are weights of each member.
    lengths : array, shape (samples,), optional
        The number of steps of each sample, for recurrent networks.
    penalty : Penalty, optional
        Added to the loss.
    state : array, shape (n_state,)
        The state of a network that has one, updated in place.
    validation : (x, t), (x, t, lengths) or (x, t, lengths, weights), optional
        Data for the loss (with the penalty) and the `metrics` after each epoch; `lengths` and `weights` may be None. Metrics
        get all targets, also those of weight 0.
    metrics : sequence of functions of targets and outputs
        Custom metrics are first called after the first epoch.
    progress : bool, optional
        Whether to show a bar. None shows one on terminals and in notebooks, True lines of text elsewhere.
    callbacks : sequence of callables
        Called with a `TrainingState` after each epoch. A callback returns None, or a text to stop the training. Its method
        `begin`, if any, is called before the first step with the names of the recorded quantities, its method `finish` at the
        end with a `TrainingState`.
    check_finite : bool
        Whether to refuse an infinity or NaN in the data, `p` or `state`. They are read once for this check.
    checkpoint : path or Checkpoint, optional
        A folder for checkpoints, or a `Checkpoint` with their interval. Only one training at a time may write to a folder;
        another is refused.
    resume : History or path, optional
        A history: training continues with identical bits where the call that returned it ended, even within an epoch.
        `optimizer` must be the same, `p` and `state` those of that call; `epochs` are further epochs. Or a folder of
        checkpoints: `p` and `state` are read from the last one; `epochs` and the history count the whole run. An empty folder
        that is also `checkpoint` begins a run, so that the same call starts and resumes it.
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the work. All call `train` with the same arguments, and each computes its part of every batch.
        All end with the same parameters; they differ from those of a single process by rounding only. The first process shows
        progress and writes checkpoints. If one fails or is interrupted, all end.

    Returns
    -------
    History
        One entry for each epoch; for an ensemble an `EnsembleHistory`. Ctrl-C ends training after a step: `p` and `state` are
        those of that step, and ``history.stopped`` has the reason.

    Raises
    ------
    FloatingPointError
        If a loss or the final parameters are not finite, and before a step for which a schedule gives a negative or infinite
        rate. The error names the step; its attribute `history` is the history.
    TypeError, ValueError
        For arguments that do not fit, before anything is written.
    OSError
        If the first checkpoint of a new run cannot be written. Later failures are warnings.
    """
    with processes_of(comm) as processes, ExitStack() as held:
        # The arguments, one by one.
        network = network_of(net)
        checks.check_order(network, p, x, "train(net, p, x, t, loss, optimizer)")
        p, seed, optimizers = _check_trained(network, p, seed, optimizer, comm)
        optimizer = optimizers[0]
        checks.check_loss(loss)
        check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        arguments.check_functions("callbacks", callbacks, "functions to call with a `TrainingState`", 1)
        arguments.check_functions("metrics", metrics, "functions of targets and outputs", 2)
        epochs = check_count("epochs", epochs, 0)
        check_flags(shuffle=shuffle, drop_last=drop_last, check_finite=check_finite)
        if progress is not None:
            check_flags(progress=progress)
        checkpoint = as_checkpoint(checkpoint)
        if checkpoint is not None and (processes is None or processes.first):
            held.enter_context(FolderLock(checkpoint.folder))
        # The history to extend, the state of the optimiser, and the position to continue from.
        start = begin(net, p, loss, optimizer, resume, checkpoint)
        history = start.history
        try:
            # The batches, and the program of a step on them.
            batches: ArrayBatches | SourceBatches
            if t is None:
                decided = {"batch_size": batch_size, "shuffle": not shuffle, "drop_last": drop_last}
                check_source(x, p, comm, **decided, weights=weights, lengths=lengths)
                position = start.position_in(source_settings(x, seed), source_epoch(x))
                batches = SourceBatches(
                    x, network, p, loss, penalty,
                    epochs=epochs - history.epochs, position=position, check_finite=check_finite,
                )  # fmt: skip
            else:
                batches = from_arrays(
                    network, p, x, t, loss, penalty,
                    weights=weights, lengths=lengths, batch_size=batch_size, drop_last=drop_last, shuffle=shuffle, seed=seed,
                )  # fmt: skip
                position = start.position_in(batches.settings)
                if processes is not None:
                    check_divided(batches, optimizer, processes.comm.size)
                if lengths is not None and isinstance(validation, (tuple, list)) and (*validation, None)[2] is None:
                    raise ValueError("`validation` must be (x, t, lengths) with `lengths`: its samples would have none")
            step = executables.training_step(network, p, batches.criterion, optimizer, parallel=processes is not None)
            # The checks that need the program or the data.
            state = _check_state(network, p, step, state, batches)
            evaluator = Evaluator(net, p, state, loss, penalty, validation, metrics, history)
            trained, read = {"p": p} if state is None else {"p": p, "state": state}, {**batches.arrays, **evaluator.arrays}
            for name, array in trained.items():
                arguments.check_apart(name, array, read)
            if check_finite:
                numbers = {**batches.counted_numbers(network), **evaluator.counted_numbers()}
                arguments.check_finite(p.dtype, **start.vectors(p, state), **numbers)
            names = ["loss", *evaluator.names, "seconds"]
            start.check_columns(names)
            watched = "" if checkpoint is None else watched_quantity(checkpoint, names)
            # From here on, things are written.
            for callback in callbacks:
                if hasattr(callback, "begin"):
                    callback.begin(names)
            start.load_callbacks(callbacks)
            start.restore(p, state)
            # The step is bound to the arrays, and the run does it until the epochs are over.
            interrupts, advice = Interrupts(), network.declaration.advice
            steps: Steps
            if isinstance(batches, SourceBatches):
                steps = SourceSteps(
                    batches, step, trained, optimizer, start.optimizer_state, position,
                    advice=advice, allowed=interrupts.allowed,
                )  # fmt: skip
            else:
                steps = ArraySteps(
                    batches, step, trained, optimizer, start.optimizer_state, position,
                    advice=advice, comm=None if processes is None else processes.comm,
                    history=history if isinstance(history, EnsembleHistory) else None,
                    rows=_optimizer_rows(p, step, batches.criterion, optimizers),
                )  # fmt: skip
            if processes is not None:
                settings: dict[str, Any] = {"net": net, "frozen": network.trainable, "loss": loss, "penalty": penalty}
                settings |= {"optimizer": optimizer, "epochs": epochs, "position": (steps.epoch, steps.step), **steps.settings}
                processes.begin(settings, {"p": p, "state": state, **batches.arrays, **steps.optimizer_state})
                if not processes.first:
                    checkpoint, progress = None, False
            writer = None
            if checkpoint is not None:
                writer = CheckpointWriter(checkpoint, watched, p, state, steps, history, callbacks, start.run, start.saved)
            Run(net, p, state, steps, history, epochs, evaluator, callbacks, progress, interrupts, writer, processes).go()
        except KeyboardInterrupt as error:
            if processes is not None:
                processes.leave(error)
            start.restore(p, state)
            history.stopped = history.stopped or interrupted(history, processes)
        except FloatingPointError as error:
            error.history = history  # type: ignore[attr-defined]
            raise
        return history


def _check_trained(network: Network, p: Any, seed: Any, optimizer: Any, comm: Any) -> tuple[np.ndarray, Any, list[Optimizer]]:
    """These arguments of train: `p`, the seed or a list of seeds, and a list of one optimiser or one for each member.

    Raises TypeError or ValueError if they do not fit.
    """
    if not checks.is_ensemble(p):
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


def _check_state(
    network: Network, p: np.ndarray, step: Executable, state: Any, batches: ArrayBatches | SourceBatches
) -> np.ndarray | None:
    """The state, if the network has one. Raises TypeError or ValueError if it is missing or does not fit."""
    members = batches.members
    if members is None or state is None:
        arrays = {"p": p} if members is not None else {"p": p, **batches.arrays}
        return state_of(Call(network, {"p": p, "state": state}), step.program, arrays).get("state")
    ensembles.add_state(Call(network, {"p": p, "state": state}), members, updated=True)
    return members.arrays.pop("state")


def _optimizer_rows(p: np.ndarray, step: Executable, criterion: Criterion, optimizers: list[Optimizer]) -> dict[str, Any]:
    """The inputs of a step for the numbers of the members' optimisers, a row for each; none if all share one."""
    if len(optimizers) == 1:
        return {}
    rows = [step.program.tuned(numbers_of((criterion, optimizer))) for optimizer in optimizers]
    return {name: memory_of(p).contiguous(np.stack([row[name] for row in rows])) for name in rows[0]}
