"""The processes that a rank forks, such as the workers of its loader: what they leave alone, and when they end."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class _EndsWithItsRank:
    """Initialises a worker of a loader so that it ends at once when its rank is killed (on Linux).

    A forked worker holds the rank's sockets: as long as it lives, the other ranks do not see that the rank is gone.
    """

    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
        if self.then is not None:
            self.then(worker)


def end_workers_with_rank(loader: object) -> None:
    """Makes the workers of ``loader``, where it has any, end with this process however it ends."""
    if (
        isinstance(loader, DataLoader)
        and loader.num_workers
        and not isinstance(loader.worker_init_fn, _EndsWithItsRank)
    ):
        loader.worker_init_fn = _EndsWithItsRank(loader.worker_init_fn)


@functools.cache
def leave_garbage_to_parent() -> None:
    """Makes the children that this process forks keep what was garbage in it.

    The process groups of an earlier run lie in reference cycles of its Trainer. A child that collects them crashes or
    hangs: their destructors wait for threads that a fork does not copy.
    """
    was_enabled: list[bool] = []

    def before() -> None:
        was_enabled.append(gc.isenabled())
        gc.disable()

    def after() -> None:
        if was_enabled.pop():
            gc.enable()

    def after_in_child() -> None:
        gc.freeze()
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)
