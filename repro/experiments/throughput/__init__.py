"""Targets ``table2`` and ``table3``: normalised throughput."""
