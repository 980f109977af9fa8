"""
Your own layer
==============

You need a layer that is not built in. Your class declares its arrays and writes down how its output is filled, with a dozen
operations. This function runs once, when a network's program is recorded, and the pullback is derived from the operations. Only
recorded operations remain, and they are compiled like those of any other layer.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from chains import Adam, Chain, Dense, Layer, SquaredLoss, tanh, train
from chains.expr import cos, sin
from chains.layers import Declaration
from chains.program import Recorder, View
from chains.testing import check_gradients

# %%
# Waves with trained frequencies: y = (sin(x w), cos(x w)). ``declare`` names the arrays, in shapes of one sample:
# parameters with their starting values, the output, temporary arrays. ``forward`` fills ``y``.


class Waves(Layer):
    """y = (sin(x @ frequency), cos(x @ frequency)), from (inputs,) to (2 waves,)."""

    def __init__(self, inputs: int, waves: int) -> None:
        self.inputs, self.waves = inputs, waves

    def fixed_input(self) -> tuple[int, ...]:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        d.param("frequency", (self.inputs, self.waves), lambda rng, shape: rng.normal(0.0, 3.0, shape))
        d.output((2 * self.waves,))
        d.temporary("z", (self.waves,))

    def halves(self, y: View) -> tuple[View, View]:
        return y.slice(1, 0, self.waves), y.slice(1, self.waves, 2 * self.waves)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.z, x, p.frequency)
        ops.map(self.halves(y), lambda z: (sin(z), cos(z)), s.z)


# %%
# The derived pullback is compared with central differences, for the parameters and the inputs:

net = Chain(Waves(1, 16), Dense(32, 16, tanh), Dense(16, 1))
print(check_gradients(net))

# %%
# A curve that oscillates fast is hard for a network of tanh, and easy for one of waves.

x = np.random.default_rng(0).uniform(-3, 3, (400, 1))
t = np.sin(6 * x) * np.cos(x)
plain = Chain(Dense(1, 32, tanh), Dense(32, 16, tanh), Dense(16, 1))
grid = np.linspace(-3, 3, 300)[:, None]
figure, axis = plt.subplots(layout="constrained")
axis.plot(x, t, ".", color="gray", markersize=3)
for name, network in (("waves", net), ("tanh", plain)):
    p = network.init(seed=0)
    history = train(network, p, x, t, SquaredLoss(), Adam(3e-3), epochs=100, batch_size=50)
    axis.plot(grid, network(grid, p), label=f"{name}: loss {history.loss[-1]:.1e}")
axis.set(xlabel="x", ylabel="y")
axis.legend()

# %%
# A pullback by hand
# ------------------
# A class may have a ``pullback`` instead, for speed. It gets ``dy`` and fills ``g.frequency`` and ``dx``. With z = x w, the
# cotangent of z is dy_sin cos(z) - dy_cos sin(z). The programs have a line for each operation, so they show what it gains. Here
# that is nothing: the derived pullback too takes the waves from ``y``.


class WavesByHand(Waves):
    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.map(s.z, lambda ds, dc, sine, cosine: ds * cosine - dc * sine, *self.halves(dy), *self.halves(y))
        ops.matmul(g.frequency, x.T, s.z)
        ops.matmul(dx, s.z, p.frequency.T)


for layer in (Waves(4, 16), WavesByHand(4, 16)):
    program = Chain(layer, Dense(32, 1)).program(SquaredLoss())
    scratch = program.scratch.bytes_per_sample
    print(f"{type(layer).__name__}: {len(program.operations)} operations, {scratch} bytes of scratch a sample")

# %%
# To try next: frequencies of width 0.3 instead of 3.0, with which this network does not follow the curve either. :doc:`The
# page on your own parts </api/custom>` lists the operations of a layer.
