"""Random programs over the whole vocabulary: what native makes of them at every width of vectors, against NumPy.

Each program runs in float32 or float64, on one to three threads, at two sizes of the batch, in arrays between fences and on
scratch memory full of NaN. Whole numbers must be equal, others equal to rounding.
"""

from __future__ import annotations

import sys

import numpy as np

from chains.backends import UnsupportedOperationError
from chains.backends.native import NativeBackend, memory_plan
from chains.backends.numpy.backend import NumpyBackend
from tests.campaign import running
from tests.campaign.drawn import LARGEST_BATCH, Drawn
from tests.native.support import INSTRUCTIONS, Fenced, run_fenced, run_on

BATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 48, 49, 64, 65, LARGEST_BATCH)
SLACK = 8.0  # times the units of rounding that a bound allows, each of the largest number


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    dtype, exact = ("float32", "float64")[int(rng.integers(2))], bool(rng.random() < 0.6)
    drawn = Drawn(rng, dtype, exact)
    program = drawn.program
    kind = f"{dtype} {'exact' if exact else 'smooth'}"
    if not program.operations:
        return f"{kind}: nothing to do"
    memory_plan.MIN_THREAD_OPERATIONS = 1 if rng.random() < 0.5 else 400_000
    runs = [(batch, drawn.arrays(program, batch)) for batch in rng.choice(BATCHES, 2).tolist()]
    wanted = [run_on(NumpyBackend(), program, batch, arrays) for batch, arrays in runs]
    outcomes = [kind]
    for simd in INSTRUCTIONS:
        runner = NativeBackend(threads=int(rng.integers(1, 4)), simd=simd)
        try:
            runner.compile(program)
        except UnsupportedOperationError as error:
            outcomes.append(f"{simd}: refused: {_reason(str(error))}")
            continue
        for (batch, arrays), right in zip(runs, wanted, strict=True):
            fences = Fenced()
            found = run_fenced(runner, program, batch, arrays, fences)
            fences.check(simd)
            for name, array in right.items():
                compare(found[name], array, drawn, name, f"{kind}, {simd}, {runner.threads} threads, batch {batch}: {name}")
        outcomes.append(f"{simd}: equal")
    return ", ".join(outcomes)


def compare(found: np.ndarray, right: np.ndarray, drawn: Drawn, name: str, what: str) -> None:
    if not np.isfinite(right).all():
        raise AssertionError(f"{what}: NumPy's are not finite")
    if drawn.exact:
        wrong = found != right
    else:
        (size,) = (size for buffer, size in drawn.sizes.items() if buffer.name == name)
        bound = SLACK * float(np.finfo(right.dtype).eps) * (size.error + size.bound)
        wrong = ~(abs(found - right) <= bound)
    if wrong.any():
        at = tuple(int(k) for k in np.argwhere(wrong)[0]) if right.ndim else ()
        raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} wrong, first at {at}: {found[at]} for {right[at]}")


def _reason(text: str) -> str:
    """What a refusal says, up to the name of what it is about."""
    return text.split("`")[0].replace(",", "").strip()


if __name__ == "__main__":
    sys.exit(running.main(attempt))
