"""Ordinary differential equations as a layer."""
