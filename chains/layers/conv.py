"""Convolutions of images and of signals, their transposes, and convolutions along time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from chains.activations import Activation, identity, resolve
from chains.initializers import InitializerLike, initializer, setting_text
from chains.layers.base import Declaration, Layer, SampleShape, check_sequence
from chains.layers.combine import Series
from chains.layers.dense import Dense
from chains.layers.elementwise import record_activation, record_slope
from chains.layers.images import (
    Number,
    Padding,
    Sliding,
    as_image,
    axes_of,
    check_images,
    per_axis,
    positions,
    setting,
    settings_text,
    window_of,
)
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags


class _Convolution(Sliding):
    """The parts that both kinds of convolution share: all but the product itself."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Number, activation: Activation | str = identity, *, stride: Number = 1,
        padding: Padding = 0, dilation: Number = 1, groups: int = 1, bias: bool = True,
        weight_init: InitializerLike = "glorot_normal", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        self.inputs = check_count("inputs", inputs)
        self.outputs = check_count("outputs", outputs)
        self.ndim = axes_of(kernel)
        self.window = window_of(kernel, stride, padding, dilation)
        if isinstance(activation, str) and activation in ("same", "valid"):
            raise ValueError(f"`activation` (={activation!r}) is a padding: write padding={activation!r}")
        self.activation = resolve(activation)
        self.groups = check_count("groups", groups)
        for name, channels in (("inputs", inputs), ("outputs", outputs)):
            if channels % groups:
                raise ValueError(f"`{name}` (={channels}) must be divisible by `groups` (={groups})")
        check_flags(bias=bias)
        self.bias = bias
        self.weight_init = initializer(weight_init, "weight_init", shape=self._weight_shape)
        self.bias_init = initializer(bias_init, "bias_init", shape=(self.outputs,))

    @property
    @abstractmethod
    def _channels(self) -> tuple[int, int]:
        """The first two lengths of the weight."""

    @property
    def _weight_shape(self) -> tuple[int, ...]:
        return (*self._channels, *self.kernel)

    @abstractmethod
    def _positions(self, input: SampleShape) -> tuple[int, ...]:
        """The output's height and width, or length."""

    @abstractmethod
    def _product(self, ops: Recorder, x: View, z: View, weight: View) -> None:
        """Record how `z`, the output before bias and activation, is filled."""

    @abstractmethod
    def _gradients(self, ops: Recorder, x: View, dz: View, dx: View, weight: View, dweight: View) -> None:
        """Record how the gradients with respect to the weight and the input are filled."""

    def declare(self, d: Declaration) -> None:
        check_images(d.input, self.ndim, self.inputs)
        shape = (self.outputs, *self._positions(d.input))
        d.param("weight", self._weight_shape, self.weight_init)
        if self.bias:
            d.param("bias", (self.outputs,), self.bias_init)
        d.output(shape)
        if self.activation.needs_input:
            d.saved("z", shape)  # the convolution + bias

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        z = s.z if self.activation.needs_input else y
        self._product(ops, as_image(x), as_image(z), as_image(p.weight))
        record_activation(ops, self.activation, y, z, self._per_channel(p.bias) if self.bias else None)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        dz = record_slope(ops, self.activation, dy, dy, y, s)
        if self.bias:
            ops.sum(self._per_channel(g.bias), dz)
        self._gradients(ops, as_image(x), as_image(dz), as_image(dx), as_image(p.weight), as_image(g.weight))

    def _per_channel(self, bias: View) -> View:
        return bias.reshape(self.outputs, *(1,) * self.ndim)

    def _extra(self) -> str:
        """Settings of the subclass alone, for people."""
        return ""

    def short_repr(self) -> str:
        parts = [str(self.inputs), str(self.outputs), setting(self.kernel)]
        parts += [] if self.activation is identity else [str(self.activation)]
        rest = settings_text(self.window, self.ndim) + self._extra() + (f", groups={self.groups}" if self.groups > 1 else "")
        return f"{type(self).__name__}({', '.join(parts)}{rest}{'' if self.bias else ', bias=False'})"

    def __repr__(self) -> str:
        bias = setting_text("bias_init", self.bias_init, "zeros")
        return f"{self.short_repr()[:-1]}{setting_text('weight_init', self.weight_init, 'glorot_normal')}{bias})"


