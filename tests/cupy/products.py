"""Networks whose products have epilogues or bfloat16 factors, and their programs."""

from __future__ import annotations

import numpy as np

import chains
from chains import Chain, Dense, SquaredLoss, relu, tanh
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.cublas import EPILOGUES
from chains.backends.cupy.source.commands import Fused
from chains.network import record
from chains.program.recorder import Recorder

NAMES = {value: name for name, value in EPILOGUES.items()}
HALF = 2.0**-8  # the largest relative error of a number rounded to bfloat16

NETS = {
    "relu": Chain(Dense(4, 8, relu), Dense(8, 8, relu), Dense(8, 4)),
    "mixed": Chain(Dense(8, 8, tanh), Dense(8, 8), Dense(8, 16, relu), Dense(16, 4, chains.gelu)),
    "no bias": Chain(Dense(4, 8, relu, bias=False), Dense(8, 4)),
    "positions": Chain(Dense(4, 8, relu), Dense(8, 4, relu), input_shape=(3, 4)),
    "wide mask": Chain(Dense(4, 200, relu), Dense(200, 4)),
    "branches": Chain(Dense(4, 8, relu), chains.Residual(Dense(8, 8, relu)), Dense(8, 4, relu)),
    "unaligned": Chain(Dense(3, 7, relu), Dense(7, 5, relu), Dense(5, 3)),
}


def gradient(net: Chain, dtype=np.float32, *, inputs: bool = False):
    """The program of a gradient, also with respect to the inputs; and what it is given, for 20 samples."""
    rng, (shape,) = np.random.default_rng(0), (net.output_shape,)
    arrays = {"p": rng.normal(0.0, 0.5, net.n_params), "x": rng.normal(size=(20, *net.input_shape))}
    if inputs:
        return record.vjp(net.network, dtype, False), arrays | {"dy": rng.normal(size=(20, *shape))}
    objective = record.Criterion(SquaredLoss(), shape)
    return record.gradient(net.network, objective, dtype, True), arrays | {"t": rng.normal(size=(20, *shape))}


def kinds(program, **settings) -> list[str]:
    return [step.kind for step in Compiled(program, **settings).commands if isinstance(step, Fused)]


def own_program(write):
    """A program that `write` records with views x, w, b, y, db of one size."""
    ops = Recorder("own", np.float32)
    x = ops.external("x", (8,), role="input", batched=True)
    w, b = ops.external("w", (8, 8), role="input"), ops.external("b", (8,), role="input")
    y = ops.external("y", (8,), role="output", batched=True)
    write(ops, x, w, b, y, ops.external("db", (8,), role="output"))
    return ops.finish()


HALF_NETS = {
    "relu": Chain(Dense(8, 16, relu), Dense(16, 8, relu), Dense(8, 8)),
    "tanh": Chain(Dense(8, 8, tanh), Dense(8, 16, tanh), Dense(16, 4)),
    "positions": Chain(Dense(8, 16, tanh), Dense(16, 8, relu), input_shape=(3, 8)),
    "branches": Chain(Dense(8, 8, tanh), chains.Residual(Dense(8, 8, relu), Dense(8, 8)), Dense(8, 8)),
    "some": Chain(Dense(8, 12, tanh), Dense(12, 8, tanh), Dense(8, 8)),
}
