"""What the tests of training share."""

from __future__ import annotations

import pytest

from chains import Chain, Dense, tanh


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
