"""Experiments: a folder for each claim of the paper, and what they share. They write rows and know nothing of reports.

From the ground up: ``sweeps`` (cells, rows, processes), ``costs`` (models, accelerators, links), ``emulation`` (timed
waits), ``peers`` and ``traces``; on them ``throughput``, ``memory``, ``bubble``, ``schedules``, ``planner`` and
``accuracy``; ``comparison`` on top. Nothing is imported here, so that reading rows needs no torch.
"""
