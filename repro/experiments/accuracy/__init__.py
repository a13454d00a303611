"""Targets ``table4``, ``figure3``, ``table5``, ``depth`` and ``figure1``: training, and what was learnt."""
