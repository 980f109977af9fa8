"""
Twenty layers
=============

Layers from papers, which are not built in. Each has two short functions: ``declare`` names its arrays, and ``forward`` says how
the output is filled. The pullback is derived when a network is recorded. All twenty are compared with central differences.
"""

from typing import Any

import numpy as np

from chains import Chain, Layer, Recurrent
from chains.expr import exp, log1p, maximum, tanh
from chains.layers import Cell, Declaration
from chains.program import Recorder, View
from chains.testing import check_gradients

# %%
# Formulas are ordinary functions, and several layers need the same two. A softmax is four operations.


def sigmoid(z: Any) -> Any:
    return 1.0 / (1.0 + exp(-z))


def softmax(ops: Recorder, out: View, z: View) -> None:
    """out = the softmax of z over its last axis."""
    row = ops.scratch("row", (*z.sample_shape[:-1], 1))
    ops.max(row, z)
    ops.map(out, lambda z, largest: exp(z - largest), z, row)
    ops.sum(row, out)
    ops.map(out, lambda e, total: e / total, out, row)


# %%
# Products of features
# --------------------
# A bilinear layer multiplies two projections. A gated linear unit multiplies one by the sigmoid of the other. A highway layer
# mixes its input with a projection. A low-rank layer goes through few numbers. Feature-wise modulation scales and shifts one
# part of a sample by numbers that the other part decides.


