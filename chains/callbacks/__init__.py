"""Callbacks of the training loop: called after each epoch with a `TrainingState`; a text returned ends training.

Their methods `begin` and `finish`, where they have them, are called before the first step and at the end. What `state_dict`
gives is written into checkpoints, and given to `load_state_dict` where training continues from one, after `begin`; a text
that this one returns ends training immediately.
"""

from chains.callbacks.base import Callback
from chains.callbacks.early_stopping import EarlyStopping
from chains.callbacks.learning_rate import LearningRates, find_learning_rate
from chains.callbacks.loggers import CSVLogger, TensorBoard
from chains.training.run import TrainingState

__all__ = ["CSVLogger", "Callback", "EarlyStopping", "LearningRates", "TensorBoard", "TrainingState", "find_learning_rate"]
