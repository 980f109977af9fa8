"""The flat vector: slices in order, views that share memory, patterns, freezing."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, Parallel, Residual, Scale, tanh
from chains.params import Layout, LayoutBuilder
from tests.harness import CASES


@pytest.fixture
def net():
    return Chain(Dense(3, 4, tanh), Residual(Dense(4, 4, bias=False)), Dense(4, 2))


def test_layout_is_data(net):
    assert [(e.name, e.start, e.stop, e.shape) for e in net.layout] == [
        ("0.weight", 0, 12, (3, 4)), ("0.bias", 12, 16, (4,)), ("1.inner.weight", 16, 32, (4, 4)),
        ("2.weight", 32, 40, (4, 2)), ("2.bias", 40, 42, (2,)),
    ]  # fmt: skip
    assert repr(net.layout[1]) == "Slice(name='0.bias', start=12, stop=16, shape=(4,))"
    assert len(net.layout) == 5
    assert net.layout["2.bias"] is net.layout[-1]
    assert net.layout.size == net.n_params == 42


@pytest.mark.parametrize("case", CASES[:50], ids=str)
def test_slices_follow_each_other(case):
    net, stop = case.net(), 0
    for entry in net.layout:
        assert entry.start == stop
        stop = entry.stop
        assert entry.stop - entry.start == int(np.prod(entry.shape))
    assert stop == net.n_params
    assert len({entry.name for entry in net.layout}) == len(net.layout)


def test_views_share_memory_and_cover_everything(net):
    p = net.init(seed=1)
    views = net.views(p)
    for view in views.values():
        view[...] = 7.0
    assert np.all(p == 7.0)
    assert views["0.weight"].shape == (3, 4)
    assert all(np.shares_memory(view, p) for view in views.values())


def test_views_are_in_c_order(net):
    p = np.arange(42.0)
    np.testing.assert_array_equal(net.views(p)["0.weight"], np.arange(12.0).reshape(3, 4))


def test_patterns(net):
    assert net.layout.names("*.bias") == {"0.bias", "2.bias"}
    assert net.layout.names("1.*", "0.weight") == {"1.inner.weight", "0.weight"}
    assert net.layout.names() == frozenset()
    with pytest.raises(ValueError, match=r"'9\.\*'.*0\.weight"):
        net.layout.names("0.*", "9.*")


def test_ranges_join_neighbours(net):
    assert net.layout.ranges() == [(0, 42)]
    assert net.layout.ranges(frozenset({"0.bias"})) == [(0, 12), (16, 42)]
    assert net.layout.ranges(frozenset({"0.weight", "2.bias"})) == [(12, 40)]
    assert net.layout.ranges(net.layout.names("*")) == []


def test_unknown_name(net):
    with pytest.raises(KeyError, match=r"nonsense.*0\.weight"):
        net.layout["nonsense"]


def test_printing(net):
    lines = str(net.layout).splitlines()
    assert len(lines) == 5
    assert "0.weight" in lines[0]
    assert "(3, 4)" in lines[0]
    assert str(Layout([])) == "no parameters"
    assert "0.weight" in repr(net.layout)


def test_builder_and_empty_slices():
    builder = LayoutBuilder()
    builder.add("a", (2, 3), None)
    builder.add("empty", (0, 3), None)
    builder.add("b", (), None)
    layout = Layout(builder.slices)
    assert layout.size == 7
    assert layout.ranges(frozenset({"a"})) == [(6, 7)]


def test_names_within_combinators():
    net = Chain(Parallel(Dense(3, 2), Residual(Scale(), Scale())), Chain(Dense(5, 2)))
    assert [entry.name for entry in net.layout] == [
        "0.0.weight", "0.0.bias", "0.1.inner.0.scale", "0.1.inner.1.scale", "1.0.weight", "1.0.bias",
    ]  # fmt: skip
