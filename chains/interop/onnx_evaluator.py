"""onnx's reference evaluator, with what it lacks: windows of all kinds, old operators, activations of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.activations import ACTIVATIONS
from chains.interop.onnx_recurrent import within
from chains.interop.onnx_windows import operators


def evaluator(model: Any, version: int) -> Any:
    """An evaluator of a model of this version of ONNX."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=[*operators(onnx), _rnn(), *(_old_softmax() if version < 13 else [])])


def _rnn() -> type:
    from onnx.reference.ops.op_rnn import RNN_14

    class RNN(RNN_14):
        def choose_act(self, name: str, alpha: float | None, beta: float | None) -> Any:
            found = within(self.onnx_node, {"activations": [name.encode()], "activation_alpha": [alpha] if alpha else []})
            return ACTIVATIONS[found] if isinstance(found, str) else found

    return RNN


def _old_softmax() -> list[type]:
    """Before version 13, all axes from the given one on are one axis."""
    from onnx.reference.op_run import OpRun

    class Softmax(OpRun):
        def _run(self, x: Any, **newest: Any) -> tuple[Any]:
            axes = [each.i for each in self.onnx_node.attribute if each.name == "axis"]
            rows = x.reshape(*x.shape[: (axes or [1])[0] % x.ndim], -1)
            return (self.of_rows(rows - rows.max(axis=-1, keepdims=True)).reshape(x.shape),)

        def of_rows(self, rows: Any) -> Any:
            return np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)

    class LogSoftmax(Softmax):
        def of_rows(self, rows: Any) -> Any:
            return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))

    return [Softmax, LogSoftmax]
