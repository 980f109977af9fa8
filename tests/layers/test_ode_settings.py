"""Settings of differential equations that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Dense


@pytest.mark.parametrize("times", [("0", "1"), (False, True), (False, 1.0), np.array([False, True]), np.array(["0", "1"])])
def test_words_and_flags_are_no_times(times):
    with pytest.raises(TypeError, match=r"`times` \(=.*\) must be a sequence of ascending times or a whole number"):
        ODE(Dense(2, 2), times)
    with pytest.raises(TypeError, match=r"`forcing\[0\]` \(=.*\) must be a sequence of ascending times"):
        ODE(Dense(2, 2), (0, 1), forcing=(times, (0.0, 1.0)))
