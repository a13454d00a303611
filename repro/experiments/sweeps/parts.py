"""Runs the parts of a target that are not finished; each result is kept as soon as it is there."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from .cells import Cell, CellStore
from .progress import Display
from .ranks import Job, JobError, run_jobs


class Part(Protocol):
    """Something that runs as one job."""

    @property
    def name(self) -> str:
        """Names its cell and its log."""

    @property
    def title(self) -> str:
        """What a person reads."""

    @property
    def cell(self) -> Cell:
        """Everything that its result depends on."""

    def job(self, logs: Path) -> Job:
        """What runs, with its log below ``logs``."""


class PartRunner:
    """Runs parts and keeps what they returned.

    Attributes:
        results: of the parts that have finished, now or before, by name; what rank 0 returned, as JSON has it.
        failures: of the parts that did not finish, by name.
    """

    def __init__(self, store: CellStore, display: Display) -> None:
        self.results: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self.logs = store.folder / "logs"
        self._store = store
        self._display = display
        self._begun = time.monotonic()
        self._spent_before = 0.0

    @property
    def minutes(self) -> float:
        """What all parts took, those that an earlier command finished included."""
        return round((time.monotonic() - self._begun + self._spent_before) / 60, 2)

    def run(self, parts: Sequence[Part], limit: int | None = None) -> None:
        """Runs those of ``parts`` that have not been finished, ``limit`` at a time (None: all at the same time).

        Each result is kept as soon as it is there. A failure is noted, not raised; the others go on.
        """
        left: list[Part] = []
        for part in parts:
            known = self._store.load(part.cell)
            if known is None:
                left.append(part)
            else:
                self.results[part.name] = known
                self._spent_before += self._store.seconds(part.cell)
                self._display.finish(part.title, "finished before")
        if not left:
            return
        jobs = {part.job(self.logs): part for part in left}
        begun = {part.name: time.monotonic() for part in left}
        last = time.monotonic()

        def begin(job: Job) -> None:
            begun[jobs[job].name] = time.monotonic()
            self._display.begin(jobs[job].title)

        def keep(job: Job, result: list[Any]) -> None:
            nonlocal last
            part, now = jobs[job], time.monotonic()
            # Those that run at the same time share the time that passes. Rank 0 has everything. A later command will
            # see what JSON keeps of it, so this one does too.
            self._store.save(part.cell, result[0], now - last)
            last = now
            self.results[part.name] = json.loads(json.dumps(result[0]))
            self._display.finish(part.title, f"done in {now - begun[part.name]:.0f} s")

        def tell(job: Job, share: float, words: str) -> None:
            self._display.update(jobs[job].title, share, words)

        def note(job: Job, error: JobError) -> None:
            self.failures[jobs[job].name] = str(error)
            self._display.finish(jobs[job].title, f"FAILED: {error}")

        run_jobs(list(jobs), tell, limit=limit, on_begin=begin, on_result=keep, on_failure=note)
