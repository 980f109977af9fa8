"""Which cases of the harness become one kernel: found once, since each has to be recorded for it."""

from __future__ import annotations

import numpy as np

from chains.backends.cupy.fused.tiling_policy import suits
from chains.program.loop import Loop
from tests.cupy.support import gradient_program
from tests.harness import CASES

_PROGRAMS = {case: gradient_program(case, np.float64) for case in CASES}
SUITED = [case for case, program in _PROGRAMS.items() if suits(program)]
LOOPS = [case for case, program in _PROGRAMS.items() if any(isinstance(each, Loop) for each in program.operations)]
SUITED_LOOPS = [case for case in LOOPS if case in SUITED]
del _PROGRAMS
