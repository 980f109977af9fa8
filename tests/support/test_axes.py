"""Where figures are drawn, and what is said without matplotlib."""

from __future__ import annotations

import sys

import pytest

from chains import History
from chains.support import axes


def test_figures_without_matplotlib_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(ImportError, match=r"figures need matplotlib, .*; pip install matplotlib"):
        History().plot()


def test_every_figure_has_axes_of_its_own():
    pytest.importorskip("matplotlib").use("agg")
    first, second = axes.new_axes(), axes.new_axes()
    assert first.figure is not second.figure
    assert first.figure.get_size_inches().tolist() == [6.0, 4.0]
    from matplotlib import pyplot

    pyplot.close("all")
