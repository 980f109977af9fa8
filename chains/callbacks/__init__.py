"""Callbacks of the training loop: called after each epoch with a `TrainingState`; a text returned ends training.

Their methods `begin` and `finish`, where they have them, are called before the first step and at the end. What `state_dict`
gives is written into checkpoints, and given to `load_state_dict` where training goes on from one, after `begin`; a text that
this one returns ends training at once.
"""

from chains.callbacks.base import Callback as Callback
from chains.callbacks.early_stopping import EarlyStopping as EarlyStopping
from chains.callbacks.learning_rate import LearningRates as LearningRates
from chains.callbacks.learning_rate import find_learning_rate as find_learning_rate
from chains.callbacks.loggers import CSVLogger as CSVLogger
from chains.callbacks.loggers import TensorBoard as TensorBoard
