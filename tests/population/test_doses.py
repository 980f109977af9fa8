"""Records of repeated doses, written out."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Doses, Equations
from chains.population import dose_table


def test_additional_doses_are_written_out_in_order():
    table = dose_table([[0.0, 5.0], [1.0, 0.0]], [[10.0, 3.0], [2.0, 0.0]], addl=[[2, 0], [0, 0]], ii=[[4.0, 0.0], [0.0, 0.0]],
                       infusion=[[0.0, 1.5], [0.0, 0.0]], into=[[0, 1], [1, 0]])  # fmt: skip
    assert table.times.tolist() == [[0.0, 4.0, 5.0, 8.0], [1.0, np.inf, np.inf, np.inf]]
    assert table.amounts.tolist() == [[10.0, 10.0, 3.0, 10.0], [2.0, 0.0, 0.0, 0.0]]
    assert table.infusion.tolist() == [[0.0, 0.0, 1.5, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert table.into.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("amounts", [[[1.0], [2.0]], [[1.0], [0.0]], [[0.0], [0.0]]])
def test_a_table_has_at_least_one_column(amounts):
    table = dose_table([[3.0], [4.0]], amounts)
    assert table.times.tolist() == np.where(amounts, [[3.0], [4.0]], np.inf).tolist()
    assert table.amounts.tolist() == amounts


@pytest.mark.parametrize("how", [{"steps": 20}, {"rtol": 1e-11, "max_steps": 2000}], ids=["equal", "control"])
def test_steady_state_is_that_of_the_closed_form(how):
    k, ii, train = 0.4, 3.0, 24
    table = dose_table([[0.0]], [[2.0]], ss=1, ii=ii, addl=1, train=train)
    assert table.times[0, 0] == -train * ii
    doses = Doses(table.times.shape[1])
    times = np.array([[table.times[0, 0], 0.0, 1.0, 4.0]])
    net = Chain(ODE(Equations(lambda c: -k * c, ("c",)), 4, doses=doses, **how), input_shape=(1 + doses.width + 4,))
    x = np.concatenate([[[0.0]], doses.columns(table.times, table.amounts), times], axis=1)
    top = 2.0 / (1.0 - np.exp(-k * ii))
    wanted = [top * np.exp(-k * ii), top * np.exp(-k), top * np.exp(-k)]
    np.testing.assert_allclose(net(x, np.zeros(0))[0, 1:, 0], wanted, rtol=0.0, atol=1e-9 + top * np.exp(-k * ii * train))


def test_records_that_make_no_sense_are_refused():
    for arrays, message in (
        ({"amounts": [[-1.0]]}, "`amounts` must be finite and not negative, but record 0 of subject 0 has -1"),
        ({"times": [[np.nan]]}, "`times` must be finite"), ({"addl": 1.5, "ii": 1.0}, "`addl` must be a whole number"),
        ({"addl": 1}, "`ii` must be positive"), ({"ss": 1}, "`ii` must be positive"),
        ({"ss": 2, "ii": 1.0}, "`ss` must be 0 or 1"),
        ({"infusion": [[-1.0]]}, "`infusion`"), ({"into": [0, 1]}, r"`into` has shape \(2,\)"), ({"train": 0}, "`train`"),
        ({"into": [[0.5]]}, "`into` must be a number of the state, 0 or more, but record 0 of subject 0 has 0.5"),
        ({"times": [[0.0, 1.0]], "amounts": [[1.0, 1.0]], "ss": [[0, 1]], "ii": 1.0}, "must not come before a record"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            dose_table(**({"times": [[0.0]], "amounts": [[1.0]]} | arrays))
    with pytest.raises(TypeError, match="`times`"):
        dose_table("x", 1.0)
