"""
LeNet on digits
===============

Which digit does a picture of 28 x 28 pixels show? Convolutions, pooling and dense layers find out. To run without a
download, this page enlarges scikit-learn's digits of 8 x 8 pixels. With MNIST, only the lines that load the data change.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, accuracy, relu, train

# %%
# Images have the shape (samples, channels, height, width). MNIST would be loaded by
#
# .. code-block:: python
#
#     from chains.data import load_mnist
#
#     (images, labels), (test_images, test_labels) = load_mnist()
#     x = images[:, None].astype(np.float32) / 255

images, t = load_digits(return_X_y=True)
x = np.pad(np.kron(images.reshape(-1, 1, 8, 8), np.ones((3, 3))), ((0, 0), (0, 0), (2, 2), (2, 2))).astype(np.float32) / 16
x, x_test, t, t_test = x[:1400], x[1400:], t[:1400], t[1400:]
print(x.shape, x.dtype)

# %%
# ``input_shape`` is the shape of one sample. The summary shows how shapes go through the layers.

net = Chain(
    Conv(1, 6, 5, relu), MaxPool(2),
    Conv(6, 16, 5, relu), MaxPool(2),
    Flatten(), Dense(256, 120, relu), Dense(120, 84, relu), Dense(84, 10),
    input_shape=(1, 28, 28),
)  # fmt: skip
print(net.summary())

# %%
# Six epochs:

p = net.init(seed=0)
history = train(
    net, p, x, t, CrossEntropyLoss(), Adam(1e-3), epochs=6, batch_size=32, validation=(x_test, t_test), metrics=[accuracy]
)  # fmt: skip
print(history)

# %%
# The first layers of a network read the first numbers of the same vector. Here they give the feature maps after the first
# pooling.

first = net[:2]
maps = first(x_test[:1], p[: first.n_params])
figure, axes = plt.subplots(1, 7, figsize=(9, 1.6), layout="constrained")
for axis, picture in zip(axes, [x_test[0, 0], *maps[0]], strict=True):
    axis.imshow(picture, cmap="gray_r")
    axis.axis("off")

# %%
# To try next: :class:`chains.AvgPool` instead of ``MaxPool``. ``examples/lenet5.py`` learns all of MNIST, also
# :doc:`on a GPU </gpu>` (``examples/gpu_mnist.py --device cuda``). :doc:`A smaller network
# </auto_tutorials/first_steps/digits>` needs no convolutions.
