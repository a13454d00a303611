"""Layers whose arithmetic is a timed wait."""
