"""Models of populations: many subjects, each with random effects of its own."""

from chains.population.diagnostics import PredictiveCheck, Residuals
from chains.population.doses import DoseTable, dose_table
from chains.population.errors import Additive, Combined, Density, ErrorModel, Proportional
from chains.population.files import load, save
from chains.population.likelihood import PopulationObjective
from chains.population.model import PopulationModel
from chains.population.result import PopulationFit
from chains.population.table import Table, read_table

__all__ = [
    "Additive",
    "Combined",
    "Density",
    "DoseTable",
    "ErrorModel",
    "PopulationFit",
    "PopulationModel",
    "PopulationObjective",
    "PredictiveCheck",
    "Proportional",
    "Residuals",
    "Table",
    "dose_table",
    "load",
    "read_table",
    "save",
]
