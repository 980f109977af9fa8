"""Words that Python and machine code share: one declaration says where both find them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm.emit import I64, PTR, Function, Module, integer
from chains.backends.native.llvm.jit import machine_code
from chains.backends.native.llvm.struct import PADDED_WORDS, Struct
from chains.backends.native.llvm.target import processor

POINT = Struct({"x": "i64", "y": "i64", "name": "ptr"})
HEAD = Struct({"count": "i64", "small": "i32"})
APART = Struct({"a": "i64", "b": "i64"}, {"c": "i64"}, padded=True)


def test_words_follow_one_another():
    assert POINT.positions == {"x": 0, "y": 1, "name": 2}
    assert POINT.size == 3


def test_padded_groups_share_no_pair_of_cache_lines():
    assert APART.positions == {"a": 0, "b": 1, "c": PADDED_WORDS}
    assert APART.size == 2 * PADDED_WORDS
    assert PADDED_WORDS * 8 == 128


def test_packed_words():
    words = POINT.pack(name=7, x=-2)
    assert words.dtype == np.int64
    assert words.tolist() == [-2, 0, 7]
    POINT.write(words, y=5, x=3)
    assert words.tolist() == [3, 5, 7]


def test_words_of_several_lists():
    lists = np.zeros((2, POINT.size), np.int64)
    POINT.write(lists, y=np.array([4, 5]), x=1)
    assert lists.tolist() == [[1, 4, 0], [1, 5, 0]]


@pytest.mark.parametrize("write", [lambda words: POINT.pack(z=1), lambda words: POINT.write(words, z=1)])
def test_unknown_words_are_refused(write):
    with pytest.raises(KeyError, match="z"):
        write(POINT.pack())


def run(text, *arguments):
    code = machine_code(text, ["f"], processor())
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * len(arguments))(code.address("f"))(*arguments)


def test_machine_code_reads_and_writes_what_python_does():
    module = Module()
    f = Function(module, "f", [(PTR, "words")], "i64")
    (words,) = f.arguments
    POINT.store(f, words, y=f.add(POINT.load(f, words, "x"), 1))
    other = POINT.load(f, words, "name")
    f.line(f"ret {f.load(I64, other)}")
    module.add(f)
    target = np.array([42])
    words = POINT.pack(x=10, name=target.ctypes.data)
    assert run(module.text(), words.ctypes.data) == 42
    assert words.tolist() == [10, 11, target.ctypes.data]


@pytest.mark.parametrize("number", [0, 2])
def test_lists_behind_another_list(number):
    module = Module()
    f = Function(module, "f", [(PTR, "words"), (I64, "number")], "i64")
    words, k = f.arguments
    known, found = (POINT.load(f, words, "y", POINT.element(f, each, HEAD)) for each in (integer(number), k))
    small = f.cast("sext", HEAD.load(f, words, "small"), I64)
    f.line(f"ret {f.binary('add', small, f.binary('mul', known, found))}")
    module.add(f)
    lists = [POINT.pack(y=100 + each) for each in range(3)]
    words = np.concatenate([HEAD.pack(count=3), *lists])
    words.view(np.int32)[2 * HEAD.positions["small"]] = -3  # a narrow word's first half
    assert run(module.text(), words.ctypes.data, number) == (100 + number) ** 2 - 3


def test_several_words_are_read_and_written_by_name():
    module = Module()
    f = Function(module, "f", [(PTR, "words")], "i64")
    (words,) = f.arguments
    b, c = APART.loads(f, words, "b", "c")
    APART.store(f, words, a=f.binary("mul", b, c), b=integer(1))
    assert [value.type for value in POINT.loads(f, words)] == [I64, I64, PTR]
    f.returns(integer(0))
    module.add(f)
    words = APART.pack(a=9, b=7, c=6)
    assert run(module.text(), words.ctypes.data) == 0
    assert words.tolist() == APART.pack(a=42, b=1, c=6).tolist()
