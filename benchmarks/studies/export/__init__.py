"""Exported networks, called from C."""
