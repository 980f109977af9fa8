"""The models of ONNX's own tests as networks, each input of a model in turn as data and each output in turn as the result.

A model must be read as a network that computes the same as onnx's reference evaluator, or be refused with a ValueError.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from chains.interop import from_onnx
from tests.campaign import running

KINDS = ("simple", "pytorch-converted", "pytorch-operator")
LARGEST = 200_000  # entries of an input


class Attempt:
    """A model of one input and one output: the other inputs of a test are constants, with the values of the test."""

    def __init__(self, name: str, model: Any, values: list[Any], data: int, result: int) -> None:
        self.name, self.model, self.values, self.data, self.result = name, model, values, data, result

    def __str__(self) -> str:
        graph = self.model.graph
        return f"{self.name}, from {graph.input[self.data].name} to {graph.output[self.result].name}"

    def made(self) -> Any:
        """The model; the first axis of its input is the batch."""
        import onnx

        model = onnx.ModelProto.FromString(self.model.SerializeToString())
        graph = model.graph
        inputs, outputs = list(graph.input), list(graph.output)
        known = {each.name for each in graph.initializer}
        for each, value in zip(inputs, self.values, strict=True):
            if each.name != inputs[self.data].name and each.name not in known:
                graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), each.name))
        del graph.input[:], graph.output[:]
        element = inputs[self.data].type.tensor_type.elem_type
        shape = ["batch", *np.shape(self.values[self.data])[1:]]
        graph.input.append(onnx.helper.make_tensor_value_info(inputs[self.data].name, element, shape))
        graph.output.append(outputs[self.result])
        for axis in graph.output[0].type.tensor_type.shape.dim:
            axis.Clear()
        return model

    def batches(self) -> Iterator[np.ndarray]:
        """The data of the test, and a sample more."""
        given = np.asarray(self.values[self.data])
        yield given
        last = given[-1:] if given.dtype.kind in "iub" else (given[-1:] * given.dtype.type(-0.75)).astype(given.dtype)
        yield np.concatenate([given, last])


@cache
def attempts(operators: bool = True) -> list[Attempt]:
    """All that can be tried, with the tests of operators or without: models with tensors whose first input has a batch."""
    found = []
    for name, model, values in (*(of_operators() if operators else ()), *of_models()):
        if len(values) != len(model.graph.input) or not all(isinstance(value, (np.ndarray, np.generic)) for value in values):
            continue
        for data, value in enumerate(values):
            if isinstance(value, np.ndarray) and value.ndim and 0 < value.size <= LARGEST:
                found += [Attempt(name, model, values, data, result) for result in range(len(model.graph.output))]
    return found


def of_operators() -> Iterator[tuple[str, Any, list[Any]]]:
    """Name, model and inputs of each test of an operator."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        yield case.name, case.model, list(case.data_sets[0][0])


def of_models() -> Iterator[tuple[str, Any, list[Any]]]:
    """Name, model and inputs of each test that comes with onnx as a file."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            model = onnx.load(f"{case.model_dir}/model.onnx")
            yield case.name, model, list(_stored(onnx, case.model_dir, model))


def _stored(onnx: Any, folder: str, model: Any) -> Iterator[Any]:
    """The arrays of a test that is a folder; initializers among the inputs keep their values."""
    known = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    number = 0
    for each in model.graph.input:
        if each.name in known:
            yield known[each.name]
            continue
        try:
            tensor = onnx.load_tensor(f"{folder}/test_data_set_0/input_{number}.pb")
            yield onnx.numpy_helper.to_array(tensor)
        except Exception:  # a sequence, a map
            yield None
        number += 1


def expected(model: Any, x: np.ndarray) -> np.ndarray | None:
    """What the reference computes; None if it cannot."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            (y,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x})
    except Exception:
        return None
    return y if isinstance(y, np.ndarray) else None


def off(y: np.ndarray, right: np.ndarray) -> str:
    """What is wrong with a result; empty if nothing. Models of half precision are read as float32."""
    tolerance = 1e-3 if right.dtype.itemsize > 2 else 3e-2
    if y.shape != right.shape:
        return f"the shape is {y.shape}, not {right.shape}"
    right = right.astype(np.float64)
    finite = np.isfinite(right)
    error = np.abs(np.where(finite, y - np.where(finite, right, 0.0), 0.0))
    scale = max(1e-3, np.abs(right[finite]).max(initial=0.0))
    if not error.max(initial=0.0) <= tolerance * scale:
        return f"it is off by {error.max():.3g} of {scale:.3g}"
    return ""


def outcome(case: Attempt, **how: Any) -> str:
    """equal, refused or not comparable. Raises AssertionError for a wrong number, and what a crash raises."""
    model = case.made()
    try:
        net, p, state = from_onnx(model, backend="numpy", **how)
    except ValueError:
        return "refused"
    compared = 0
    for x in case.batches():
        right = expected(model, x)
        if right is None:
            continue
        with np.errstate(all="ignore"):
            data = x if x.dtype.kind in "iub" else x.astype(p.dtype)
            wrong = off(net(data, p, state=state), right)
        if wrong:
            raise AssertionError(f"{case}: {wrong}")
        compared += 1
    return "equal" if compared else "not comparable"


def attempt(seed: int, number: int) -> str:
    """All of them, in an order that depends on the seed."""
    every = attempts()
    return outcome(every[np.random.default_rng(seed).permutation(len(every))[number % len(every)]], check=False)


def missing() -> str:
    try:
        import onnx  # noqa: F401
    except ImportError:
        return "install onnx"
    return ""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(running.main(attempt, missing=missing))
