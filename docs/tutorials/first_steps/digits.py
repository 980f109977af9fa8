"""
Read digits
===========

Which digit does a picture of 8 x 8 pixels show? A small classifier learns it from scikit-learn's handwritten digits. This
page shows labels, the cross-entropy, validation, early stopping and metrics.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

from chains import Adam, Chain, CrossEntropyLoss, Dense, Dropout, EarlyStopping, accuracy, relu, train

# %%
# Samples are rows of 64 numbers; targets are labels, whole numbers from 0 to 9.

x, t = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
x, x_test, t, t_test = train_test_split(x, t, test_size=0.3, random_state=0, stratify=t)
x, x_valid, t, t_valid = train_test_split(x, t, test_size=0.2, random_state=0, stratify=t)
print(x.shape, x_valid.shape, x_test.shape)

# %%
# The last layer gives logits, one for each class: ``CrossEntropyLoss`` takes these, and no softmax is needed.

net = Chain(Dense(64, 64, relu), Dropout(0.2), Dense(64, 10))
p = net.init(seed=0)

# %%
# Each epoch ends with the loss on the validation data. ``EarlyStopping`` ends training when this loss no longer falls, and
# restores the parameters of the best epoch.

history = train(
    net, p, x, t, CrossEntropyLoss(), Adam(3e-3), epochs=200, batch_size=32,
    validation=(x_valid, t_valid), metrics=[accuracy], callbacks=[EarlyStopping(patience=10)],
)  # fmt: skip
print(history.stopped)
history.plot()

# %%
# The prediction is the largest of ten outputs. Metrics take targets first, as in scikit-learn, so scikit-learn's metrics work
# too.

labels = net(x_test, p).argmax(1)
print(f"{accuracy(t_test, net(x_test, p)):.3f} of {len(t_test)} digits are recognised")
print(confusion_matrix(t_test, labels))

# %%
# Some of the others:

wrong = np.flatnonzero(labels != t_test)[:6]
figure, axes = plt.subplots(1, 6, figsize=(9, 2), layout="constrained")
for axis, k in zip(axes, wrong, strict=False):
    axis.imshow(x_test[k].reshape(8, 8), cmap="gray_r")
    axis.set(title=f"{t_test[k]}, read as {labels[k]}", xticks=[], yticks=[])

# %%
# To try next: another optimiser, dropout, or :doc:`convolutions </auto_tutorials/images/lenet>`.
