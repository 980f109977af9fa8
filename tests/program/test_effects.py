"""What operations declare of their effects, against what NumPy sees them do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from chains.expr import trace
from chains.program import operations
from chains.program.loop import Loop
from chains.program.operations import (
    COMMUNICATOR,
    COMMUNICATOR_WORDS,
    AllReduce,
    BatchMatMul,
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
    Window,
)
from chains.program.program import Program
from chains.program.simplify import live
from chains.program.view import Batch, Buffer, View, c_strides
from tests.harness import run_program

BATCH = 6
B = Batch()
WINDOW = Window((2, 2))


def view(name: str, role: str, *shape: Any, dtype: Any = np.float64) -> View:
    return View(Buffer(name, role, np.dtype(dtype), shape), shape, c_strides(shape))


def given(name: str, *shape: Any, dtype: Any = np.float64) -> View:
    return view(name, "input", *shape, dtype=dtype)


def filled(*shape: Any) -> tuple[View]:
    """A result that the caller provides, so that it begins with numbers."""
    return (view("out", "state", *shape),)


IMAGES, KERNELS, POOLED = given("x", B, 2, 4, 4), given("w", 3, 2, 2, 2), given("y", B, 3, 3, 3)
NUMBERS = given("index", B, dtype=np.int64)

# At least one of each class, and of each way in which it treats its result or the batch.
SAMPLES = [
    MatMul(filled(B, 3), (given("a", B, 4), given("b", 4, 3))),
    MatMul(filled(B, 3), (given("a", B, 4), given("b", 4, 3)), accumulate=True),
    MatMul(filled(4, 3), (given("a", B, 4).T, given("b", B, 3))),
    MatMul(filled(4, 3), (given("a", B, 4).T, given("b", B, 3)), accumulate=True),
    BatchMatMul(filled(B, 2, 3, 5), (given("a", B, 2, 3, 4), given("b", B, 2, 4, 5))),
    BatchMatMul(filled(B, 3, 5), (given("a", B, 4, 3).swap(1, 2), given("b", B, 5, 4).swap(1, 2)), accumulate=True),
    Map(filled(B, 4), (given("a", B, 4), given("b", 4)), trace(lambda a, b: a * b + 1)),
    Map(filled(4), (given("a", 4), given("b", 4)), trace(lambda a, b: a * b + 1)),
    Reduce(filled(B, 1), (given("a", B, 4),), "sum"),
    Reduce(filled(4), (given("a", B, 4),), "sum"),
    Reduce(filled(4), (given("a", B, 4),), "max"),
    Reduce(filled(4, 1), (given("a", 4, 3),), "max"),
    Convolve(filled(B, 3, 3, 3), (IMAGES, KERNELS), WINDOW),
    ConvolveInput(filled(B, 2, 4, 4), (POOLED, KERNELS), WINDOW),
    ConvolveWeight(filled(3, 2, 2, 2), (IMAGES, POOLED), WINDOW),
    Pool(filled(B, 2, 3, 3), (IMAGES,), "max", WINDOW),
    Pool(filled(B, 2, 3, 3), (IMAGES,), "mean", WINDOW),
    PoolInput(filled(B, 3, 4, 4), (POOLED,), "mean", WINDOW),
    PoolInput(filled(B, 3, 4, 4), (given("dy", B, 3, 3, 3), given("x", B, 3, 4, 4), POOLED), "max", WINDOW),
    Gather(filled(B, 3), (given("table", 5, 3), NUMBERS)),
    ScatterAdd(filled(5, 3), (NUMBERS, given("source", B, 3))),
    Copy(filled(B, 4), (given("a", B, 4),)),
    Fill(filled(B, 4), (), 2.0),
    Random(filled(B, 4), (given("random", 2, dtype=np.uint64),), 0),
    Random(filled(B, 4), (given("random", 2, dtype=np.uint64), given("first_sample", dtype=np.uint64)), 0),
    AllReduce(filled(4), (given("a", 4), given(COMMUNICATOR, COMMUNICATOR_WORDS, dtype=np.int64))),
]
PARTS = given("x", B, 3, 4).index(1, 0).advancing(0, 4)  # of a time axis
SAMPLES += [
    Loop.of(3, [Fill(filled(B, 4), (), 1.0)]),
    Loop.of(3, [Map(filled(B, 4), (PARTS,), trace(lambda a: 2 * a))]),
    Loop.of(3, [Reduce(filled(4), (PARTS,), "sum")]),
    Loop.of(3, [MatMul(filled(4, 4), (PARTS.T, PARTS), accumulate=True)], from_zero=True),
    Loop.of(
        3,
        [Map(filled(B, 4), (PARTS,), trace(lambda a: 2 * a))],
        skip_where_zero=given("only", B, 3, 1).index(1, 0).advancing(0, 1),
    ),
]
every_sample = pytest.mark.parametrize("operation", SAMPLES, ids=lambda o: f"{o.name}-{o.outs[0].shape}-{o.accumulates}")


def concrete_classes(base: type = Operation) -> set[type]:
    """The classes of operations that programs are made of."""
    below = {each for found in base.__subclasses__() for each in {found} | concrete_classes(found)}
    return {each for each in below if each.__module__.startswith(operations.__name__) and not each.__name__.startswith("_")}


def test_every_class_has_a_sample():
    missing = (concrete_classes() | {Loop}) - {type(operation) for operation in SAMPLES}
    assert len(concrete_classes()) > 12
    assert not missing, f"SAMPLES has none of {', '.join(each.__name__ for each in missing)}"


@dataclass
class Numbers:
    """Random arrays for an operation's buffers, and what comes of them."""

    operation: Operation

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.arrays = {}
        for each in self.operation.views:
            shape = tuple(BATCH if extent == B else extent for extent in each.buffer.shape)
            whole = each.dtype.kind in "iu"
            most = 1 if each.buffer.name == COMMUNICATOR else 4  # zeros name no communicator
            self.arrays[each.buffer.name] = rng.integers(0, most, shape).astype(each.dtype) if whole else rng.normal(size=shape)

    def result(self, samples: slice = slice(None), **other: np.ndarray) -> np.ndarray:
        """The result from some of the samples, with other numbers for the arrays that are named."""
        batched = {each.buffer.name for each in self.operation.views if each.buffer.batched}
        arrays = {name: array[samples] if name in batched else array for name, array in (self.arrays | other).items()}
        program = Program("effects", np.dtype(np.float64), (self.operation,))
        return run_program(program, "numpy", len(range(BATCH)[samples]), arrays)["out"]


