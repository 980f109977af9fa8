"""Whether steps are faster done by a team, tried out now and then.

It depends on what else the processors do, and on whether two of them are one core: nothing that is known beforehand. Results
are the same to the bit.
"""

from __future__ import annotations

EVERY, TRIAL = 0.05, 0.001  # seconds between trials, and of a trial
BETTER = 0.95  # of the time, at most, makes it worth changing


class Pace:
    """The seconds that steps take, with a team and without."""

    def __init__(self) -> None:
        self.together = True
        self._steps, self._seconds = 0, 0.0  # since the last trial

    def trial(self, steps: int) -> int:
        """How many of the coming steps to do the other way, to see how long they take."""
        if self._seconds < EVERY:
            return 0
        return min(steps, max(1, int(TRIAL * self._steps / self._seconds)))

    def note(self, together: bool, steps: int, seconds: float) -> None:
        """Take into account how long steps took."""
        if together is self.together:
            self._steps += steps
            self._seconds += seconds
            return
        if seconds / steps < BETTER * self._seconds / self._steps:
            self.together = together
        self._steps, self._seconds = 0, 0.0
