"""Measurements of one thing each: ``python -m benchmarks.studies.NAME``."""
