"""Values that are kept."""

from __future__ import annotations

from chains.support.caching import Recent


def test_the_values_requested_last_are_kept():
    made: list[str] = []
    recent: Recent[str] = Recent(3)
    for key in "abcabdabc":
        assert recent.get(key, lambda key=key: made.append(key) or key.upper()) == key.upper()
        assert len(recent) <= 3
    assert "".join(made) == "abcdc"  # c was requested first when d came, and d when c came again
    recent.clear()
    assert len(recent) == 0
