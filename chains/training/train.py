"""The training loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.support.checks import with_hints
from chains.training.checkpoint import Checkpoint
from chains.training.evaluator import Metric
from chains.training.folder_lock import FolderLock
from chains.training.history import History
from chains.training.plan import Given, check, check_arguments
from chains.training.processes import processes_of
from chains.training.resume import Resume, begin
from chains.training.run import Callback, Run, interrupted


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
        Whether to refuse an infinity or NaN in the data, `p` or `state`. They are read once for this check. Large data are
        checked in the first epoch, as batches are taken. If they are refused there, `p` and `state` are as they were.
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
    arguments = dict(locals())
    with processes_of(comm) as processes, ExitStack() as held:
        given = Given(arguments)
        check_arguments(given)
        if given.checkpoint is not None and (processes is None or processes.first):
            held.enter_context(FolderLock(given.checkpoint.folder))
        # The history to extend, the state of the optimiser, and the position to continue from.
        start = begin(net, given.p, loss, given.optimizer, resume, given.checkpoint)
        history = start.history
        try:
            plan = check(given, start, processes)
            plan.begin()
            Run(plan).go()
        except KeyboardInterrupt as error:
            if processes is not None:
                processes.leave(error)
            start.restore(given.p, given.state)
            history.stopped = history.stopped or interrupted(history, processes)
        except FloatingPointError as error:
            error.history = history  # type: ignore[attr-defined]
            raise
        return history
