"""
Photographs, augmented
======================

A network has to recognise small colour photographs. Shifted and mirrored copies give it more of them to learn from. This
page has batch normalisation, a residual branch and such batches. The data have the form of CIFAR-10, photographs of 32 x 32
pixels. To run without a download, they are cut out of the two photographs that come with scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images

from chains import SGD, BatchNorm, Chain, Conv, CrossEntropyLoss, Dense, GlobalAvgPool, MaxPool, Residual, accuracy, relu, train
from chains.data import Augment, Batches, prefetch
from chains.layers import Activation

# %%
# The classes are the four halves of the two photographs: which half is a piece from? CIFAR-10 would be loaded by
#
# .. code-block:: python
#
#     from chains.data import load_cifar10
#
#     (x, t), (x_test, t_test) = load_cifar10()  # uint8 images (50000, 3, 32, 32), labels

rng = np.random.default_rng(0)
photographs = [image.transpose(2, 0, 1) for image in load_sample_images().images]  # (3, 427, 640) bytes
t = rng.integers(0, 4, 1200)
x = np.empty((1200, 3, 32, 32), np.uint8)
for k, label in enumerate(t):
    top, left = rng.integers(0, 427 - 32), rng.integers(0, 320 - 32) + 320 * (label % 2)
    x[k] = photographs[label // 2][:, top : top + 32, left : left + 32]
x, x_test, t, t_test = x[:1000], x[1000:], t[:1000], t[1000:]

# %%
# Parameters and running statistics are two vectors.

net = Chain(
    Conv(3, 16, 3, padding="same", bias=False), BatchNorm(16), Activation(relu), MaxPool(2),
    Residual(Conv(16, 16, 3, padding="same", bias=False), BatchNorm(16), activation=relu), MaxPool(2),
    Conv(16, 32, 3, relu, padding="same"), GlobalAvgPool(), Dense(32, 4),
    input_shape=(3, 32, 32),
)  # fmt: skip
p, state = net.init(seed=0), net.init_state()
print(net.summary())

# %%
# ``Batches`` draws, augments and scales. ``prefetch`` does this in a thread while the previous step is computed.

batches = Batches(x, t, batch_size=50, augment=Augment(flip=True, shift=4), scale=1 / 255)
test = (x_test / 255).astype(np.float32)
history = train(
    net, p, prefetch(batches), None, CrossEntropyLoss(), SGD(0.05, momentum=0.9), epochs=8,
    state=state, validation=(test, t_test), metrics=[accuracy],
)  # fmt: skip
print(history)

# %%
# A call uses the running statistics. In the mode "train" it would use those of the batch.

labels = net(test, p, state=state).argmax(1)
figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
for axis, image, right, found in zip(axes.flat, x_test, t_test, labels, strict=False):
    axis.imshow(image.transpose(1, 2, 0))
    axis.set(title=f"{right}: {found}", xticks=[], yticks=[])

# %%
# To try next: ``Batches`` without ``augment``; two residual branches. ``examples/rosetta_cnn.py`` learns all of CIFAR-10,
# ``examples/gpu_cifar.py --device cuda`` does so :doc:`on a GPU </gpu>`, and
# :doc:`the page on data </api/data>` lists the parts of such batches.
