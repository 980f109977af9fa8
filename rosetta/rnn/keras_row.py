"""Keras 3, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from rosetta import problem


def build() -> keras.Model:
    keras.utils.set_random_seed(problem.SEED)
    net = keras.Sequential([
        keras.Input((problem.STEPS,), dtype="int64"),
        layers.Embedding(problem.WORDS, problem.FEATURES),
        layers.GRU(problem.UNITS),
        layers.Dense(problem.OPINIONS),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(problem.ADAM_RATE), loss)
    assert net.count_params() == problem.RNN_PARAMETERS
    return net


def train(net: keras.Model, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    for epoch in range(epochs):
        for reviews, labels in problem.batches(x, t, epoch):
            net.train_on_batch(reviews, labels)


def predict(net: keras.Model, x: np.ndarray) -> np.ndarray:
    return net.predict(x, batch_size=problem.BATCH_SIZE, verbose=0).argmax(1)
