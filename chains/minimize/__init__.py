"""Minimisers of functions of flat vectors."""
