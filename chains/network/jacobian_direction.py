"""The direction in which a Jacobian by the parameters is computed. The choice by cost is made here alone.

In reverse, each output of a sample has a pullback, which is written out in the program. Forward, each trained parameter has a
lane of the tangents, and the program is as long as one solution. For solutions of an `ODE`, measured in calls of the network, a
lane costs a seventh for one sample and half a call for many, since a call of many samples fills vectors without lanes. A
pullback costs one call, or two for many outputs and samples, whose arrays leave the caches, and a third of a second to compile.
Without loops, pullbacks share the products of all samples.
"""

from __future__ import annotations

import math

import numpy as np

from chains.network import executables
from chains.network.network import Network
from chains.program.loop import Loop
from chains.support.checks import check_word

FORWARD, REVERSE = "forward", "reverse"
FEW_SAMPLES, FEW_OUTPUTS = 7, 8
LANES_AN_OUTPUT = 5  # at most, for networks with loops
LANES_OF_FEW = 2  # for more than a few samples of few outputs


def chosen(network: Network, samples: int, asked: str = "auto") -> str:
    """The direction that a caller asks for, or the cheaper one.

    Raises ValueError for an unknown direction, NotImplementedError for "forward" if the network has no tangents.
    """
    check_word("direction", asked, "auto", FORWARD, REVERSE)
    if asked == FORWARD:
        network.declaration.check_tangents()
    return cheaper(network, samples) if asked == "auto" else asked


def cheaper(network: Network, samples: int) -> str:
    """The cheaper direction for a number of samples."""
    lanes, outputs = lanes_of(network), math.prod(network.output_shape)
    most = LANES_OF_FEW if samples > FEW_SAMPLES and outputs <= FEW_OUTPUTS else LANES_AN_OUTPUT
    if not 0 < lanes <= most * outputs or not network.declaration.has_tangents or network.lacks_tangents:
        return REVERSE
    if lanes <= outputs:
        return FORWARD
    operations = executables.forward_pass(network, np.empty(0), False).program.operations
    return FORWARD if any(isinstance(operation, Loop) for operation in operations) else REVERSE


def lanes_of(network: Network) -> int:
    """The number of parameters that are trained."""
    return sum(stop - start for start, stop in network.trainable)
