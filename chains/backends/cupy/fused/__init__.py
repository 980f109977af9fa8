"""Whole programs as one kernel over tiles of samples."""
