"""Programs: their `operations` on `view`s, and how they are recorded, simplified and laid out in memory."""

from chains.program.program import Program
from chains.program.recorder import Recorder
from chains.program.view import View

__all__ = ["Program", "Recorder", "View"]
