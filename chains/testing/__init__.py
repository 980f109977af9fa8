"""Checks for custom layers, activations, losses and backends: gradients against differences, on every backend.

from chains.testing import check_gradients

def test_my_layer():
    check_gradients(MyLayer(3, 4), input_shape=(3,))

def test_my_loss():
    check_loss(my_loss, t=np.array([[0.5, -1.0], [2.0, 0.0]]))
"""

from chains.testing.conformance import Conformance, check_backend
from chains.testing.gradients import (
    Checked,
    Kink,
    assert_close,
    away_from_kinks,
    central_difference,
    check_gradients,
    check_loss,
)
from chains.testing.programs import filled, listing, run_program, usable_backends

__all__ = [
    "Checked", "Conformance", "Kink", "assert_close", "away_from_kinks", "central_difference", "check_backend",
    "check_gradients", "check_loss", "filled", "listing", "run_program", "usable_backends",
]  # fmt: skip
