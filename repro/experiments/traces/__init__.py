"""Traced steps, and what is read from their traces."""
