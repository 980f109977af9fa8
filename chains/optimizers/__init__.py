"""Optimisers, a family a file; `base` has their base class."""

from chains.optimizers.adagrad import Adagrad, RMSProp
from chains.optimizers.adam import Adam, AdamW
from chains.optimizers.base import Optimizer, Rate, Schedule
from chains.optimizers.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSProp", "Rate", "Schedule"]
