"""What the tests of refusals share."""

from __future__ import annotations

import pytest

from tests.bad_input.support import Calls


@pytest.fixture
def calls():
    return Calls()
