"""Planning a pipeline before it runs: which layers go to which stage. Pure Python, no torch."""

from __future__ import annotations

from .partition import PartitionError, check_partition, partition, stage_costs

__all__ = ["PartitionError", "check_partition", "partition", "stage_costs"]
