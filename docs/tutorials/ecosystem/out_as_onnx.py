"""
Export to ONNX
==============

A network was trained here and must run in programs that do not have this package. ``to_onnx`` writes it as a file of ONNX.
``from_onnx`` reads such a file back.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, relu, train
from chains.interop import from_onnx, to_onnx

# %%
# The network distinguishes pictures with a bright row from pictures with a bright column.

rng = np.random.default_rng(0)
x = rng.random((400, 1, 8, 8), dtype=np.float32)
t = rng.integers(0, 2, 400)
for picture, label, k in zip(x[:, 0], t, rng.integers(0, 8, 400), strict=True):
    (picture if label else picture.T)[k] += 1

net = Chain(Conv(1, 4, 3, relu), MaxPool(2), Flatten(), Dense(36, 2), input_shape=(1, 8, 8))
p = net.init(seed=0)
history = train(net, p, x, t, CrossEntropyLoss(), Adam(1e-2), epochs=30, batch_size=50)
print(f"loss {history.loss[-1]:.3f}")

# %%
# The file takes any number of samples.

path = Path(tempfile.mkdtemp()) / "model.onnx"
model = to_onnx(net, p, path=str(path))
print([node.op_type for node in model.graph.node], path.stat().st_size, "bytes")

session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
for samples in (1, 400):
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x[:samples]})
    print(samples, "samples, largest difference", np.abs(outputs - net(x[:samples], p)).max())

# %%
# ``from_onnx`` reads the file as a network and a vector.

again, q, state = from_onnx(str(path))
print(again.summary())
print(np.abs(again(x, q) - net(x, p)).max())

# %%
# To try next: :class:`chains.AvgPool` instead of ``MaxPool``; :doc:`the page on other libraries </interop>` says which layers
# and operators are written and read.
