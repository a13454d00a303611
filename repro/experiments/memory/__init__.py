"""Targets ``table1`` and ``remat``: the largest model, and what re-materialization takes and saves."""
