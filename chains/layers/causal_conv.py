"""A convolution along time that sees no later steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chains.activations import Activation, identity
from chains.initializers import InitializerLike
from chains.layers.attention import check_sequence
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series
from chains.layers.dense import Dense
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count


class CausalConv(Series):
    """A dense layer on each step of a sequence together with earlier steps. Before the first step there are zeros.

    Samples (time, inputs) become (time, outputs). As PyTorch's Conv1d behind so many zeros. A series of them with dilations
    1, 2, 4, ... sees far back. Source: van den Oord et al. 2016.

    Parameters
    ----------
    inputs, outputs : int
        Features of a step, before and after.
    kernel : int
        How many steps an output sees, itself the last one.
    activation : activation or str
        Of the outputs.
    dilation : int
        The distance between these steps.
    bias, weight_init, bias_init
        As of `Dense`. The weight has shape (kernel * inputs, outputs), the rows of the earliest step first.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        activation: Activation | str = identity,
        *,
        dilation: int = 1,
        bias: bool = True,
        weight_init: InitializerLike = "glorot_normal",
        bias_init: InitializerLike = "zeros",
    ) -> None:
        self.inputs = check_count("inputs", inputs)
        self.kernel = check_count("kernel", kernel)
        self.dilation = check_count("dilation", dilation)
        self.dense = Dense(kernel * inputs, outputs, activation, bias=bias, weight_init=weight_init, bias_init=bias_init)
        self.outputs, self.activation, self.bias = self.dense.outputs, self.dense.activation, self.dense.bias
        self.weight_init, self.bias_init = self.dense.weight_init, self.dense.bias_init
        super().__init__(_Neighbours(self.kernel, self.dilation), self.dense)

    def declare(self, d: Declaration) -> None:
        check_sequence(self, d.input, "inputs", self.inputs)
        super().declare(d)

    def __repr__(self) -> str:
        dilation = "" if self.dilation == 1 else f", dilation={self.dilation}"
        settings = repr(self.dense).removeprefix(f"Dense({self.dense.inputs}, {self.dense.outputs}").removesuffix(")")
        activation = "" if self.dense.activation is identity else f", {self.dense.activation}"
        return (
            f"CausalConv({self.inputs}, {self.dense.outputs}, {self.kernel}{activation}{dilation}"
            f"{settings.removeprefix(activation)})"
        )


class _Neighbours(Layer):
    """Each step of (time, features) side by side with the ones before it that a kernel sees: (time, kernel * features)."""

    def __init__(self, kernel: int, dilation: int) -> None:
        self.kernel = kernel
        self.dilation = dilation

    def declare(self, d: Declaration) -> None:
        time, features = d.input
        d.output((time, self.kernel * features))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for part, back in self._parts(y, x.sample_shape):
            time = x.sample_shape[0]
            ops.fill(part.slice(1, 0, back), 0.0)
            ops.copy(part.slice(1, back, time), x.slice(1, 0, time - back))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        time = x.sample_shape[0]
        *earlier, (now, _) = self._parts(dy, x.sample_shape)
        ops.copy(dx, now)
        for part, back in earlier:
            target = dx.slice(1, 0, time - back)
            ops.map(target, lambda dx, dy: dx + dy, target, part.slice(1, back, time))

    def _parts(self, steps: View, input: SampleShape) -> Iterator[tuple[View, int]]:
        """The features that come from each of the steps seen, and how many steps back these lie, at most all."""
        time, features = input
        for k in range(self.kernel):
            back = (self.kernel - 1 - k) * self.dilation
            yield steps.slice(-1, k * features, (k + 1) * features), min(back, time)
