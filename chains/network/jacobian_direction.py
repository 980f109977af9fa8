"""The direction in which a Jacobian by the parameters is computed. The choice by cost is made here alone.

In reverse, each output of a sample has a pullback, which is written out in the program. Forward, each trained parameter has a
lane of the tangents, and the program is as long as one solution. Measured in calls of the network, a lane costs a seventh for
one sample and a half for many, a pullback one to three. The pullbacks of a loop over steps also take seconds to compile. So
networks with loops go forward with up to four lanes for each output.
"""

from __future__ import annotations

import math

import numpy as np

from chains.network import executables
from chains.network.network import Network
from chains.program.loop import Loop
from chains.support.checks import check_word

FORWARD, REVERSE = "forward", "reverse"
LANES_AN_OUTPUT = 4  # at most, for networks with loops


def chosen(network: Network, asked: str = "auto") -> str:
    """The direction that a caller asks for, or the cheaper one.

    Raises ValueError for an unknown direction, NotImplementedError for "forward" if the network has no tangents.
    """
    check_word("direction", asked, "auto", FORWARD, REVERSE)
    if asked == FORWARD:
        network.declaration.check_tangents()
    return cheaper(network) if asked == "auto" else asked


def cheaper(network: Network) -> str:
    """The cheaper direction for one sample."""
    lanes, outputs = lanes_of(network), math.prod(network.output_shape)
    if not 0 < lanes <= LANES_AN_OUTPUT * outputs or not network.declaration.has_tangents or network.lacks_tangents:
        return REVERSE
    if lanes <= outputs:
        return FORWARD
    operations = executables.forward_pass(network, np.empty(0), False).program.operations
    return FORWARD if any(isinstance(operation, Loop) for operation in operations) else REVERSE


def lanes_of(network: Network) -> int:
    """The number of parameters that are trained."""
    return sum(stop - start for start, stop in network.trainable)
