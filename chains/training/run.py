"""A training run: its steps and epochs, checks and records after each, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.program.settings import numbers_of
from chains.support.checks import whole
from chains.support.memory import memory_of
from chains.support.messages import counted, shown
from chains.support.progress import Progress
from chains.training.batches import MemberBatches, SourceBatches
from chains.training.checkpoint_writer import CheckpointWriter
from chains.training.ensemble_history import EnsembleHistory
from chains.training.evaluator import name_of
from chains.training.history import History
from chains.training.late_check import LateCheck
from chains.training.plan import Plan
from chains.training.processes import Processes
from chains.training.source_steps import SourceSteps
from chains.training.steps import UNLIMITED_STEPS, ArraySteps, DividedSteps, MemberSteps, TrainingSteps


@dataclass(frozen=True)
class TrainingState:
    """The state of training that a callback gets after an epoch.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,)
        The live parameters: training uses the values that a callback writes there.
    epoch : int
        Epochs finished in this call, from 1.
    history : History
        The history so far.
    state : array, shape (n_state,), optional
        The live state of the network.
    """

    net: Chain
    p: np.ndarray
    epoch: int
    history: History
    state: np.ndarray | None = None

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {self.history.latest(name):.4g}" for name in self.history.columns())
        return f"<{self.net!r} after {counted(self.epoch, 'epoch')}: {numbers}>"


# Called after each epoch. If it returns a text, training stops, with the text as the reason. A dictionary from members' numbers
# to texts stops these members of an ensemble. A callback with an attribute `epochs_at_once` may be called after that many
# epochs instead, so that full batches take less time.
Callback = Callable[[TrainingState], str | dict[int, str] | None]


class Run:
    """Does the steps of a plan and extends its history until it has all epochs; computes validation numbers, calls callbacks.

    Ctrl-C is answered between steps, and at any moment within users' functions.
    """

    def __init__(self, plan: Plan) -> None:
        given, history = plan.given, plan.history
        self._plan, self._history, self._epochs = plan, history, given.epochs
        self._evaluator, self._callbacks, self._interrupts = plan.evaluator, given.callbacks, plan.interrupts
        self._processes = plan.processes
        self._steps = steps = steps_of(plan)
        self._late = LateCheck(plan.unchecked, plan.trained) if plan.unchecked else None
        self._earlier_steps = history.steps
        follows = self._processes is not None and not self._processes.first  # another process shows progress and writes
        self._writer = None if given.checkpoint is None or follows else _writer(plan, steps)
        self._start = time.perf_counter() - history.position.seconds
        per_epoch = steps.per_epoch
        total = None if per_epoch is None else self._epochs * per_epoch
        self._bar = Progress(False if follows else given.progress, total, "step")
        self._tick = self._bar.update if self._bar.begun else None
        if self._tick is not None:
            self._tick(history.epochs * (per_epoch or 0) + steps.step)

    def go(self) -> None:
        """Train, and let the callbacks finish.

        Raises FloatingPointError if a loss, a learning rate or a parameter is not finite.
        """
        try:
            with self._interrupts:
                self._train_and_close()
        except KeyboardInterrupt:
            self._history.stopped = interrupted(self._history, self._processes)
        finally:
            if self._history.epochs:
                self._bar.show(_newest(self._history, self._epochs))
            self._bar.close()
        for callback in self._callbacks:
            finish = getattr(callback, "finish", None)
            if finish is not None:
                finish(self._training_state())

    def _train_and_close(self) -> None:
        """Train; then write the last checkpoint in any case, if all trained arrays are whole."""
        intact = False
        try:
            self._train()
            intact = True
        except BaseException as error:
            intact = isinstance(error, KeyboardInterrupt) or self._interrupts.allowed.failed  # not within a step
            if self._processes is not None:
                self._processes.leave(error)
            raise
        finally:
            self._steps.close()
            if self._steps.unchecked:
                self._check_data()
            self._note()
            if self._writer is not None and intact:
                self._writer.write()

    def _train(self) -> None:
        steps, history, writer, processes, interrupts = (
            self._steps, self._history, self._writer, self._processes, self._interrupts,
        )  # fmt: skip
        epoch_by_epoch = bool(self._evaluator.names or (writer and writer.watched))
        after_steps = [callback.on_batch_end for callback in self._callbacks if hasattr(callback, "on_batch_end")]
        if writer is not None:
            self._note()
            writer.begin()
        if steps.spoiled:  # they cannot be checked in the first epoch
            self._check_data()
        while True:
            epochs = 1 if epoch_by_epoch else self._epochs - history.epochs
            for callback in self._callbacks:
                epochs = min(epochs, getattr(callback, "epochs_at_once", 1))
            most, chunk = 1 if after_steps else UNLIMITED_STEPS, steps.chunk
            if writer is not None:
                epochs, most = min(epochs, writer.epochs_left()), min(most, writer.steps_left())
            if processes is not None:
                epochs, most, chunk = processes.agree((min(epochs, UNLIMITED_STEPS), most, chunk), history, interrupts)
            if history.epochs >= self._epochs or history.stopped:
                break
            done = steps.advance(epochs, most, chunk)
            if steps.spoiled:
                self._check_data()
            if self._tick is not None:
                self._tick(done)
            if after_steps:
                with interrupts.allowed:
                    for on_batch_end in after_steps:
                        on_batch_end(self._training_state(), steps.loss)
            if steps.finished:
                self._end_epoch()
            steps.check()
            if writer is not None and writer.due():
                steps.flush()
                self._note()
                writer.write()
            if processes is None:
                interrupts.check()
        steps.check_parameters(self._plan.p)

    def _check_data(self) -> None:
        """Check all data that were not checked before. Raises ValueError, with the trained arrays as they were."""
        late, self._late, self._steps.spoiled = self._late, None, False
        if late is not None:
            late()

    def _end_epoch(self) -> None:
        """Compute and record the validation numbers, and call the callbacks; unless the loss is not finite."""
        steps, history, evaluator, bar = self._steps, self._history, self._evaluator, self._bar
        sound = steps.sound
        numbers = {}
        if evaluator.names and sound:
            with self._interrupts.allowed:
                numbers = evaluator()
        losses = steps.take()
        history.loss += losses
        if evaluator.names:
            history.add(numbers or evaluator.nothing)
        now = time.perf_counter() - self._start
        share = (now - (history.seconds[-1] if history.seconds else 0.0)) / len(losses) if len(losses) > 1 else 0.0
        history.seconds += [now - share * later for later in reversed(range(len(losses)))]  # done together, in equal times
        if self._writer is not None and self._writer.watched and sound:
            steps.flush()
            self._note()
            self._writer.look()
        if self._callbacks and sound:
            history.steps, history.position = self._earlier_steps + steps.done, steps.position()
            with self._interrupts.allowed:
                for callback in self._callbacks:
                    self._stop(callback, callback(self._training_state()))
        if bar.due():
            bar.show(_newest(history, self._epochs))

    def _stop(self, callback: Callback, reason: Any) -> None:
        """End training, or the training of some members, if a callback gave a reason. Raises TypeError for anything else."""
        history = self._history
        if isinstance(history, EnsembleHistory) and isinstance(reason, dict):
            numbers = range(history.members)
            if not all(whole(m, 0) in numbers and isinstance(why, str) for m, why in reason.items()):
                raise TypeError(_returned(callback, reason, "texts by the numbers of members"))
            for member, text in reason.items():
                history.end(member, history.epochs, text)
        elif isinstance(reason, (str, type(None))):
            history.stopped = history.stopped or reason or ""
        else:
            raise TypeError(_returned(callback, reason, "a string to stop, or None"))

    def _note(self) -> None:
        """Record the position of the run."""
        self._history.steps = self._earlier_steps + self._steps.counted
        self._history.position = self._steps.position(time.perf_counter() - self._start)

    def _training_state(self) -> TrainingState:
        plan = self._plan
        return TrainingState(plan.given.net, plan.p, self._history.epochs, self._history, plan.state)


def steps_of(plan: Plan) -> TrainingSteps:
    """The steps of a plan, bound to its arrays. All processes agree on what they begin with."""
    given, start, batches, processes, network = plan.given, plan.start, plan.batches, plan.processes, plan.given.network
    bound = plan.step, plan.trained, given.optimizer, start.optimizer_state, start.position
    advice = network.declaration.advice
    if isinstance(batches, SourceBatches):
        return SourceSteps(batches, *bound, advice=advice, allowed=plan.interrupts.allowed)
    if isinstance(batches, MemberBatches):
        assert isinstance(plan.history, EnsembleHistory)
        return MemberSteps(plan.history, _optimizer_rows(plan), batches, *bound, advice=advice)
    if processes is None:
        return ArraySteps(batches, *bound, advice=advice, unchecked=plan.unchecked)
    steps = DividedSteps(processes.comm, batches, *bound, advice=advice)
    settings = {"net": given.net, "frozen": network.trainable, "loss": given.loss, "penalty": given.penalty}
    settings |= {"optimizer": given.optimizer, "epochs": given.epochs, "position": (steps.epoch, steps.step), **steps.settings}
    processes.begin(settings, {"p": plan.p, "state": plan.state, **batches.arrays, **steps.optimizer_state})
    return steps


def _optimizer_rows(plan: Plan) -> dict[str, Any]:
    """The inputs of a step for the numbers of the members' optimisers, a row for each; none if all share one."""
    optimizers, criterion = plan.given.optimizers, plan.batches.criterion
    if len(optimizers) == 1:
        return {}
    rows = [plan.step.program.tuned(numbers_of((criterion, optimizer))) for optimizer in optimizers]
    return {name: memory_of(plan.p).contiguous(np.stack([row[name] for row in rows])) for name in rows[0]}


def _writer(plan: Plan, steps: TrainingSteps) -> CheckpointWriter:
    given, start = plan.given, plan.start
    return CheckpointWriter(
        given.checkpoint, plan.watched, plan.p, plan.state, steps, plan.history, given.callbacks, start.run, start.saved
    )


def interrupted(history: History, processes: Processes | None = None) -> str:
    """The reason for a run that Ctrl-C ended."""
    where = "" if processes is None else processes.interrupted_in
    return f"interrupted by the user in epoch {history.epochs + 1}{where}"


def _returned(callback: Callback, reason: Any, wanted: str) -> str:
    return f"the callback {name_of(callback)} returned {shown(reason)}: return {wanted}"


def _newest(history: History, epochs: int) -> dict[str, str]:
    """The numbers of the last epoch, for people."""
    numbers = {name: f"{history.latest(name):.4g}" for name in history.columns() if name != "seconds"}
    return {"epoch": f"{history.epochs}/{epochs}", **numbers}
