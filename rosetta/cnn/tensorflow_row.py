"""TensorFlow: a tape in a function that is compiled to a graph; layers are Keras's."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from rosetta import problem

LAYERS = tf.keras.layers


def build() -> Any:
    tf.keras.utils.set_random_seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    net = tf.keras.Sequential([
        tf.keras.Input((32, 32, 3)),
        LAYERS.Conv2D(few, 3, padding="same", activation="relu"), LAYERS.Conv2D(few, 3, padding="same"),
        LAYERS.MaxPooling2D(2), LAYERS.ReLU(), LAYERS.Dropout(drop),
        LAYERS.Conv2D(many, 3, padding="same", activation="relu"), LAYERS.Conv2D(many, 3, padding="same"),
        LAYERS.MaxPooling2D(2), LAYERS.ReLU(), LAYERS.Dropout(drop),
        LAYERS.Flatten(), LAYERS.Dense(problem.HIDDEN, "relu"), LAYERS.Dropout(drop_last),
        LAYERS.Dense(problem.CLASSES),
    ])  # fmt: skip
    assert net.count_params() == problem.PARAMETERS
    return net


def train(net: Any, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    optimizer = tf.keras.optimizers.SGD(problem.LEARNING_RATE, problem.MOMENTUM)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = net(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True))
        return loss

    images_last = problem.channels_last(x)
    for epoch in range(epochs):
        for images, labels in problem.batches(images_last, t, epoch):
            step(tf.constant(images), tf.constant(labels)).numpy()


def predict(net: Any, x: np.ndarray) -> np.ndarray:
    return net.predict(problem.channels_last(x), batch_size=problem.BATCH_SIZE, verbose=0).argmax(1)
