"""Calls of a `Chain`: architecture, recording, kept programs, runs, and checks of arguments."""
