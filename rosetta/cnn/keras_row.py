"""Keras 3, on the backend that KERAS_BACKEND names; which compiles its steps where it can; channels last, its default."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from rosetta import problem


def build() -> keras.Model:
    keras.utils.set_random_seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    net = keras.Sequential([
        keras.Input((32, 32, 3)),
        layers.Conv2D(few, 3, padding="same", activation="relu"), layers.Conv2D(few, 3, padding="same"),
        layers.MaxPooling2D(2), layers.ReLU(), layers.Dropout(drop),
        layers.Conv2D(many, 3, padding="same", activation="relu"), layers.Conv2D(many, 3, padding="same"),
        layers.MaxPooling2D(2), layers.ReLU(), layers.Dropout(drop),
        layers.Flatten(), layers.Dense(problem.HIDDEN, "relu"), layers.Dropout(drop_last),
        layers.Dense(problem.CLASSES),
    ])  # fmt: skip
    net.compile(
        keras.optimizers.SGD(problem.LEARNING_RATE, problem.MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    assert net.count_params() == problem.PARAMETERS
    return net


def train(net: keras.Model, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    images_last = problem.channels_last(x)
    for epoch in range(epochs):
        for images, labels in problem.batches(images_last, t, epoch):
            net.train_on_batch(images, labels)


def predict(net: keras.Model, x: np.ndarray) -> np.ndarray:
    return net.predict(problem.channels_last(x), batch_size=problem.BATCH_SIZE, verbose=0).argmax(1)
