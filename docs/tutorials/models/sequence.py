"""
A sequence, continued
=====================

Mackey and Glass (1977) wrote down how many blood cells a body makes. Their number today depends on that of 17 days ago, and
it rises and falls without ever repeating. A recurrent network reads 64 days and predicts the next one. Then it continues
the series from its own answers.
"""

import os

import matplotlib.pyplot as plt
import numpy as np

from chains import GRU, Adam, Chain, Dense, MSELoss, data, schedules, train

EPOCHS = int(os.environ.get("ITERATIONS", "300"))  # a few seconds

# %%
# The series, by small steps of Euler's method; one number a day.

steps = 10
cells = np.full(17 * steps + 1, 1.2)
for _ in range(1700 * steps):
    old, now = cells[-17 * steps - 1], cells[-1]
    cells = np.append(cells, now + (0.2 * old / (1.0 + old**10) - 0.1 * now) / steps)
series = cells[200 * steps :: steps].astype(np.float32)
known, later = series[:1200, None], series[1200:]

# %%
# Windows of 65 days are views of the series, not copies. The network reads 64 days and answers after each of them, so every
# day but the first is a target. Four seeds end at errors (see below) from 0.02 to 0.07.

windows = data.windows(known, 65)
x, t = windows[:, :-1], windows[:, 1:]
net = Chain(GRU(1, 32, return_sequences=True), Dense(32, 1), input_shape=x.shape[1:])
p = net.init(seed=0)
history = train(net, p, x, t, MSELoss(), Adam(schedules.cosine(0.01, 36 * EPOCHS)), epochs=EPOCHS, batch_size=32)
print(f"{net.n_params} parameters, loss {history.loss[-1]:.1e}; the series has a variance of {series.var():.1e}")

# %%
# ``net.step`` takes one day and what the network carries. It reads the known days, then its own answers.

carried = None
for day in known[-200:]:
    y, carried = net.step(day[None], p, carried)
predicted = []
for _ in later[:150]:
    predicted.append(y.item())
    y, carried = net.step(y, p, carried)
error = np.abs(np.array(predicted) - later[:150])
repeated = np.abs(known[-1] - later[:50]).mean()
print(f"mean error of the first 50 days: {error[:50].mean():.3f}; of the last known day, repeated: {repeated:.3f}")

figure, axis = plt.subplots(figsize=(9, 3.5), layout="constrained")
axis.plot(np.arange(-100, 150), series[1100:1350], color="0.6", label="the series")
axis.plot(np.arange(150), predicted, label="the network on its own")
axis.axvline(0, color="black", lw=0.8)
axis.set(xlabel="days", ylabel="blood cells")
axis.legend()

# %%
# To try next: an :class:`chains.LSTM`, a second layer, more days. :doc:`The page on sequences </sequences>` has lengths, ids of
# words and attention.
