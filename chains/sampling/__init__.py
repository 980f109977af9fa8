"""Draws from the posterior of a network's parameters."""
