"""The effects of all subjects at once: the minima of their objectives, by Newton's method with step control."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

MAX_ROUNDS = 50
LARGEST_FALL = 1e-6  # of a value that counts as a minimum, in units of 1 + abs(value)
SMALL, TINY = 1e-12, 1e-21  # of the fall that a step promises: one more step is exact to rounding; none is needed
ROUNDING = 1e-12  # of a value, which may rise by rounding alone
NOISE = 1e-9  # a fall that may be smaller than the noise of values, such as that of a step control
SHORTER = 0.25

# (effects) -> sums, Newton's steps, the falls that they promise, the values; a row for each subject
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


def find_modes(evaluate: Evaluate, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """The effects (subjects, n) at the minima, from `start`, and the sums and promised falls there. Rows are independent.

    The last result shows whether these effects are those of the last call of `evaluate`.

    A step that does not lower a subject's value is repeated, a quarter as long.
    """
    effects = start
    sums, step, fall, value = evaluate(effects)
    lost = ~np.isfinite(value)
    if lost.any():
        effects = np.where(lost[:, None], 0.0, effects)
        sums, step, fall, value = evaluate(effects)
    length = np.ones(len(effects))
    latest = True
    done = ~(np.isfinite(value) & np.isfinite(fall))
    for _ in range(MAX_ROUNDS):
        scale = 1.0 + abs(value)
        active = ~done & (fall > TINY * scale)
        if not active.any():
            break
        done |= active & (fall <= SMALL * scale) & (length == 1.0)  # after this step
        trial = effects + np.where(active[:, None], length[:, None] * step, 0.0)
        found = evaluate(trial)
        lower = active & (found[3] <= value + ROUNDING * scale) & np.isfinite(found[2])
        done |= active & ~lower & (fall <= NOISE * scale)
        latest = bool((lower == active).all())
        if lower.all():
            effects, (sums, step, fall, value), length = trial, found, np.ones(len(effects))
            continue
        here = lower[:, None]
        effects, sums, step = (np.where(here, new, old) for new, old in ((trial, effects), (found[0], sums), (found[1], step)))
        fall, value = np.where(lower, found[2], fall), np.where(lower, found[3], value)
        length = np.where(lower, 1.0, SHORTER * length)
    return effects, sums, fall, latest
