"""Failures: the first one reaches every rank within seconds, by name of rank, stage, micro-batch and action.

The failing rank writes its failure to the store (the first one wins) and breaks its connections. On every rank a
watchdog thread looks at the store twice a second; when it finds a failure, or finds the store gone, it breaks the
connections of its own rank, so that whatever the main thread waits for ends with an error, which is then told as the
stored failure. A process whose main thread does not come back is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch.distributed as dist

_KEY = "gpipe/failure"
_READERS = "gpipe/failure/readers"


class StageError(RuntimeError):
    """Something that a stage ran has failed here; the original exception is the cause."""


class PipelineError(RuntimeError):
    """Another rank has failed, or is gone; the message is that rank's.

    Attributes:
        rank_0_is_gone: the rank that usually speaks for all cannot.
    """

    def __init__(self, message: str, *, rank_0_is_gone: bool = False) -> None:
        super().__init__(message)
        self.rank_0_is_gone = rank_0_is_gone


@dataclass(frozen=True)
class Failure:
    """What is told of a failure to all ranks."""

    rank: int
    message: str

    def dumps(self) -> str:
        """As text, for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Failure:
        """From the text in the store."""
        return cls(**json.loads(text))


class Watchdog:
    """Tells a failure of this rank to the others, and a failure of another to this one.

    Args:
        store: any ``torch.distributed`` store that all ranks share; the watchdog uses a connection of its own.
        rank: global rank.
        world_size: ranks that share the store; rank 0 holds it and stays until the others have read a failure.
        break_connections: ends every pending wait of this process with an error.
        period: seconds between two looks.
        grace: seconds that the main thread has to come back after a failure; then the process ends.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        world_size: int,
        break_connections: Callable[[], None],
        *,
        period: float = 0.5,
        grace: float = 5.0,
    ) -> None:
        self._store = store.clone()
        self._rank = rank
        self._world_size = world_size
        self._break_connections = break_connections
        self._period = period
        self._grace = grace
        self._lock = threading.Lock()
        self._counted = False
        self._stopped = threading.Event()
        self._main_is_out = threading.Event()
        self.failure: Failure | None = None
        self.store_is_lost = False
        self._thread = threading.Thread(target=self._watch, name="gpipe-watchdog", daemon=True)
        self._thread.start()

    def report(self, message: str) -> None:
        """Tells ``message`` as the failure of this rank, unless another rank was first, and breaks the connections."""
        self._main_is_out.set()
        if self.failure is not None:
            return
        self.failure = Failure(self._rank, message)
        # Where the store has died with its rank, the others learn of that by themselves.
        with contextlib.suppress(Exception), self._lock:
            self._store.compare_set(_KEY, "", self.failure.dumps())
            self._count_as_reader()
        self._stopped.set()
        self._break_connections()
        self._keep_store()

    def explain(self, patience: float = 1.0) -> Failure | None:
        """The failure that a broken connection is due to, if another rank tells one within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self.failure is None and time.monotonic() < deadline:
            self.failure = self._look()
            if self.failure is None:
                time.sleep(0.05)
        if self.failure is not None:
            self._main_is_out.set()
            self._keep_store()
        return self.failure

    def close(self) -> None:
        """Ends the thread; returns at once."""
        self._main_is_out.set()
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2 * self._period)

    def _look(self) -> Failure | None:
        with self._lock:
            try:
                if not self._store.check([_KEY]):
                    return None
                self._count_as_reader()
                return Failure.loads(self._store.get(_KEY).decode())
            except Exception:  # whatever it is called, the store does not answer
                self.store_is_lost = True
                return Failure(0, "rank 0, which holds the store, has ended or does not answer")

    def _count_as_reader(self) -> None:
        if not self._counted:
            self._counted = True
            self._store.add(_READERS, 1)

    def _keep_store(self, patience: float = 1.5) -> None:
        """Rank 0 takes the store with it when it ends: it waits until every rank has read the failure."""
        deadline = time.monotonic() + patience
        while self._rank == 0 and time.monotonic() < deadline:
            with self._lock:
                if self._store.add(_READERS, 0) >= self._world_size:
                    return
            time.sleep(0.05)

    def _watch(self) -> None:
        while not self._stopped.wait(self._period):
            failure = self._look()
            if failure is None:
                continue
            self.failure = self.failure or failure
            self._break_connections()
            if not self._main_is_out.wait(self._grace):
                print(
                    f"rank {self._rank}: ends because {self.failure.message}",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
            return


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]


def describe(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    return f"{type(error).__name__}: {_first_line(error)}"
