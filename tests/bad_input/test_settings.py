"""Settings out of range, formulas that cannot be traced, numbers beyond those of floats."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, SquaredLoss, train
from chains.layers import Chebyshev, Compartments, Convex, FourierSeries, Monotone
from tests.bad_input.support import GOOD, NET, Calls, assert_refused

RATE = Dense(2, 2)
SETTINGS = {
    "Dense-inputs": (lambda: Dense(0, 2), "`inputs` (=0)"),
    "Dense-outputs": (lambda: Dense(3, -1), "`outputs` (=-1)"),
    "Dense-fraction": (lambda: Dense(3, 2.5), "`outputs` (=2.5)"),
    "Dense-True": (lambda: Dense(True, 2), "`inputs` (=True)"),
    "Dense-text": (lambda: Dense("3", 2), "`inputs` (='3')"),
    "Dense-array": (lambda: Dense(np.ones(3), 2), "`inputs` (=an array of float64, shape (3,))"),
    "Dense-bias": (lambda: Dense(3, 2, bias="no"), "`bias` (='no')"),
    "Conv-bias": (lambda: chains.Conv(1, 2, 3, bias=1), "`bias` (=1)"),
    "ConvTranspose-bias": (lambda: chains.ConvTranspose(1, 2, 3, bias=None), "`bias` (=None)"),
    "BatchNorm-affine": (lambda: chains.BatchNorm(3, affine="no"), "`affine` (='no')"),
    "BatchNorm-momentum": (lambda: chains.BatchNorm(3, momentum="a"), "`momentum` (='a')"),
    "BatchNorm-momentum-range": (lambda: chains.BatchNorm(3, momentum=1.5), "`momentum` (=1.5)"),
    "BatchNorm-eps": (lambda: chains.BatchNorm(3, eps=None), "`eps` (=None)"),
    "LayerNorm-affine": (lambda: chains.LayerNorm(affine=0), "`affine` (=0)"),
    "LayerNorm-eps": (lambda: chains.LayerNorm(eps="1e-5"), "`eps` (='1e-5')"),
    "GroupNorm-affine": (lambda: chains.GroupNorm(2, 4, affine=np.ones(2)), "`affine` (=an array of float64, shape (2,))"),
    "GRU-inputs": (lambda: chains.GRU(0, 2), "`inputs` (=0)"),
    "GRU-units": (lambda: chains.GRU(3, 2.5), "`units` (=2.5)"),
    "GRU-reset": (lambda: chains.GRU(3, 2, reset_after=1), "`reset_after` (=1)"),
    "GRU-sequences": (lambda: chains.GRU(3, 2, return_sequences="all"), "`return_sequences` (='all')"),
    "LSTM-bidirectional": (lambda: chains.LSTM(3, 2, bidirectional=2), "`bidirectional` (=2)"),
    "LSTM-init": (lambda: chains.LSTM(3, 2, weight_init="glorot"), "`weight_init` (='glorot')"),
    "RNN-initial": (lambda: chains.RNN(3, 2, initial_state="ones"), "`initial_state` (='ones')"),
    "GRU-checkpoints": (lambda: chains.GRU(3, 2, checkpoint_every=0), "`checkpoint_every` (=0)"),
    "LSTM-checkpoints": (lambda: chains.LSTM(3, 2, checkpoint_every=2.5), "`checkpoint_every` (=2.5)"),
    "RNN-checkpoints": (lambda: chains.RNN(3, 2, checkpoint_every=True), "`checkpoint_every` (=True)"),
    "Recurrent-cell": (lambda: chains.Recurrent(chains.layers.Cell), "`cell` (=<class 'chains.layers.recurrent.Cell'>)"),
    "SteadyState-rhs": (lambda: chains.SteadyState(chains.tanh, 2), "`rhs` (=<activation tanh"),
    "SteadyState-size": (lambda: chains.SteadyState(RATE, 33), "`size` (=33) must be at most 32"),
    "SteadyState-method": (lambda: chains.SteadyState(RATE, 2, "secant"), "`method` (='secant')"),
    "SteadyState-guess": (lambda: chains.SteadyState(RATE, 2, guess=[1.0]), "`guess` (=[1.0]) must be 2 finite numbers"),
    "SteadyState-rtol": (lambda: chains.SteadyState(RATE, 2, rtol=0), "`rtol` (=0)"),
    "SteadyState-steps": (lambda: chains.SteadyState(RATE, 2, max_steps=0), "`max_steps` (=0)"),
    "SDE-drift": (lambda: chains.SDE(chains.tanh, RATE, (0, 1)), "`drift` (=<activation tanh"),
    "SDE-diffusion": (lambda: chains.SDE(RATE, None, (0, 1)), "`diffusion` (=None) must be a layer"),
    "SDE-times": (lambda: chains.SDE(RATE, RATE, (1, 0)), "`times` must ascend, but 0 comes after 1"),
    "SDE-number": (lambda: chains.SDE(RATE, RATE, 3), "`times` (=3)"),
    "SDE-method": (lambda: chains.SDE(RATE, RATE, (0, 1), "tsit5"), "`method` (='tsit5')"),
    "SDE-steps": (lambda: chains.SDE(RATE, RATE, (0, 1), steps=0), "`steps` (=0)"),
    "SDE-given": (lambda: chains.SDE(RATE, RATE, (0, 1), given=-1), "`given` (=-1)"),
    "SDE-time": (lambda: chains.SDE(RATE, RATE, (0, 1), time=0.5), "`time` (=0.5)"),
    "SDE-checkpoints": (lambda: chains.SDE(RATE, RATE, (0, 1), checkpoint_every=0), "`checkpoint_every` (=0)"),
    "ODE-rhs": (lambda: chains.ODE(chains.tanh, (0, 1)), "`rhs` (=<activation tanh"),
    "ODE-method": (lambda: chains.ODE(RATE, (0, 1), "rk5"), "`method` (='rk5')"),
    "ODE-steps": (lambda: chains.ODE(RATE, (0, 1), steps=0), "`steps` (=0)"),
    "ODE-descending": (lambda: chains.ODE(RATE, (0, 2, 2)), "`times` must ascend, but 2 comes after 2"),
    "ODE-infinite": (lambda: chains.ODE(RATE, (0, math.inf)), "`times` must be finite, got inf at index (1,)"),
    "ODE-one-time": (lambda: chains.ODE(RATE, (0,)), "`times` has shape (1,)"),
    "ODE-text": (lambda: chains.ODE(RATE, "now"), "`times` (='now')"),
    "ODE-number": (lambda: chains.ODE(RATE, 1.5), "`times` (=1.5) must be a sequence of times or a whole number"),
    "ODE-own-times": (lambda: chains.ODE(RATE, 1), "`times` (=1) must be a whole number, 2 or more"),
    "ODE-rtol": (lambda: chains.ODE(RATE, (0, 1), rtol=0.0), "`rtol` (=0.0) must be in (0, inf)"),
    "ODE-interpolate": (
        lambda: chains.ODE(RATE, (0, 1), interpolate=True),
        "`interpolate` (=True) is of use with step control",
    ),
    "ODE-interpolate-adjoint": (
        lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, adjoint=True, interpolate=True),
        "`interpolate` (=True) does not go with `adjoint` (=True)",
    ),
    "ODE-jumps": (lambda: chains.ODE(RATE, (0, 1), jumps=[0.5]), "`jumps` (=[0.5]) is of use with step control only"),
    "ODE-jumps-fall": (
        lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, jumps=[0.5, 0.2]),
        "`jumps` must ascend, but 0.2 comes after",
    ),
    "ODE-jumps-late": (
        lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, jumps=[0.5, 2.0]),
        "`jumps` has 2, but must be from 0 to 1, the times of the solution",
    ),
    "ODE-rtol-euler": (lambda: chains.ODE(RATE, (0, 1), "euler", rtol=1e-3), "method 'euler' does not estimate its error"),
    "ODE-rtol-leapfrog": (lambda: chains.ODE(RATE, (0, 1), "leapfrog", rtol=1e-3), "but 'tsit5', 'kvaerno3', 'kvaerno5' do"),
    "ODE-adjoint-implicit": (lambda: chains.ODE(RATE, (0, 1), "kvaerno3", adjoint=True), "`adjoint` (=True) goes back in time"),
    "ODE-rtol-steps": (lambda: chains.ODE(RATE, (0, 1), steps=10, rtol=1e-3), "`steps` (=10) is a number of equal steps"),
    "ODE-atol": (lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, atol=[1e-3, -1.0]), "`atol` (=[0.001, -1.0]) must be positive"),
    "ODE-atol-text": (lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, atol="small"), "`atol` (='small')"),
    "ODE-atol-alone": (lambda: chains.ODE(RATE, (0, 1), atol=1e-3), "`atol` (=0.001) is of use with step control only"),
    "ODE-max-steps": (lambda: chains.ODE(RATE, (0, 1), rtol=1e-3, max_steps=0), "`max_steps` (=0)"),
    "ODE-max-steps-few": (
        lambda: chains.ODE(RATE, (0, 1, 2, 3), rtol=1e-3, max_steps=2),
        "`max_steps` (=2) must be at least 3: steps end at each of the times",
    ),
    "ODE-max-steps-alone": (lambda: chains.ODE(RATE, (0, 1), max_steps=9), "`max_steps` (=9) is of use with step control only"),
    "ODE-checkpoints": (lambda: chains.ODE(RATE, (0, 1), checkpoint_every=0), "`checkpoint_every` (=0)"),
    "ODE-given": (lambda: chains.ODE(RATE, (0, 1), given=-1), "`given` (=-1)"),
    "ODE-time": (lambda: chains.ODE(RATE, (0, 1), time=0.5), "`time` (=0.5)"),
    "ODE-forcing": (lambda: chains.ODE(RATE, (0, 1), forcing=3), "`forcing` (=3)"),
    "ODE-forcing-shape": (lambda: chains.ODE(RATE, (0, 1), forcing=([0, 1], [1])), "`forcing[1]` has shape (1,)"),
    "ODE-forcing-times": (lambda: chains.ODE(RATE, (0, 1), forcing=([1, 0], [1, 2])), "`forcing[0]` must ascend"),
    "ODE-forcing-nan": (lambda: chains.ODE(RATE, (0, 1), forcing=([0, 1], [1, math.nan])), "`forcing[1]` must be finite"),
    "ODE-forcing-text": (lambda: chains.ODE(RATE, (0, 1), forcing=([0, 1], ["a", "b"])), "`forcing[1]` (=['a', 'b'])"),
    "Equations-name": (lambda: chains.Equations(lambda x, z: z, ("x", "y")), "`formula` takes `z`, but there are only x, y"),
    "Equations-twice": (lambda: chains.Equations(lambda x: x, "xy", parameters={"x": 1}), "`inputs` (='xy')"),
    "Equations-both": (lambda: chains.Equations(lambda x: x, ("x",), parameters={"x": 1}), "`x` is the name of two things"),
    "Equations-nothing": (lambda: chains.Equations(lambda: 1.0, ()), "`inputs` (=())"),
    "Equations-value": (lambda: chains.Equations(lambda x: x, ("x",), parameters={"k": math.nan}), "`parameters['k']` (=nan)"),
    "Equations-network": (lambda: chains.Equations(lambda x: x, ("x",), network=RATE), "`outputs` (=())"),
    "Equations-formula": (lambda: chains.Equations(3, ("x",)), "`formula` (=3)"),
    "Equations-builtin": (lambda: chains.Equations(max, ("x",)), "`formula` (=<built-in function max>)"),
    "Equations-no-result": (lambda: chains.Equations(lambda x: (), ("x",)), "`formula` returns no results"),
    "Equations-names": (lambda: chains.Equations(lambda x, k: k * x, ("x",), parameters=["k"]), "`parameters` (=['k'])"),
    "Equations-control": (lambda: chains.Equations(lambda x: x if x > 0 else 0, ("x",)), "`formula`: "),
    "AvgPool-count": (lambda: chains.AvgPool(2, count_padding="no"), "`count_padding` (='no')"),
    "Conv-inputs": (lambda: chains.Conv(0, 2, 3), "`inputs` (=0)"),
    "Conv-outputs": (lambda: chains.Conv(1, 2.5, 3), "`outputs` (=2.5)"),
    "Conv-kernel": (lambda: chains.Conv(1, 2, 0), "`kernel` (=0)"),
    "Conv-kernel-fraction": (lambda: chains.Conv(1, 2, (3, 1.5)), "`kernel` (=(3, 1.5))"),
    "Conv-kernel-axes": (lambda: chains.Conv(1, 2, (3, 3, 3)), "`kernel` (=(3, 3, 3))"),
    "Conv-kernel-text": (lambda: chains.Conv(1, 2, "3"), "`kernel` (='3')"),
    "Conv-stride": (lambda: chains.Conv(1, 2, 3, stride=0), "`stride` (=0)"),
    "Conv-stride-pair": (lambda: chains.Conv(1, 2, 3, stride=(1, 0)), "`stride` (=(1, 0))"),
    "Conv-stride-axes": (lambda: chains.Conv(1, 2, (3,), stride=(1, 1)), "`stride` (=(1, 1))"),
    "Conv-dilation": (lambda: chains.Conv(1, 2, 3, dilation=-1), "`dilation` (=-1)"),
    "Conv-padding": (lambda: chains.Conv(1, 2, 3, padding=-1), "`padding` (=-1)"),
    "Conv-padding-text": (lambda: chains.Conv(1, 2, 3, padding="full"), "`padding` (='full')"),
    "Conv-padding-sides": (lambda: chains.Conv(1, 2, 3, padding=((1, 2), 1, 1)), "`padding` (=((1, 2), 1, 1))"),
    "Conv-same-stride": (lambda: chains.Conv(1, 2, 3, padding="same", stride=2), "`stride` 1, not 2"),
    "Conv-same-stride-pair": (lambda: chains.Conv(1, 2, 3, padding="same", stride=(1, 2)), "`stride` 1, not (1, 2)"),
    "Conv-groups": (lambda: chains.Conv(3, 4, 3, groups=2), "`inputs` (=3)"),
    "Conv-groups-outputs": (lambda: chains.Conv(4, 3, 3, groups=2), "`outputs` (=3)"),
    "Conv-groups-zero": (lambda: chains.Conv(4, 3, 3, groups=0), "`groups` (=0)"),
    "Conv-activation": (lambda: chains.Conv(4, 3, 3, "rely"), "'rely'"),
    "ConvTranspose-output-padding": (lambda: chains.ConvTranspose(1, 2, 3, output_padding=1), "`output_padding` (=1)"),
    "ConvTranspose-output-padding-axes": (
        lambda: chains.ConvTranspose(1, 2, 3, stride=2, output_padding=(1, 1, 1)),
        "`output_padding` (=(1, 1, 1))",
    ),
    "MaxPool-padding": (lambda: chains.MaxPool(3, padding=2), "`padding` (=2)"),
    "MaxPool-stride": (lambda: chains.MaxPool(3, stride=0), "`stride` (=0)"),
    "AvgPool-kernel": (lambda: chains.AvgPool(0), "`kernel` (=0)"),
    "Upsample-factor": (lambda: chains.Upsample(0), "`factor` (=0)"),
    "Upsample-factor-fraction": (lambda: chains.Upsample(1.5), "`factor` (=1.5)"),
    "Pad-negative": (lambda: chains.Pad(-1), "`padding` (=-1)"),
    "Pad-sides": (lambda: chains.Pad(((1, 2, 3), 1)), "`padding` (=(1, 2, 3))"),
    "Dense-activation": (lambda: Dense(3, 2, "tanhh"), "'tanhh'"),
    "Dense-function": (lambda: Dense(3, 2, np.tanh), "`activation`"),
    "Activation": (lambda: chains.Activation(None), "`activation` (=None)"),
    "Append-nothing": (lambda: chains.Append(), "at least"),
    "Append-bounds": (lambda: chains.Append(bounds={"a": (0, None)}, a=-1.0), "`a` must be above 0, got -1"),
    "Append-bounds-name": (lambda: chains.Append(bounds={"b": (0, None)}, a=1.0), "`bounds` has `b`"),
    "Append-text": (lambda: chains.Append(a="1"), "`a` (='1')"),
    "Select-nothing": (lambda: chains.Select([]), "`indices` (=[])"),
    "Select-number": (lambda: chains.Select(1), "`indices` (=1) must be whole numbers, at least one, such as Select([1])"),
    "Select-array": (lambda: chains.Select(np.array(1)), "`indices` (=an array of int64, shape ()) must be whole numbers"),
    "Select-mask": (lambda: chains.Select([True, False]), "`indices` (=[True, False])"),
    "Select-beyond": (lambda: Chain(chains.Select([2, -3]), input_shape=(2,)), "`indices` (=(2, -3))"),
    "Dense-bounds": (lambda: Dense(3, 2, weight_bounds=(1, 0)), "`weight_bounds` (=(1, 0))"),
    "Dense-bounds-init": (lambda: Chain(Dense(3, 2, weight_bounds=(0, None))).init(), "the initializer of `0.weight`"),
    "Monotone-widths": (lambda: Monotone(3, ()), "`widths` (=())"),
    "Monotone-beyond": (lambda: Monotone(3, 2, increasing=3), "`increasing` (=3) must be different positions below"),
    "Monotone-twice": (lambda: Monotone(3, 2, decreasing=[1, 1]), "`decreasing` (=[1, 1]) must be different positions"),
    "Monotone-text": (lambda: Monotone(3, 2, increasing="0"), "`increasing` (='0') must be whole numbers"),
    "Monotone-both": (lambda: Monotone(3, 2, increasing=1, decreasing=[0, 1]), "no input in common, both have 1"),
    "Monotone-activation": (lambda: Monotone(3, 2, activation="gelu"), "`activation` (=gelu) must not decrease"),
    "Convex-activation": (lambda: Convex(3, 2, activation=chains.tanh), "`activation` (=tanh) must be convex"),
    "Convex-input": (lambda: Chain(Convex(3, 2), input_shape=(2,)), "`inputs` (=3) must be the last length"),
    "Fourier-inputs": (lambda: chains.layers.Fourier(0, 3), "`inputs` (=0)"),
    "Fourier-features": (lambda: chains.layers.Fourier(2, 1.5), "`features` (=1.5)"),
    "Fourier-deviation": (lambda: chains.layers.Fourier(2, 3, 0.0), "`deviation` (=0.0) must be in (0, inf)"),
    "Fourier-deviation-text": (lambda: chains.layers.Fourier(2, 3, "1"), "`deviation` (='1') must be a number"),
    "Fourier-trained": (lambda: chains.layers.Fourier(2, 3, trained=1), "`trained` (=1)"),
    "Fourier-input": (lambda: Chain(chains.layers.Fourier(2, 3), input_shape=(3,)), "`inputs` (=2) must be the last length"),
    "Periodic-none": (lambda: chains.layers.Periodic((None, None)), "`periods` (=(None, None)) must have a period at least"),
    "Periodic-nothing": (lambda: chains.layers.Periodic(()), "`periods` (=()) must have a period at least"),
    "Periodic-None": (lambda: chains.layers.Periodic(None), "`periods` (=None) must have a period at least"),
    "Periodic-negative": (lambda: chains.layers.Periodic((1.0, -2.0)), "`periods` (=-2.0) must be in (0, inf), or None"),
    "Periodic-text": (lambda: chains.layers.Periodic("x"), "`periods` (='x') must be a number, in (0, inf), or None"),
    "Periodic-dict": (lambda: chains.layers.Periodic({1: 2.0}), "`periods` (={1: 2.0}) must be a number"),
    "Periodic-harmonics": (lambda: chains.layers.Periodic(1.0, 0), "`harmonics` (=0)"),
    "Periodic-input": (
        lambda: Chain(chains.layers.Periodic((None, 1.0)), input_shape=(3,)),
        "`periods` (=(None, 1.0)) must have an entry for each of the last length of the input's shape (3,)",
    ),
    "Chebyshev-inputs": (lambda: Chebyshev(0, 1, 3), "`inputs` (=0)"),
    "Chebyshev-outputs": (lambda: Chebyshev(1, 1.5, 3), "`outputs` (=1.5)"),
    "Chebyshev-degree": (lambda: Chebyshev(1, 1, 0), "`degree` (=0) must be a positive whole number"),
    "Chebyshev-terms": (lambda: Chebyshev(20, 1, 8), "`degree` (=8) of 20 inputs makes 3108105 terms: at most 65536"),
    "Chebyshev-interval": (lambda: Chebyshev(1, 1, 3, (1.0, 1.0)), "`interval` (=(1.0, 1.0)) must begin below its end"),
    "Chebyshev-interval-number": (lambda: Chebyshev(1, 1, 3, 2.0), "`interval` (=2.0) must be a pair of numbers"),
    "Chebyshev-interval-three": (lambda: Chebyshev(1, 1, 3, (0, 1, 2)), "`interval` (=(0, 1, 2)) must be a pair"),
    "Chebyshev-interval-infinite": (lambda: Chebyshev(1, 1, 3, (0.0, np.inf)), "`interval` (=inf) must be finite"),
    "Chebyshev-interval-inputs": (lambda: Chebyshev(2, 1, 3, [(0, 1)]), "must have a pair for each of the 2 inputs"),
    "Chebyshev-interval-mixed": (lambda: Chebyshev(2, 1, 3, [(0, 1), 2]), "`interval` (=[(0, 1), 2]) must be a pair"),
    "Chebyshev-input": (lambda: Chain(Chebyshev(2, 1, 3), input_shape=(3,)), "`inputs` (=2) must be the last length"),
    "Chebyshev-init": (lambda: Chebyshev(1, 1, 3, weight_init="zero"), "`weight_init` (='zero')"),
    "FourierSeries-order": (lambda: FourierSeries(1, 1, 0, 2.0), "`order` (=0) must be a positive whole number"),
    "FourierSeries-terms": (lambda: FourierSeries(9, 1, 9, 2.0), "`order` (=9) of 9 inputs makes 1462563 terms"),
    "FourierSeries-period": (lambda: FourierSeries(1, 1, 2, 0.0), "`period` (=0.0) must be in (0, inf)"),
    "FourierSeries-period-text": (lambda: FourierSeries(1, 1, 2, "1"), "`period` (='1') must be a number"),
    "FourierSeries-period-array": (lambda: FourierSeries(1, 1, 2, np.array(-3.0)), "`period` ("),
    "FourierSeries-periods": (lambda: FourierSeries(2, 1, 2, [1.0]), "`period` (=[1.0]) must be a number, or one for each"),
    "FourierSeries-periods-negative": (lambda: FourierSeries(2, 1, 2, (1.0, -1.0)), "`period` (=-1.0) must be in (0, inf)"),
    "FourierSeries-input": (lambda: Chain(FourierSeries(2, 1, 3, 1.0), input_shape=(3,)), "`inputs` (=2) must be the last"),
    "Compartments-three": (lambda: Compartments(3, 1), "`compartments` (=3) must be 1 or 2: use an ODE for more"),
    "Compartments-doses": (lambda: Compartments(1, 0), "`doses` (=0) must be a positive whole number"),
    "Compartments-both": (lambda: Compartments(1, 1, absorption=True, infusion=True), "`infusion` (=True) must be False with"),
    "Compartments-lag": (lambda: Compartments(1, 1, lag=1), "`lag` (=1)"),
    "Compartments-input": (lambda: Chain(Compartments(1, 1), input_shape=(4,)), "needs samples of 5 features"),
    "Append-nan": (lambda: chains.Append(a=np.nan), "`a` (=nan)"),
    "Dropout-1": (lambda: chains.Dropout(1.0), "`rate` (=1.0)"),
    "Dropout-negative": (lambda: chains.Dropout(-0.1), "`rate` (=-0.1)"),
    "Dropout-nan": (lambda: chains.Dropout(np.nan), "`rate` (=nan)"),
    "Reshape-two": (lambda: chains.Reshape(-1, -1), "`shape` (=(-1, -1))"),
    "Reshape-true": (lambda: chains.Reshape(True), "`shape` (=(True,))"),
    "Reshape-array": (lambda: chains.Reshape(np.ones(2)), "`shape` (=(array"),
    "Reshape-zero": (lambda: chains.Reshape(0, 3), "`shape` (=(0, 3))"),
    "Reshape-fraction": (lambda: chains.Reshape(1.5, 2), "`shape` (=(1.5, 2))"),
    "Parallel-none": (lambda: chains.Parallel(), "`layers`"),
    "Parallel-join-list": (lambda: chains.Parallel(Dense(3, 2), join=["sum"]), "`join` (=['sum'])"),
    "Parallel-axis": (lambda: chains.Parallel(Dense(3, 2), axis="0"), "`axis` (='0')"),
    "Residual-shortcut": (lambda: chains.Residual(Dense(3, 2), shortcut=3), "`shortcut` (=3)"),
    "Parallel-join": (lambda: chains.Parallel(Dense(3, 2), join="add"), "`join` (='add')"),
    "leaky_relu-text": (lambda: chains.leaky_relu(slope="a"), "`slope` (='a')"),
    "elu-list": (lambda: chains.elu(alpha=[1.0]), "`alpha` (=[1.0])"),
    "leaky_relu": (lambda: chains.leaky_relu(slope=0.0), "`slope` (=0.0)"),
    "elu": (lambda: chains.elu(alpha=-1.0), "`alpha` (=-1.0)"),
    "activation-arguments": (lambda: chains.activation("a", lambda x: x, derivative=lambda z: 1.0), "z"),
    "activation-if": (lambda: chains.activation("a", lambda x: x if x > 0 else 0, derivative=lambda x: 1.0), "where"),
    "activation-name": (lambda: chains.activation(3, lambda x: x, derivative=lambda y: 1.0), "`name` (=3)"),
    "loss-name": (lambda: chains.loss(3, lambda y, t: y - t, derivative=lambda y, t: 1.0), "`name` (=3)"),
    "loss-average": (lambda: chains.loss("a", lambda y, t: y, derivative=lambda y, t: 1.0, average="no"), "`average` (='no')"),
    "loss": (lambda: chains.loss("a", lambda y, t: None, derivative=lambda y, t: 1.0), "None"),
    "Huber": (lambda: chains.HuberLoss(0.0), "`delta` (=0.0)"),
    "L1": (lambda: chains.L1Penalty(-0.1), "`strength` (=-0.1)"),
    "L2": (lambda: chains.L2Penalty(np.nan), "`strength` (=nan)"),
    "rate": (lambda: Adam(-0.1), "`learning_rate` (=-0.1)"),
    "rate-nan": (lambda: chains.SGD(np.nan), "`learning_rate` (=nan)"),
    "clip": (lambda: Adam(clip_norm=0.0), "`clip_norm` (=0.0)"),
    "momentum": (lambda: chains.SGD(0.1, momentum=1.0), "`momentum` (=1.0)"),
    "nesterov": (lambda: chains.SGD(0.1, nesterov=True), "`nesterov`"),
    "beta1": (lambda: Adam(beta1=1.0), "`beta1` (=1.0)"),
    "beta2": (lambda: chains.AdamW(beta2=-0.1), "`beta2` (=-0.1)"),
    "eps": (lambda: Adam(eps=0.0), "`eps` (=0.0)"),
    "weight_decay": (lambda: chains.AdamW(weight_decay=-0.1), "`weight_decay` (=-0.1)"),
    "decay": (lambda: chains.RMSProp(decay=1.5), "`decay` (=1.5)"),
    "Adagrad-eps": (lambda: chains.Adagrad(eps=-1.0), "`eps` (=-1.0)"),
    "schedule-every": (lambda: chains.schedules.exponential(0.1, 0.5, 0), "`every` (=0)"),
    "schedule-stepwise": (lambda: chains.schedules.stepwise(0.1, 0.5, -1), "`every` (=-1)"),
    "schedule-steps": (lambda: chains.schedules.cosine(0.1, 0), "`steps` (=0)"),
    "schedule-warmup": (lambda: chains.schedules.warmup(0.1, 0), "`steps` (=0)"),
    "schedule-if": (lambda: Adam(lambda step: 0.1 if step < 3 else 0.01), "where"),
    "schedule-text": (lambda: chains.schedules.exponential("a", 0.5), "`rate` (='a')"),
    "schedule-decay": (lambda: chains.schedules.exponential(0.1, -0.5), "`decay` (=-0.5)"),
    "schedule-every-text": (lambda: chains.schedules.stepwise(0.1, 0.5, "3"), "`every` (='3')"),
    "schedule-none": (lambda: chains.schedules.cosine(0.1, None), "`steps` (=None)"),
    "schedule-final": (lambda: chains.schedules.cosine(0.1, 5, final=-1.0), "`final` (=-1.0)"),
    "schedule-of-text": (lambda: chains.schedules.warmup("a", 3), "`schedule` (='a')"),
    "rate-text": (lambda: Adam("1e-3"), "`learning_rate` (='1e-3')"),
    "rate-none": (lambda: Adam(None), "`learning_rate` (=None)"),
    "rate-list": (lambda: Adam([0.1]), "`learning_rate` (=[0.1])"),
    "rate-true": (lambda: Adam(True), "`learning_rate` (=True)"),
    "rate-infinite": (lambda: Adam(np.inf), "`learning_rate` (=inf)"),
    "rate-class": (lambda: Adam(chains.SGD), "`learning_rate` (=<class"),
    "rate-without-step": (lambda: Adam(lambda: 1.0), "`learning_rate`"),
    "rate-gives-two": (lambda: Adam(lambda step: (step, 1.0)), "the formula must give one number, got 2"),
    "activation-gives-two": (lambda: chains.activation("a", lambda x: (x, x), derivative=lambda x: 1.0), "activation 'a'"),
    "seed-array": (lambda: NET(GOOD["x"], GOOD["p"], seed=np.ones(2)), "`seed` (=an array of float64, shape (2,))"),
    "rate-gives-text": (lambda: Adam(lambda step: "x"), "'x'"),
    "clip-text": (lambda: Adam(clip_norm="1"), "`clip_norm` (='1')"),
    "momentum-list": (lambda: chains.SGD(0.1, momentum=[0.9]), "`momentum` (=[0.9])"),
    "nesterov-text": (lambda: chains.SGD(0.1, momentum=0.9, nesterov="yes"), "`nesterov` (='yes')"),
    "beta-text": (lambda: Adam(beta1="0.9"), "`beta1` (='0.9')"),
    "eps-none": (lambda: Adam(eps=None), "`eps` (=None)"),
    "weight_decay-text": (lambda: chains.AdamW(weight_decay="x"), "`weight_decay` (='x')"),
    "L2-text": (lambda: chains.L2Penalty("1e-3"), "`strength` (='1e-3')"),
    "L2-patterns": (lambda: chains.L2Penalty(0.1, 3), "`patterns` (=3)"),
    "L2-none": (lambda: chains.L2Penalty(0.1, ()), "`patterns` (=())"),
    "L2-list": (lambda: chains.L2Penalty(0.1, ["*"]), "`patterns` (=['*'])"),
    "L2-plus": (lambda: chains.L2Penalty(0.1) + 3, "not 3"),
    "FrontLast": (lambda: chains.FrontLastPenalty(0.1, None), "`front` (=0.1)"),
    "Huber-text": (lambda: chains.HuberLoss("a"), "`delta` (='a')"),
    "Dropout-text": (lambda: chains.Dropout("a"), "`rate` (='a')"),
    "freeze": (lambda: NET.with_frozen(3), "(=3)"),
    "backend-list": (lambda: Chain(Dense(3, 3), backend=[]), "`backend` (=[])"),
    "dtype-unknown": (lambda: NET.init(dtype="float99"), "`dtype` (='float99')"),
    "dtype-number": (lambda: NET.init(dtype=3), "`dtype` (=3)"),
    "seed-text": (lambda: NET.init(seed="a"), "`seed` (='a')"),
    "check_finite": (lambda: Calls().gradient(check_finite="a"), "`check_finite` (='a')"),
    "listing": (lambda: chains.testing.listing(3), "`program` (=3)"),
    "mode-array": (lambda: NET(GOOD["x"], GOOD["p"], mode=np.ones(2)), "`mode`"),
    "patience": (lambda: chains.EarlyStopping(0), "`patience` (=0)"),
    "stopping-mode": (lambda: chains.EarlyStopping(mode="low"), "`mode` (='low')"),
}


@pytest.mark.parametrize(("make", "word"), SETTINGS.values(), ids=SETTINGS)
def test_settings_out_of_range(make, word):
    assert_refused(make, word)


@pytest.mark.parametrize(
    "wrong", [lambda x: np.sinc(x), lambda x: math.exp(x), lambda x: x if x > 0 else 0, lambda x: x[0], lambda x: None]
)
def test_formulas_that_cannot_be_traced_name_what_they_belong_to(wrong):
    with pytest.raises((TypeError, ValueError), match="activation 'mine'"):
        chains.activation("mine", wrong, derivative=lambda x: x)
    with pytest.raises((TypeError, ValueError), match="activation 'mine', derivative"):
        chains.activation("mine", lambda x: x, derivative=wrong)
    with pytest.raises((TypeError, ValueError), match="loss 'mine'"):
        chains.loss("mine", lambda y, t: wrong(y), derivative=lambda y, t: y - t)
    with pytest.raises((TypeError, ValueError), match="loss 'mine', derivative"):
        chains.loss("mine", lambda y, t: y - t, derivative=lambda y: y)


def test_numbers_beyond_the_range_of_the_parameters_type():
    net = Chain(Dense(2, 3), Dense(3, 1))
    p, x, t = net.init(0, np.float32), np.ones((5, 2)), np.ones((5, 1))
    x[3, 1] = -1e39
    before = p.copy()
    wanted = re.escape("`x` must be within the range of float32, the type of `p`, got -1e+39 at index (3, 1)")
    with pytest.raises(ValueError, match=wanted):
        train(net, p, x, t, SquaredLoss(), SGD(0.1))
    with pytest.raises(ValueError, match=wanted):
        train(net, p, [(x, t)], None, SquaredLoss(), SGD(0.1))
    assert p.tobytes() == before.tobytes()
    train(net, net.init(0, np.float64), x * 1e-30, t, SquaredLoss(), SGD(0.1))


NUMBERS = {
    "learning_rate": Adam, "clip_norm": lambda value: Adam(clip_norm=value), "eps": lambda value: Adam(eps=value),
    "momentum": lambda value: SGD(0.1, momentum=value), "weight_decay": lambda value: chains.AdamW(weight_decay=value),
    "strength": chains.L2Penalty, "delta": chains.HuberLoss, "slope": lambda value: chains.leaky_relu(slope=value),
    "alpha": lambda value: chains.elu(alpha=value),
    "rate": lambda value: chains.schedules.exponential(value, 0.5), "steps": lambda value: chains.schedules.cosine(0.1, value),
    "every": lambda value: chains.schedules.stepwise(0.1, 0.5, value), "std": chains.initializers.Normal,
    "mean": lambda value: chains.initializers.Normal(mean=value),
    "threshold": lambda value: chains.accuracy(np.arange(3), np.eye(3), threshold=value),
    "scale": lambda value: chains.data.Batches(GOOD["x"], batch_size=2, scale=value),
}  # fmt: skip


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), np.float32(np.inf)], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_the_range_of_floats(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` \(=[^`]*\) must be ") as refusal:
        NUMBERS[name](value)
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(("value", "text"), [(np.array(0.1), "an array of float64, shape ()"), (np.True_, "np.True_")])
def test_numbers_of_numpy_that_are_none(value, text):
    for name, make in (("momentum", chains.BatchNorm), ("eps", chains.BatchNorm), ("learning_rate", chains.Adam)):
        channels = (3,) if make is chains.BatchNorm else ()
        with pytest.raises(TypeError, match=re.escape(f"`{name}` (={text}) must be a number")):
            make(*channels, **{name: value})