class Conv(_Convolution):
    """``y = activation(x * weight + bias)``, a convolution without flip of images or signals. As in PyTorch.

    Images (inputs, height, width) become (outputs, rows, columns), signals (inputs, length) become (outputs, positions). The
    output has ``floor((length + padding - dilation * (kernel - 1) - 1) / stride) + 1`` positions along an axis.

    Parameters
    ----------
    inputs, outputs : int
        Channels, before and after.
    kernel : int or tuple of int
        A length or a pair for images, ``(length,)`` for signals.
    activation : activation or str
        Of the outputs.
    stride : int or tuple of int
        Steps of the kernel: one number, or one for each axis.
    padding : int, tuple or str
        Zeros around the input: a number, or a number or pair (before, after) for each axis; "valid" for none; "same" for an
        output as large as the input, with stride 1 only.
    dilation : int or tuple of int
        Distances between the kernel's entries: one number, or one for each axis.
    groups : int
        The number of parts of the channels: each group of outputs sees only its group of inputs.
    bias : bool
        Whether there is a bias, of shape (outputs,).
    weight_init, bias_init : initializer
        Of the weight, (outputs, inputs / groups, *kernel), and of the bias.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    @property
    def _channels(self) -> tuple[int, int]:
        return self.outputs, self.inputs // self.groups

    def _positions(self, input: SampleShape) -> tuple[int, ...]:
        return positions(self.window, input)

    def _product(self, ops: Recorder, x: View, z: View, weight: View) -> None:
        ops.convolve(z, x, weight, self.window, groups=self.groups)

    def _gradients(self, ops: Recorder, x: View, dz: View, dx: View, weight: View, dweight: View) -> None:
        ops.convolve_weight(dweight, x, dz, self.window, groups=self.groups)
        ops.convolve_input(dx, dz, weight, self.window, groups=self.groups)


class ConvTranspose(_Convolution):
    """The transpose of `Conv`: it maps outputs of that layer to inputs, such as larger images for a stride above 1.

    As in PyTorch. The length of the output is ``(length - 1) * stride + dilation * (kernel - 1) + 1 + output_padding`` less all
    padding.

    Parameters
    ----------
    inputs, outputs, kernel, activation, stride, padding
        As of `Conv`.
    output_padding : int or tuple of int
        A number below the stride. It chooses among the lengths that `Conv` would map to the length of the input.
    dilation, groups, bias
        As of `Conv`.
    weight_init, bias_init : initializer
        Of the weight, (inputs, outputs / groups, *kernel), whose fans are those of this shape, and of the bias.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: Number, activation: Activation | str = identity, *, stride: Number = 1,
        padding: Padding = 0, output_padding: Number = 0, dilation: Number = 1, groups: int = 1, bias: bool = True,
        weight_init: InitializerLike = "glorot_normal", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        super().__init__(
            inputs, outputs, kernel, activation, stride=stride, padding=padding, dilation=dilation, groups=groups,
            bias=bias, weight_init=weight_init, bias_init=bias_init,
        )  # fmt: skip
        self.output_padding = per_axis("output_padding", output_padding, self.ndim, least=0)
        steps = self.stride
        if any(extra >= step for extra, step in zip(self.output_padding, steps, strict=True)):
            raise ValueError(f"`output_padding` (={output_padding}) must be below `stride` (={setting(steps)})")

    @property
    def _channels(self) -> tuple[int, int]:
        return self.inputs, self.outputs // self.groups

    def _positions(self, input: SampleShape) -> tuple[int, ...]:
        window, ndim = self.window, self.ndim
        axes = zip(input[1:], window.stride[-ndim:], window.span[-ndim:], window.padding[-ndim:], strict=True)
        lengths = [(length - 1) * step + span - sum(pads) for length, step, span, pads in axes]
        outputs = tuple(length + extra for length, extra in zip(lengths, self.output_padding, strict=True))
        if min(outputs) < 1:
            raise ValueError(f"`padding` leaves nothing of an input of shape {input}: the output would have size {outputs}")
        return outputs

    def _product(self, ops: Recorder, x: View, z: View, weight: View) -> None:
        ops.convolve_input(z, x, weight, self.window, groups=self.groups)

    def _gradients(self, ops: Recorder, x: View, dz: View, dx: View, weight: View, dweight: View) -> None:
        ops.convolve_weight(dweight, dz, x, self.window, groups=self.groups)
        ops.convolve(dx, dz, weight, self.window, groups=self.groups)

    def _extra(self) -> str:
        return f", output_padding={setting(self.output_padding)}" if any(self.output_padding) else ""


class CausalConv(Series):
    """A dense layer on each step of a sequence together with earlier steps. Before the first step there are zeros.

    Samples (time, inputs) become (time, outputs), as by PyTorch's Conv1d after these zeros. A series of them with dilations 1,
    2, 4, ... sees far back. Source: van den Oord et al. 2016.

    Parameters
    ----------
    inputs, outputs : int
        Features of a step, before and after.
    kernel : int
        How many steps an output sees, the last being its own.
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
        self, inputs: int, outputs: int, kernel: int, activation: Activation | str = identity, *, dilation: int = 1,
        bias: bool = True, weight_init: InitializerLike = "glorot_normal", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
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

    __repr__ = Layer.__repr__


class _Neighbours(Layer):
    """Each step of (time, features) next to the earlier ones that a kernel sees: (time, kernel * features)."""

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

    def _parts(self, steps: View, input: SampleShape) -> Iterator[tuple[View, int]]:
        """The features of each step that is seen, and how many steps back it is, at most all."""
        time, features = input
        for k in range(self.kernel):
            back = (self.kernel - 1 - k) * self.dilation
            yield steps.slice(-1, k * features, (k + 1) * features), min(back, time)
