"""Networks as files: parameters by name, and the architecture as JSON, in the layout of safetensors."""

from chains.files.model import load, save

__all__ = ["load", "save"]