class Bilinear(Layer):
    def declare(self, d: Declaration) -> None:
        for name in ("left", "right"):
            d.param(name, (*d.input, 4), "lecun_normal")
            d.temporary(name, (4,))
        d.param("weight", (4, 2), "lecun_normal")
        d.temporary("product", (4,))
        d.output((2,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.left, x, p.left)
        ops.matmul(s.right, x, p.right)
        ops.map(s.product, lambda a, b: a * b, s.left, s.right)
        ops.matmul(y, s.product, p.weight)


class GatedLinearUnit(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("weight", (*d.input, 6), "lecun_normal")
        d.temporary("z", (6,))
        d.output((3,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x, p.weight)
        ops.map(y, lambda a, gate: a * sigmoid(gate), s.z.slice(1, 0, 3), s.z.slice(1, 3, 6))


class Highway(Layer):
    def declare(self, d: Declaration) -> None:
        for name in ("gate", "value"):
            d.param(name, d.input * 2, "lecun_normal")
            d.temporary(name, d.input)
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.gate, x, p.gate)
        ops.matmul(s.value, x, p.value)
        ops.map(y, lambda x, g, v: x + sigmoid(g) * (tanh(v) - x), x, s.gate, s.value)


class LowRank(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("down", (*d.input, 1), "lecun_normal")
        d.param("up", (1, 3), "lecun_normal")
        d.temporary("z", (1,))
        d.output((3,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x, p.down)
        ops.matmul(y, s.z, p.up)


class Modulation(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("weight", (1, 4), "lecun_normal")
        d.temporary("z", (4,))
        d.output((2,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x.slice(1, 2, 3), p.weight)
        scale, shift = s.z.slice(1, 0, 2), s.z.slice(1, 2, 4)
        ops.map(y, lambda x, a, b: (1.0 + a) * x + b, x.slice(1, 0, 2), scale, shift)


# %%
# Choices
# -------
# A mixture of experts, maxout, and a soft decision tree of depth two. Squeeze-and-excite weighs the channels of a sample
# (channels, positions) by their means.


class MixtureOfExperts(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("route", (*d.input, 3), "lecun_normal")
        d.param("weight", (*d.input, 3 * 2), "lecun_normal")
        d.temporary("share", (3,))
        d.temporary("each", (3, 2))
        d.output((2,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.share, x, p.route)
        softmax(ops, s.share, s.share)
        ops.matmul(s.each.reshape(6), x, p.weight)
        ops.map(s.each, lambda z, share: tanh(z) * share, s.each, s.share.expand(-1))
        ops.sum(y.expand(1), s.each)


class Maxout(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("weight", (*d.input, 4 * 2), "lecun_normal")
        d.temporary("z", (4, 2))
        d.output((4,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z.reshape(8), x, p.weight)
        ops.max(y.expand(-1), s.z)


class SoftTree(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("split", (*d.input, 3), "lecun_normal")
        d.param("leaves", (4, 2), "lecun_normal")
        d.temporary("z", (3,))
        d.temporary("share", (4,))
        d.output((2,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x, p.split)
        root = s.z.slice(1, 0, 1)
        for k, sign in enumerate((1.0, -1.0)):
            leaves = [s.share.slice(1, n, n + 1) for n in (2 * k, 2 * k + 1)]
            formula = lambda r, z, sign=sign: (sigmoid(sign * r) * sigmoid(z), sigmoid(sign * r) * sigmoid(-z))  # noqa: E731
            ops.map(tuple(leaves), formula, root, s.z.slice(1, k + 1, k + 2))
        ops.matmul(y, s.share, p.leaves)


class SqueezeAndExcite(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("weight", (d.input[0], d.input[0]), "lecun_normal")
        d.temporary("mean", d.input[:1])
        d.temporary("gate", d.input[:1])
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.sum(s.mean.expand(-1), x)
        ops.matmul(s.gate, s.mean, p.weight)
        ops.map(y, lambda x, gate: x * sigmoid(gate), x, s.gate.expand(-1))


# %%
# Distances and curves
# --------------------
# Radial basis functions, prototypes by distance, a spline for each feature, and a Kolmogorov-Arnold layer:
# a spline for each pair of an input and an output.


class RadialBasis(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("centres", (3, *d.input), "lecun_normal")
        d.param("width", (3,), "ones")
        d.temporary("square", (3, *d.input))
        d.output((3,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(s.square, lambda x, c: (x - c) ** 2, x.expand(1), p.centres)
        ops.sum(y.expand(-1), s.square)
        ops.map(y, lambda r, w: exp(-r * w * w), y, p.width)


class Prototypes(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("prototypes", (3, *d.input), "lecun_normal")
        d.temporary("square", (3, *d.input))
        d.temporary("near", (3,))
        d.output((3,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(s.square, lambda x, c: (x - c) ** 2, x.expand(1), p.prototypes)
        ops.sum(s.near.expand(-1), s.square)
        ops.map(s.near, lambda r: -log1p(r), s.near)
        softmax(ops, y, s.near)


class Spline(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("knots", (*d.input, 4), lambda rng, shape: np.broadcast_to(np.linspace(-2.0, 2.0, 4), shape))
        d.param("weight", (*d.input, 4), "lecun_normal")
        d.temporary("basis", (*d.input, 4))
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(s.basis, lambda x, k, w: w * maximum(0.0, 1.5 - abs(x - k)) ** 2, x.expand(-1), p.knots, p.weight)
        ops.sum(y.expand(-1), s.basis)


class KolmogorovArnold(Layer):
    def declare(self, d: Declaration) -> None:
        (n,) = d.input
        d.param("weight", (5 * n, 2), "lecun_normal")
        d.temporary("basis", (n, 5))
        d.output((2,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        knots = ops.constant("knots", np.linspace(-2.0, 2.0, 5))
        ops.map(s.basis, lambda x, k: exp(-2.0 * (x - k) ** 2), x.expand(-1), knots)
        ops.matmul(y, s.basis.reshape(5 * x.sample_shape[0]), p.weight)


# %%
# Sequences and sets
# ------------------
# Samples are (steps, features). Token mixing exchanges the axes. Spectral mixing weighs the frequencies of a discrete Fourier
# transform. Deformable sampling reads between the steps, at places that the features decide. Capsules agree by routing, and a
# transformer block is attention and a network for each step, both with a shortcut.


class TokenMixing(Layer):
    def declare(self, d: Declaration) -> None:
        steps, features = d.input
        d.param("weight", (steps, steps), "lecun_normal")
        d.temporary("turned", (features, steps))
        d.temporary("mixed", (features, steps))
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.copy(s.turned, x.swap(1, 2))
        ops.matmul(s.mixed.rows, s.turned.rows, p.weight)
        ops.map(y, lambda x, z: x + tanh(z), x, s.mixed.swap(1, 2))


class SpectralMixing(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("filter", (2, *d.input), "ones")
        d.temporary("waves", (2, *d.input))
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (n,) = x.sample_shape
        angles = 2.0 * np.pi / n * np.outer(np.arange(n), np.arange(n))
        cosines, sines = ops.constant("cosines", np.cos(angles) / n), ops.constant("sines", np.sin(angles))
        for k, wave in enumerate((cosines, sines)):
            ops.matmul(s.waves.index(1, k), x, wave)
        ops.map(s.waves, lambda w, f: w * f, s.waves, p.filter)
        for k, wave in enumerate((cosines, sines)):
            ops.matmul(y, s.waves.index(1, k), wave, accumulate=k > 0)


class DeformableSampling(Layer):
    def declare(self, d: Declaration) -> None:
        steps, features = d.input
        d.param("offset", (features, 1), "lecun_normal")
        d.temporary("place", (steps, 1))
        d.temporary("share", (steps, steps))
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        steps = np.arange(x.sample_shape[0])
        ops.matmul(s.place.rows, x.rows, p.offset)
        hat = lambda move, t, k: maximum(0.0, 1.0 - abs(t + tanh(move) - k))  # noqa: E731
        ops.map(s.share, hat, s.place, ops.constant("steps", steps[:, None]), ops.constant("places", steps[None, :]))
        ops.matmul(y, s.share, x)


class CapsuleRouting(Layer):
    def declare(self, d: Declaration) -> None:
        capsules, _ = d.input
        d.param("weight", (d.input[1], 2 * 3), "lecun_normal")  # two capsules of three numbers
        d.temporary("vote", (capsules, 2, 3))
        for name in ("logit", "share"):
            d.temporary(name, (capsules, 2))
        d.output((2, 3))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.vote.reshape(x.sample_shape[0], 6).rows, x.rows, p.weight)
        ops.fill(s.share, 0.5)
        for _ in range(2):
            weighed, agreement = (ops.scratch(name, s.vote.sample_shape) for name in ("weighed", "agreement"))
            ops.map(weighed, lambda v, share: v * share, s.vote, s.share.expand(-1))
            ops.sum(y.expand(1), weighed)
            ops.map(y, tanh, y)
            ops.map(agreement, lambda v, y: v * y, s.vote, y.expand(1))
            ops.sum(s.logit.expand(-1), agreement)
            softmax(ops, s.share, s.logit)


class TransformerBlock(Layer):
    def declare(self, d: Declaration) -> None:
        steps, n = d.input
        d.param("project", (n, 3 * n), "lecun_normal")
        d.param("up", (n, 2 * n), "lecun_normal")
        d.param("down", (2 * n, n), "lecun_normal")
        for name, width in (("projected", 3 * n), ("mixed", n), ("hidden", 2 * n), ("out", n)):
            d.temporary(name, (steps, width))
        d.temporary("share", (steps, steps))
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        n = x.sample_shape[1]
        ops.matmul(s.projected.rows, x.rows, p.project)
        query, key, value = (s.projected.slice(2, k * n, (k + 1) * n) for k in range(3))
        ops.matmul(s.share, query, key.swap(1, 2))
        softmax(ops, s.share, s.share)
        ops.matmul(s.mixed, s.share, value)
        ops.map(s.mixed, lambda x, z: x + z, x, s.mixed)
        ops.matmul(s.hidden.rows, s.mixed.rows, p.up)
        ops.map(s.hidden, lambda z: z * sigmoid(z), s.hidden)
        ops.matmul(s.out.rows, s.hidden.rows, p.down)
        ops.map(y, lambda x, z: x + z, s.mixed, s.out)


# %%
# Recurrences
# -----------
# A cell is a layer for one step: ``Recurrent`` repeats it. A loop within a layer is another way. Both are derived.


class MinimalGate(Cell):
    def declare(self, d: Declaration) -> None:
        d.carry("h", (3,))
        d.param("weight", (*d.input, 6), "lecun_normal")
        d.temporary("z", (6,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x, p.weight)
        mixed = lambda gate, new, h: h + sigmoid(gate) * (new - h)  # noqa: E731
        ops.map(y, mixed, s.z.slice(1, 0, 3), s.z.slice(1, 3, 6), s.before.h)


class StateSpace(Layer):
    def declare(self, d: Declaration) -> None:
        d.param("decay", (4,), "ones")
        d.param("inward", (d.input[1], 4), "lecun_normal")
        d.param("outward", (4, 1), "lecun_normal")
        for name in ("state", "new"):
            d.temporary(name, (4,))
        d.output((d.input[0], 1))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.fill(s.state, 0.0)
        with ops.loop(x.sample_shape[0]) as at:
            ops.matmul(s.new, at.now(x, 1), p.inward)
            ops.map(s.state, lambda h, new, a: sigmoid(a) * h + new, s.state, s.new, p.decay)
            ops.matmul(at.now(y, 1), s.state, p.outward)


# %%
# The check
# ---------
# Central differences of random networks, for the parameters and the inputs:

LAYERS: list[tuple[Layer, tuple[int, ...]]] = [
    *((each(), (3,)) for each in (Bilinear, GatedLinearUnit, Highway, LowRank, Modulation)),
    *((each(), (3,)) for each in (MixtureOfExperts, Maxout, SoftTree)),
    *((each(), (2,)) for each in (RadialBasis, Prototypes, Spline, KolmogorovArnold)),
    *((each(), (3, 2)) for each in (SqueezeAndExcite, TokenMixing, DeformableSampling, CapsuleRouting, TransformerBlock)),
    (SpectralMixing(), (4,)),
    (Recurrent(MinimalGate()), (3, 2)),
    (StateSpace(), (3, 2)),
]

if __name__ == "__main__":
    for layer, shape in LAYERS:
        net = Chain(layer, input_shape=shape)
        checked = check_gradients(net, batch=2, backends=["numpy"])
        print(f"{layer!s:40} {net.n_params:4} parameters, within {max(checked.parameters, checked.inputs):.0e}")

# %%
# To try next: a layer from a paper of your choice. :doc:`The page on your own parts </api/custom>` lists the operations of a
# layer, and ``print(net.program())`` shows what is left of it, with the derived pullback.
