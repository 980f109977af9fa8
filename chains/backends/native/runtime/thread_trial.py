"""Regular trials of whether steps are faster with several threads or with one.

The answer cannot be known beforehand: it depends on the other load of the processors, and two processors of a virtual machine
may be one core. Results are the same to the bit.

A trial is a few short runs in turns. The fastest run of each way counts, so that an interruption does not decide. Workers have
fallen asleep during a run alone, and take up to a millisecond to wake: the first run together after it does not count.
"""

from __future__ import annotations

FIRST_WAIT_SECONDS = 0.05  # between two trials; doubled after each trial that changes nothing, up to:
LONGEST_WAIT_TOGETHER_SECONDS, LONGEST_WAIT_ALONE_SECONDS = 0.2, 0.5
TRIAL_SECONDS = 0.001  # length of a run of a trial, but at least one step; a quarter in short calls
STEPS_BEFORE_TRIAL = 200  # fewest steps between trials, so that a trial of long steps costs little
COUNTED_SECONDS = 1e-4  # shorter calls do not count: their start takes too large a part of the time
CHANGE_BELOW = 0.95  # change sides where the other way takes less than this part of the time
TURNS = ((True, False), (True, True), (False, True)) * 2  # the runs of a trial: whether together, and whether the time counts


class ThreadTrial:
    """Measured seconds of steps, by several threads together and by one alone. Several callers may share one trial."""

    def __init__(self) -> None:
        self.together = True
        self._since = 0, 0.0  # steps since the last trial, and their seconds
        self._wait = FIRST_WAIT_SECONDS
        self._pause = FIRST_WAIT_SECONDS  # time on one thread after several were found slower; longer each time

    def trial(self, steps: int) -> int:
        """How many of the coming steps to do in each of the `TURNS`; 0 for no trial."""
        before, seconds = self._since
        if before < STEPS_BEFORE_TRIAL or seconds < self._wait:
            return 0
        count, most = max(1, int(TRIAL_SECONDS * before / seconds)), steps // len(TURNS)
        return count if count <= most else most if most * seconds / before >= 0.25 * TRIAL_SECONDS else 0

    def note(self, steps: int, seconds: float) -> None:
        """Record the time that steps took outside of a trial."""
        before, elapsed = self._since
        if seconds > COUNTED_SECONDS:
            self._since = before + steps, elapsed + seconds

    def decide(self, together: float, alone: float) -> None:
        """Change sides if the other way was faster in a trial: the least seconds of a run of each."""
        better = alone < CHANGE_BELOW * together if self.together else together < CHANGE_BELOW * alone
        if self.together:
            self._wait = self._pause if better else min(LONGEST_WAIT_TOGETHER_SECONDS, 2 * self._wait)
            self._pause = min(LONGEST_WAIT_ALONE_SECONDS, 2 * self._pause) if better else FIRST_WAIT_SECONDS
        else:
            self._wait = FIRST_WAIT_SECONDS if better else min(LONGEST_WAIT_ALONE_SECONDS, 2 * self._wait)
        self.together ^= better
        self._since = 0, 0.0
