"""Backends from elsewhere: the door, and the conformance test."""
