"""Callbacks of the training loop: called after each epoch with a `TrainingState`; a text returned ends training.

Their methods `begin` and `finish`, if any, are called before the first step and at the end. Checkpoints hold the result of
`state_dict`. When training continues from a checkpoint, `load_state_dict` gets it, after `begin`; if it returns a text,
training ends immediately.
"""

from chains.callbacks.base import Callback
from chains.callbacks.early_stopping import EarlyStopping
from chains.callbacks.learning_rate import LearningRates, find_learning_rate
from chains.callbacks.loggers import CSVLogger, TensorBoard
from chains.training.run import TrainingState

__all__ = ["CSVLogger", "Callback", "EarlyStopping", "LearningRates", "TensorBoard", "TrainingState", "find_learning_rate"]
