"""Rows of tables, looked up by number and added to."""

from __future__ import annotations

import numpy as np
import pytest

from chains.backends.numpy.backend import NumpyBackend
from tests import harness

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from tests.native.support import Fenced, Maps, assert_equal_results, floats, native, random_arrays, run_fenced, run_on, shape_of


def table_program(kind, shape, row, index_dtype, rows=7):
    """Rows looked up, scaled, and added into a table: numbers of `shape` a sample, rows of shape `row`."""
    m = Maps(kind)
    index = m.input("index", *shape, dtype=np.dtype(index_dtype))
    y = m.output("y", *shape, *row)
    m.ops.gather(y, m.input("table", rows, *row, batched=False), index)
    g = m.output("g", rows, *row, batched=False)
    m.ops.fill(g, 0.25)
    m.ops.scatter_add(g, index, m.input("dy", *shape, *row))
    return m.program()


def table_arrays(program, batch, lowest=0, highest=7):
    numbers = np.random.default_rng(batch).integers(lowest, highest, shape_of(program.buffers["index"], batch))
    return random_arrays(program, batch) | {"index": numbers.astype(program.buffers["index"].dtype)}


TABLES = {
    "labels": ((), ()), "rows": ((), (4,)), "sequences": ((5,), (3,)), "wide": ((2,), (37,)), "arrays": ((3, 2), (2, 5))
}  # fmt: skip


@floats
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("place", TABLES)
def test_tables_equal_numpy(kind, threads, place, eager):
    """Many samples to a row; numbers outside the table; without a touch beside the buffers."""
    for index_dtype, batch in ((np.int64, 1), (np.int64, 50), (np.int32, 331)):
        program = table_program(kind, *TABLES[place], index_dtype)
        for lowest, highest in ((0, 7), (-5, 12), (3, 4)):
            arrays, fences = table_arrays(program, batch, lowest, highest), Fenced()
            wanted = run_on(NumpyBackend(), program, batch, arrays)
            numbers = np.clip(arrays["index"], 0, 6)
            np.testing.assert_array_equal(wanted["y"], arrays["table"][numbers])
            actual = run_fenced(native(threads), program, batch, arrays, fences, runs=2)
            fences.check()
            assert_equal_results(actual, wanted, kind)
            again = run_on(native(threads), program, batch, arrays)
            harness.assert_same_bits(again, actual)


def test_indices_at_the_ends_of_their_type():
    program = table_program("float32", (), (4,), np.int64)
    ends = np.iinfo(np.int64)
    arrays = random_arrays(program, 4) | {"index": np.array([ends.min, ends.max, -1, 7])}
    y = run_on(native(), program, 4, arrays)["y"]
    np.testing.assert_array_equal(y, arrays["table"][[0, 6, 0, 6]])


def test_two_additions_to_one_table(eager):
    m = Maps("float64")
    g = m.output("g", 7, 3, batched=False, role="state")
    for name in ("a", "b"):
        m.ops.scatter_add(g, m.input(f"index {name}", dtype=np.dtype(np.int64)), m.input(name, 3))
    m.ops.map(g, lambda g: 2.0 * g, g)
    program, rng = m.program(), np.random.default_rng(0)
    arrays = {name: a for name, a in random_arrays(program, 200).items() if not name.startswith("index")}
    arrays |= {f"index {name}": rng.integers(0, 7, 200) for name in ("a", "b")}
    wanted = run_on(NumpyBackend(), program, 200, arrays)
    for threads in (1, 2):
        assert_equal_results(run_on(native(threads), program, 200, arrays), wanted, "float64")
