"""What the comparison of step times runs, and for how long: plain numbers, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

ENGINE = "this engine"
ENGINE_1F1B = "this engine, 1F1B"
BARE_LOOP = "bare isend/irecv loop"
TORCH = "torch.distributed.pipelining"
TORCH_1F1B = "torch.distributed.pipelining, 1F1B"
TORCHGPIPE = "torchgpipe"
IDEAL = "(M+K-1)(t_F+t_B)"
ONE_PROCESS = "one process"
NUM_STAGES = 2

_SAMPLE = 0.3
"""Seconds that what is timed together lasts at least, so that the barriers around it (0.5 ms) do not count."""


@dataclass(frozen=True)
class Workload:
    """Real Transformer layers (causal, of ``transformer_lm``) from states to states, the same number on each stage.

    Attributes:
        num_layers: over both stages, an even number.
        d_model: width of the states.
        d_ff: width of the feed-forward layers.
        num_heads: attention heads.
        length: tokens of a row.
        rows: rows of a micro-batch.
        num_micro_batches: M.
        seed: of weights and data.
    """

    num_layers: int = 4
    d_model: int = 256
    d_ff: int = 1024
    num_heads: int = 4
    length: int = 128
    rows: int = 4
    num_micro_batches: int = 8
    seed: int = 0

    @property
    def batch_size(self) -> int:
        """Rows of the mini-batch."""
        return self.rows * self.num_micro_batches


@dataclass(frozen=True)
class SpeedPlan:
    """How much is timed.

    Attributes:
        rounds: each runs every way once, in an order that changes.
        steps: of each way in a round.
        warm_up: steps of each way before.
    """

    rounds: int
    steps: int
    warm_up: int = 2


@dataclass(frozen=True)
class EqualStages:
    """K equal stages and how long they are timed.

    Attributes:
        num_stages: K.
        num_micro_batches: M, of one row each.
        boundary_bytes: what crosses a boundary per micro-batch, each way.
        forward: t_F in seconds.
        backward: t_B in seconds.
        rounds: each runs every way once.
        warm_up: steps of each way before.
    """

    num_stages: int
    num_micro_batches: int
    boundary_bytes: int
    forward: float
    backward: float
    rounds: int
    warm_up: int = 1

    @property
    def allows_1f1b(self) -> bool:
        """Whether 1F1B is timed too: PyTorch's refuses fewer micro-batches than stages."""
        return self.num_micro_batches >= self.num_stages

    @property
    def steps(self) -> int:
        """Steps of a way that are timed together, one after the other as in training."""
        return math.ceil(_SAMPLE / self.ideal)

    @property
    def ideal(self) -> float:
        """(M + K - 1)(t_F + t_B): seconds of a step if all but the waits cost nothing (paper, section 2.3)."""
        return (self.num_micro_batches + self.num_stages - 1) * (self.forward + self.backward)
