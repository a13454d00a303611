"""Targets ``bubble``, ``breakdown`` and ``figure2``: where the time of a step goes."""
