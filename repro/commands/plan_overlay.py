"""A plan as a configuration overlay for ``repro fit``."""

from __future__ import annotations

from pathlib import Path

from repro.errors import UserError
from repro.planning.planner import Plan


def overlay(plan: Plan, *, batch_size: int, tokens: int | None, per_node: int, why: str) -> str:
    """The text of a YAML file: strategy, devices, nodes, and the rows or tokens of a replica.

    Args:
        plan: what to run.
        batch_size: rows of the mini-batch over all replicas.
        tokens: of a row, where batches are by tokens.
        per_node: devices of a node.
        why: what was predicted, for the comment at the top.
    """
    choice = plan.choice
    devices = choice.num_stages * choice.data_parallel_size
    rows = batch_size // choice.data_parallel_size
    if tokens is None:
        batch = f"batch_size: {rows}  # of a replica; {batch_size} in all"
    else:
        batch = f"batch_tokens: {rows * tokens}  # of a replica; {rows} rows of {tokens} tokens"
    return f"""\
# Written by repro plan; on top of the configuration that it was made for.
# {why}

trainer:
  strategy:
    class_path: GPipeStrategy
    init_args:
      num_stages: {choice.num_stages}
      num_micro_batches: {choice.num_micro_batches}
      schedule: {choice.schedule}
      num_virtual_stages: {choice.num_virtual_stages}
      remat: {choice.remat}
      partition: {list(plan.partition)}
      data_parallel_size: {choice.data_parallel_size}
  devices: {min(devices, per_node)}
  num_nodes: {-(-devices // per_node)}

data:
  init_args:
    {batch}
"""


def write(path: Path, text: str) -> None:
    """Writes the file.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--write {path}: {error.strerror or error}") from None
