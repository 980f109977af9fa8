"""Regular trials of whether steps are faster with several threads or with one.

The answer cannot be known beforehand: it depends on the other load of the processors, and two processors of a virtual machine
may be one core. Results are the same to the bit.
"""

from __future__ import annotations

FIRST_WAIT_SECONDS = 0.05  # between two trials; doubled after each trial that changes nothing, up to:
LONGEST_WAIT_TOGETHER_SECONDS, LONGEST_WAIT_ALONE_SECONDS = 0.2, 0.5
TRIAL_SECONDS = 0.002  # length of a trial, but at least one step
STEPS_BEFORE_TRIAL = 200  # fewest steps between trials, so that a trial of one long step costs little
COUNTED_SECONDS = 1e-4  # shorter calls do not count: their start takes too large a part of the time
CHANGE_BELOW = 0.95  # change sides where a trial takes less than this part of the time


class ThreadTrial:
    """Measured seconds of steps, by several threads together and by one alone. Several callers may share one trial."""

    def __init__(self) -> None:
        self.together = True
        self._since = 0, 0.0  # steps since the last trial, and their seconds
        self._wait = FIRST_WAIT_SECONDS
        self._pause = FIRST_WAIT_SECONDS  # time on one thread after several were found slower; longer each time

    def trial(self, steps: int) -> int:
        """How many of the coming steps to run the other way as a trial; 0 for none."""
        before, seconds = self._since
        if before < STEPS_BEFORE_TRIAL or seconds < self._wait:
            return 0
        count = max(1, int(TRIAL_SECONDS * before / seconds))
        return count if count <= steps else 0

    def note(self, together: bool, steps: int, seconds: float) -> None:
        """Record the time that steps took, and change sides if a trial was faster."""
        before, elapsed = self._since
        if together is self.together:
            if seconds > COUNTED_SECONDS:
                self._since = before + steps, elapsed + seconds
            return
        if not before:  # another caller has noted a trial meanwhile
            return
        better = seconds / steps < CHANGE_BELOW * elapsed / before
        if self.together:
            self._wait = self._pause if better else min(LONGEST_WAIT_TOGETHER_SECONDS, 2 * self._wait)
            self._pause = min(LONGEST_WAIT_ALONE_SECONDS, 2 * self._pause) if better else FIRST_WAIT_SECONDS
        else:
            self._wait = FIRST_WAIT_SECONDS if better else min(LONGEST_WAIT_ALONE_SECONDS, 2 * self._wait)
        self.together ^= better
        self._since = 0, 0.0
