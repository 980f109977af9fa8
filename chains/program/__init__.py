"""Programs: what they can say (`operations` over `view`s), how they are recorded, simplified and laid out in memory."""

from chains.program.program import Program
from chains.program.recorder import Recorder
