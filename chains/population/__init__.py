"""Models of populations: many subjects, each with random effects of its own."""

from chains.population.compartments import Compartments
from chains.population.diagnostics import PredictiveCheck, Residuals
from chains.population.errors import Additive, Combined, Density, ErrorModel, Proportional
from chains.population.files import load, save
from chains.population.likelihood import PopulationObjective
from chains.population.model import PopulationModel
from chains.population.result import PopulationFit

__all__ = [
    "Additive",
    "Combined",
    "Compartments",
    "Density",
    "ErrorModel",
    "PopulationFit",
    "PopulationModel",
    "PopulationObjective",
    "PredictiveCheck",
    "Proportional",
    "Residuals",
    "load",
    "save",
]
