"""
Your own data
=============

You have measurements in a CSV file, and want to predict one column from the others. This page goes from the file to a
saved model in physical units: reading, splitting, scaling, training, and an error to report.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import chains
from chains import Adam, Chain, Dense, EarlyStopping, MSELoss, Scale, Shift, tanh, train

# %%
# This writes a file; use yours instead. A hot wire measures the speed of air: its voltage depends on the speed and on the
# temperature of the air. Some readings are missing.

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
speed, temperature = rng.uniform(0.5, 15.0, 500), rng.uniform(5.0, 40.0, 500)
voltage = np.sqrt((0.02 + 0.01 * speed**0.45) * (250.0 - temperature)) + 0.005 * rng.normal(size=500)
lines = [f"{u:.3f},{c:.1f},{v:.2f}" for u, c, v in zip(voltage, temperature, speed, strict=True)]
lines[7], lines[40] = "3.071,,8.15", ",21.3,4.40"
(folder / "wire.csv").write_text("\n".join(["voltage (V),temperature (C),speed (m/s)", *lines]))

# %%
# With a file of your own, begin here. ``genfromtxt`` reads numbers, and NaN for an empty cell; rows with NaN are dropped.
# With pandas this is ``pandas.read_csv(path).dropna().to_numpy()``. Inputs and targets have two axes: a row for each sample,
# a column for each quantity.

table = np.genfromtxt(folder / "wire.csv", delimiter=",", skip_header=1)
table = table[~np.isnan(table).any(axis=1)]
x, t = table[:, :2], table[:, 2:]
print(x.shape, t.shape)

# %%
# Split the rows into three parts: for training, for validation (when to stop), and for the test, which is used once, at the
# end. A random order suits independent samples. Split a time series by time, and repeated measurements by specimen: otherwise
# the test part has near copies of the training part.

first, second, third = np.split(np.random.default_rng(1).permutation(len(x)), [int(0.6 * len(x)), int(0.8 * len(x))])
x_valid, t_valid, x_test, t_test = x[second], t[second], x[third], t[third]
x, t = x[first], t[first]

# %%
# Networks learn best from numbers of about one, so inputs and targets are standardised. Frozen layers at both ends of the
# network do it. Their means and deviations are those of the training part: nothing of the other two parts may enter.

net = Chain(
    Shift(shift_init=-x.mean(0)),
    Scale(scale_init=1.0 / x.std(0)),
    Dense(2, 16, tanh),
    Dense(16, 16, tanh),
    Dense(16, 1),
    Scale(scale_init=t.std(0)),
    Shift(shift_init=t.mean(0)),
    input_shape=(2,),
).with_frozen("0.*", "1.*", "5.*", "6.*")
p = net.init(seed=0)

# %%
# ``EarlyStopping`` ends training when the validation loss gets no better, and puts back the parameters of the best epoch.

history = train(
    net, p, x, t, MSELoss(), Adam(5e-3), epochs=1000, batch_size=50,
    validation=(x_valid, t_valid), callbacks=[EarlyStopping(patience=50)],
)  # fmt: skip
print(history.stopped)

# %%
# The error to report is that of the test part, in metres a second. Compare it with that of the simplest prediction, the mean.

error = net(x_test, p) - t_test
print(f"root mean square error {np.sqrt((error**2).mean()):.3f} m/s, largest {np.abs(error).max():.3f} m/s")
print(f"the mean of the training part has {np.sqrt(((t.mean() - t_test) ** 2).mean()):.3f} m/s")

# %%
# Predicted against measured: points far from the line, or errors with a trend, show what the network lacks.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(t_test, net(x_test, p), ".")
left.plot([0, 15], [0, 15], color="black", linewidth=1)
left.set(xlabel="measured (m/s)", ylabel="predicted (m/s)")
right.plot(t_test, error, ".")
right.axhline(0.0, color="black", linewidth=1)
right.set(xlabel="measured (m/s)", ylabel="error (m/s)")

# %%
# The file has the network with its scaling. Whoever loads it gives volts and degrees, and gets metres a second; so does
# :doc:`exported code </export>`.

chains.save(folder / "wire.safetensors", net, p)
loaded, q, state = chains.load(folder / "wire.safetensors")
print(loaded(np.array([[3.0, 20.0]]), q))
print("by the formula", ((3.0**2 / 230.0 - 0.02) / 0.01) ** (1 / 0.45))

# %%
# To try next: a file of yours, more units; :doc:`BFGS </auto_tutorials/first_steps/adam_then_bfgs>` instead of Adam;
# :doc:`error bars </auto_tutorials/models/error_bars>` for each prediction.