@every_sample
def test_what_a_result_was_before(operation):
    """It is read, and added to, where the operation accumulates, and else is not."""
    numbers = Numbers(operation)
    before = numbers.arrays["out"]
    fresh, added = numbers.result(out=np.zeros_like(before)), numbers.result()
    np.testing.assert_allclose(added, before + fresh if operation.accumulates else fresh, rtol=1e-12, atol=1e-12)
    assert (operation.outs[0] in operation.reads) == operation.accumulates
    assert operation.writes == operation.outs


@every_sample
def test_a_fill_before_an_operation_stays_where_it_is_read(operation):
    (out,) = operation.outs
    scratch = view("scratch", "scratch", *out.shape)
    recorded = [
        Fill((scratch,), (), 0.0),
        operation.on(lambda each: scratch if each == out else each),
        Copy((out,), (scratch,)),
    ]
    assert live(recorded)[-2:] == recorded[-2:]
    assert not operation.accumulates or live(recorded) == recorded


@every_sample
def test_parts_of_the_batch(operation):
    """What comes of the samples one part after another makes what comes of all of them, in the way declared."""
    if isinstance(operation, Random):  # its numbers go by a sample's place in the batch, which backends tell it
        return
    numbers = Numbers(operation)
    parts = [numbers.result(part, out=np.zeros_like(numbers.arrays["out"])) for part in (slice(0, 2), slice(2, None))]
    whole = numbers.result(out=np.zeros_like(numbers.arrays["out"]))
    if operation.over_batch is None:
        joined = np.concatenate(parts) if operation.outs[0].batched else parts[0]
    else:
        joined = {"sum": np.add, "max": np.maximum}[operation.over_batch](*parts)
    np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-12)
    assert operation.sums_over_batch == (operation.over_batch is not None)


@every_sample
def test_elementwise_operations_go_by_places(operation):
    """Operands in another order give results in that order; and the result may take the place of an operand."""
    if not operation.elementwise:
        return
    numbers = Numbers(operation)
    order = np.random.default_rng(1).permutation(4)
    moved = {name: array[..., order] for name, array in numbers.arrays.items()}
    np.testing.assert_array_equal(numbers.result(**moved), numbers.result()[..., order])
    for k, operand in enumerate(operation.ins):
        if operand.shape == operation.outs[0].shape:
            place = operation.outs[0]
            ins = tuple(place if j == k else each for j, each in enumerate(operation.ins))
            same = Numbers(replace(operation, ins=ins))
            same.arrays = {**same.arrays, **{n: a for n, a in numbers.arrays.items() if n != "out"}}
            start = numbers.arrays[operand.buffer.name]
            np.testing.assert_array_equal(same.result(out=start), numbers.result())


@every_sample
def test_where_an_operation_is_linear(operation):
    """Where that is declared, the result at the sum of two operands is the sum of the results."""
    numbers = Numbers(operation)
    start = np.zeros_like(numbers.arrays["out"])

    def at(name: str, array: np.ndarray) -> np.ndarray:
        return numbers.result(out=start, **{name: array})

    for k in operation.linear_in or ():
        name = operation.ins[k].buffer.name
        a = numbers.arrays[name]
        b = np.random.default_rng(1).normal(size=a.shape)
        np.testing.assert_allclose(at(name, a + 2.0 * b), at(name, a) + 2.0 * at(name, b), rtol=1e-9, atol=1e-12)
    others = [each for k, each in enumerate(operation.ins) if k not in (operation.linear_in or ()) and each.dtype.kind == "f"]
    if operation.linear_in is not None:  # of others, only choices are made: the winners of a maximum
        assert not others or operation.name == "max_pool_input"


@every_sample
def test_operands_fit(operation):
    """A sample passes its own check; with a number for an array it does not."""
    operation.check()
    wrong = replace(operation, outs=(3.0,))
    with pytest.raises(TypeError, match=r"`3\.0` is not an array of this program"):
        wrong.check()


def test_rows_that_do_not_fit_their_table():
    table, rows = given("table", 5, 3), filled(B, 3)
    Gather(rows, (table, NUMBERS)).check()
    for wrong in ((given("table", 5, 4), NUMBERS), (table, given("index", B, 2, dtype=np.int64)), (table, given("index", B))):
        with pytest.raises(ValueError, match=r"gather: rows .* do not fit the table"):
            Gather(rows, wrong).check()
    with pytest.raises(ValueError, match=r"scatteradd: rows .* do not fit the table"):
        ScatterAdd(filled(5, 4), (NUMBERS, given("source", B, 3))).check()


def test_other_operations_are_not_elementwise():
    assert {type(operation) for operation in SAMPLES if operation.elementwise} == {Map, Copy, Fill}
