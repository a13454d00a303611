"""What the comparison of step times runs, and for how long: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "this engine"
BARE_LOOP = "bare isend/irecv loop"
TORCH = "torch.distributed.pipelining"
ONE_PROCESS = "one process"
NUM_STAGES = 2


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
    length: int = 64
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
        rounds: each runs every way once, in an order that rotates.
        steps: of each way in a round.
        warm_up: steps of each way before.
    """

    rounds: int
    steps: int
    warm_up: int = 2
