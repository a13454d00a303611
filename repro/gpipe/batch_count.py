"""Which batches of training a run has seen, and what becomes of one that an exception has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.progress import _ProcessedTracker

from .results import StepResult


def open_batch(trainer: pl.Trainer) -> int:
    """The batch of training that has begun and has not been processed, counted from 1 over the run; 0: none."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    assert isinstance(progress.current, _ProcessedTracker)
    return progress.total.ready if progress.current.ready > progress.current.processed else 0


@dataclass
class _Batch:
    """The last batch that has been run: its number, the batches before it, and whether ``.grad`` held it already."""

    number: int
    before: int
    has_gradients: bool = False


class BatchCount:
    """Counts the batches of training; one that an exception has ended is read again on resuming, and counts once.

    Where the exception came after the backward, the gradients that are saved hold those of that batch already.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._last = _Batch(0, 0)
        self._result: StepResult | None = None
        self._next_has_gradients = False

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``state`` returned; without that from where it is."""
        self._seen = int(state.get("batches_seen", self._seen))
        self._last = _Batch(0, self._seen)
        self._next_has_gradients = bool(state.get("has_gradients", False))

    def state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """What a checkpoint holds: batches seen, and whether the gradients saved hold those of the one read again."""
        is_read_again = self._last.number == open_batch(trainer)
        has_run_backward = self._result is not None and self._result.is_accumulated
        # With the first batch of a window Lightning sets the gradients to zero.
        is_first = trainer.fit_loop.epoch_loop.batch_idx % trainer.accumulate_grad_batches == 0
        has_gradients = is_read_again and not is_first and (has_run_backward or self._last.has_gradients)
        return {
            "batches_seen": self._last.before if is_read_again else self._seen,
            "has_gradients": has_gradients or self._next_has_gradients,
        }

    def run(self, trainer: pl.Trainer, step: Callable[[int], StepResult]) -> StepResult:
        """Runs ``step`` on the open batch; it gets the number of batches before that one."""
        number = open_batch(trainer)
        if self._last.number != number:
            self._last = _Batch(number, self._seen, self._next_has_gradients)
            self._next_has_gradients = False
        self._result = None
        counter, self._seen = self._seen, self._seen + 1
        self._result = step(counter)
        if self._last.has_gradients:
            self._result.drop_gradients()
        return self._result
