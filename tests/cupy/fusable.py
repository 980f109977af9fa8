"""Which cases of the harness become one kernel. The names are written down, since a program must be recorded to find out."""

from __future__ import annotations

from tests.harness import CASES

MANY_KERNELS = """
    Append-bounds Dense-bounds Monotone Monotone-one-way Monotone-linear Convex Convex-increasing BatchNorm BatchNorm-plain
    BatchNorm-sequence BatchNorm-image BatchNorm-image-plain Residual-BatchNorm Parallel-BatchNorm BatchNorm-twice
    BatchNorm-frozen GRU-checkpoints LSTM-checkpoints RNN-checkpoints Recurrent-checkpoints Equations-bounds ODE-bounds
    ODE-bounds-implicit ODE-leapfrog ODE-own-times Doses ODE-doses ODE-doses-control SDE-milstein ODE-control ODE-event
    ODE-event-control ODE-implicit SteadyState SteadyState-fixed-point SteadyState-anderson ODE-trained-start Conv
    Conv-linear-no-bias Conv-needs-input Conv-needs-input-no-bias Conv-one-channel Conv-rectangle Conv-same Conv-uneven
    Conv-dilated Conv-groups Conv-depthwise Conv-pointwise Conv-pointwise-groups Conv-pointwise-stride Conv-wide Conv-signal
    Conv-signal-same Conv-alone Conv-two Conv-frozen ConvTranspose ConvTranspose-needs-input ConvTranspose-stride
    ConvTranspose-groups ConvTranspose-signal MaxPool MaxPool-overlapping MaxPool-padded MaxPool-gaps MaxPool-signal AvgPool
    AvgPool-overlapping AvgPool-padded AvgPool-padding-not-counted AvgPool-signal Residual-projection Bottleneck
    Bottleneck-projection DenseBlock Transition Conv-relu-MaxPool Conv-relu-MaxPool-overlapping Conv-classifier Embedding
    Embedding-one Embedding-Dense Embedding-parts Attention Attention-causal Attention-one-step TransformerBlock
    Embedding-Attention Embedding-frozen own-Monotone own-Monotone-frozen own-Leaky-checkpoints residuals residuals-weighted
    ODE-interpolated ODE-interpolated-implicit
"""
WITH_LOOPS = """
    RNN RNN-one-step RNN-sequences-needs-input RNN-bidirectional LSTM LSTM-two-steps LSTM-bidirectional GRU GRU-seven-steps
    GRU-checkpoints LSTM-checkpoints RNN-checkpoints GRU-paper GRU-bidirectional GRU-parameter Recurrent Recurrent-layers
    Recurrent-checkpoints Recurrent-both-ways GRU-stacked GRU-frozen Cell ODE-bounds ODE-bounds-implicit ODE ODE-needs-input
    ODE-forced ODE-leapfrog ODE-own-times ODE-doses ODE-doses-control SDE SDE-milstein SDE-heun Shooting ODE-control ODE-event
    ODE-event-control ODE-implicit SteadyState SteadyState-fixed-point SteadyState-anderson ODE-frozen ODE-trained-start
    own-Scan own-Leaky own-Leaky-checkpoints ODE-interpolated ODE-interpolated-implicit
"""
SUITED = [case for case in CASES if case.name not in MANY_KERNELS.split()]
LOOPS = [case for case in CASES if case.name in WITH_LOOPS.split()]
SUITED_LOOPS = [case for case in LOOPS if case in SUITED]
