"""A training run: its steps and epochs, checks and records after each, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from chains.chain import Chain
from chains.support.checks import whole
from chains.support.messages import counted, shown
from chains.support.progress import Progress
from chains.training.ensemble_history import EnsembleHistory
from chains.training.history import History
from chains.training.interrupts import Interrupts
from chains.training.judge import Judge, name_of
from chains.training.member_judge import MemberJudge
from chains.training.processes import Processes
from chains.training.saver import Saver
from chains.training.shared_steps import SharedSteps
from chains.training.steps import UNLIMITED_STEPS, Steps


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
    """Does `steps` and extends `history` until it has `epochs`; computes validation numbers and calls the callbacks.

    Ctrl-C is answered between steps, and at any moment within users' functions.
    """

    def __init__(
        self,
        net: Chain,
        p: np.ndarray,
        state: np.ndarray | None,
        steps: Steps,
        history: History,
        epochs: int,
        judge: Judge | MemberJudge,
        callbacks: Sequence[Callback],
        progress: bool | None,
        saver: Callable[..., Saver] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._net, self._p, self._state = net, p, state
        self._steps, self._history, self._epochs = steps, history, epochs
        self._judge, self._callbacks, self._processes = judge, callbacks, processes
        self._earlier_steps = history.steps
        self._start = time.perf_counter() - history.position.seconds
        per_epoch = steps.per_epoch
        self._saver = None if saver is None else saver(p, state, steps, history, callbacks, note=self._note)
        self._bar = Progress(progress, None if per_epoch is None else epochs * per_epoch, "step")
        self._tick = self._bar.update if self._bar.begun else None
        if self._tick is not None:
            self._tick(history.epochs * (per_epoch or 0) + steps.step)

    def go(self) -> None:
        """Train. Raises FloatingPointError where a loss, a learning rate or a parameter is no finite number."""
        try:
            with Interrupts() as interrupts:
                self._steps.allowed = allowed = interrupts.allowed
                between = False  # whether between steps, where all trained arrays are whole
                try:
                    self._train(interrupts)
                    between = True
                except BaseException as error:
                    between = isinstance(error, KeyboardInterrupt)
                    if self._processes is not None:
                        self._processes.leave(error)
                    raise
                finally:
                    self._steps.close()
                    self._note()
                    if self._saver is not None and (between or allowed.failed):
                        self._saver.write()
        except KeyboardInterrupt:
            self._history.stopped = interrupted(self._history, self._processes)
        finally:
            self._bar.close()

    def finish(self) -> None:
        """Let the callbacks finish."""
        for callback in self._callbacks:
            finish = getattr(callback, "finish", None)
            if finish is not None:
                finish(self._seen())

    def _train(self, interrupts: Interrupts) -> None:
        steps, history, tick = self._steps, self._history, self._tick
        saver, most = self._saver, UNLIMITED_STEPS
        one_by_one = bool(self._judge.names or (saver and saver.one_by_one))
        each_step = [callback.on_batch_end for callback in self._callbacks if hasattr(callback, "on_batch_end")]
        if saver is not None:
            saver.begin()
        while True:
            left = min(
                1 if one_by_one else self._epochs - history.epochs, *map(_epochs_at_once, self._callbacks), UNLIMITED_STEPS
            )
            if saver is not None:
                epochs, most = saver.limits()
                left = min(left, epochs)
            most = 1 if each_step else most
            if self._processes is not None:
                assert isinstance(steps, SharedSteps)
                left, most, steps.chunk = self._processes.agree((left, most, steps.chunk), history, interrupts)
            if history.epochs >= self._epochs or history.stopped:
                break
            done = steps.advance(left, most)
            if tick is not None:
                tick(done)
            if each_step:
                with interrupts.allowed:
                    for on_batch_end in each_step:
                        on_batch_end(self._seen(), steps.loss)
            if steps.finished:
                self._end_epoch(interrupts.allowed)
            steps.check()
            if saver is not None and saver.due():
                saver.write()
            if self._processes is None:
                interrupts.check()
        steps.check_parameters(self._p)

    def _end_epoch(self, allowed: AbstractContextManager[object]) -> None:
        """Compute and record the validation numbers, and call the callbacks; unless the loss is not finite."""
        steps, history, bar = self._steps, self._history, self._bar
        sound = steps.sound
        judgement = {}
        if self._judge.names and sound:
            with allowed:
                judgement = self._judge()
        losses = steps.take()
        history.loss += losses
        if self._judge.names:
            history.add(judgement or self._judge.nothing)
        history.seconds += [time.perf_counter() - self._start] * len(losses)
        if self._saver is not None and sound:
            self._saver.look()
        if self._callbacks and sound:
            history.steps, history.position = self._earlier_steps + steps.done, steps.position()
            with allowed:
                for callback in self._callbacks:
                    self._end(_reason(callback, self._seen(), history))
        if bar.due() or history.epochs == self._epochs:
            bar.show(_newest(history, self._epochs))

    def _end(self, reason: str | dict[int, str]) -> None:
        """End training, or the training of some members, if a callback gave a reason."""
        history = self._history
        if isinstance(reason, str):
            history.stopped = history.stopped or reason
        elif isinstance(history, EnsembleHistory):
            for member, text in reason.items():
                history.end(member, history.epochs, text)

    def _note(self) -> None:
        """Record the position of the run."""
        self._history.steps = self._earlier_steps + self._steps.counted
        self._history.position = self._steps.position(time.perf_counter() - self._start)

    def _seen(self) -> TrainingState:
        return TrainingState(self._net, self._p, self._history.epochs, self._history, self._state)


def interrupted(history: History, processes: Processes | None = None) -> str:
    """The reason for a run that Ctrl-C ended."""
    where = "" if processes is None else processes.interrupted_in
    return f"interrupted by the user in epoch {history.epochs + 1}{where}"


def _epochs_at_once(callback: Callback) -> int:
    return getattr(callback, "epochs_at_once", 1)


def _reason(callback: Callback, state: TrainingState, history: History) -> str | dict[int, str]:
    """A callback's reason to stop training, or to stop some members of an ensemble; empty if it gives none.

    Raises TypeError if it returns anything else.
    """
    reason = callback(state)
    if isinstance(history, EnsembleHistory) and isinstance(reason, dict):
        if all(whole(m, 0) is not None and m < history.members and isinstance(why, str) for m, why in reason.items()):
            return reason
        raise TypeError(f"the callback {name_of(callback)} returned {shown(reason)}: return texts by the numbers of members")
    if not isinstance(reason, (str, type(None))):
        raise TypeError(f"the callback {name_of(callback)} returned {shown(reason)}: return a string to stop, or None")
    return reason or ""


def _newest(history: History, epochs: int) -> dict[str, str]:
    """The numbers of the last epoch, for people."""
    numbers = {name: f"{history.latest(name):.4g}" for name in history.columns() if name != "seconds"}
    return {"epoch": f"{history.epochs}/{epochs}", **numbers}
