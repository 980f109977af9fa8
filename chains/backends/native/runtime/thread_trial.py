"""Whether steps are faster done by several threads, tried out now and then.

It depends on what else the processors do, and on whether two of them are one core: nothing that is known beforehand. Results
are the same to the bit.
"""

from __future__ import annotations

EVERY, CALM, LONGEST = 0.05, 0.2, 0.5  # seconds between trials: at first, while threads pay, and while they do not
TRIAL, LEAST = 0.002, 200  # seconds of a trial, which is one step at least; steps that come before it
WORTH = 1e-4  # seconds of a call in which what comes with it does not matter
BETTER = 0.95  # of the time, at most, makes it worth changing


class Pace:
    """The seconds that steps take, by several threads together and by one alone. Several callers may share one."""

    def __init__(self) -> None:
        self.together = True
        self._since = 0, 0.0  # steps since the last trial, and their seconds
        self._wait = EVERY
        self._back = EVERY  # how long to do without threads once they are found slow: longer each time

    def trial(self, steps: int) -> int:
        """How many of the coming steps to do the other way, to see how long they take."""
        before, seconds = self._since
        if before < LEAST or seconds < self._wait:
            return 0
        count = max(1, int(TRIAL * before / seconds))
        return count if count <= steps else 0

    def note(self, together: bool, steps: int, seconds: float) -> None:
        """Take into account how long steps took."""
        before, elapsed = self._since
        if together is self.together:
            if seconds > WORTH:
                self._since = before + steps, elapsed + seconds
            return
        if not before:  # another caller has noted a trial meanwhile
            return
        better = seconds / steps < BETTER * elapsed / before
        if self.together:
            self._wait = self._back if better else min(CALM, 2 * self._wait)
            self._back = min(LONGEST, 2 * self._back) if better else EVERY
        else:
            self._wait = EVERY if better else min(LONGEST, 2 * self._wait)
        self.together ^= better
        self._since = 0, 0.0
