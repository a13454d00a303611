"""What a long run shows while it works: bars in a terminal, lines elsewhere; always on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_QUIET_SECONDS = 20.0
# From this share of the work on, what is left is estimated from how fast this run has been, not from what is expected.
_ENOUGH = 0.1


class Display:
    """Shows the parts of a run: which one runs, how far it is, how much is left.

    Args:
        weights: expected seconds of each part by name, all parts.
        console: where to; stderr by default.
    """

    def __init__(self, weights: dict[str, float], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._weights = weights
        self._done: set[str] = set()
        self._not_run: set[str] = set()
        self._begun = time.monotonic()
        self._shares: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=None),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._total = self._progress.add_task("all parts", total=1.0, words="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def begin(self, name: str) -> None:
        """A part starts."""
        self._shares[name] = 0.0
        self._tasks[name] = self._progress.add_task(f"  {name}", total=1.0, words="starting")
        self._last_line[name] = time.monotonic()
        if not self.console.is_terminal:
            self.say(f"[{self._clock()}] {name} ...")

    def update(self, name: str, share: float, words: str) -> None:
        """A part is at ``share`` of its work."""
        self._shares[name] = share
        self._progress.update(self._tasks[name], completed=share, words=words)
        self._show_total()
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line[name] > _QUIET_SECONDS:
            self._last_line[name] = now
            self.say(f"[{self._clock()}] {name}: {words} ({self._left()})")

    def finish(self, name: str, words: str) -> None:
        """A part has ended, or does not run; ``words`` say with what."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        else:
            self._not_run.add(name)
        self._shares.pop(name, None)
        self._done.add(name)
        self._show_total()
        self.say(f"[{self._clock()}] {name}: {words} ({self._left()})")

    def _show_total(self) -> None:
        self._progress.update(self._total, completed=self._share(), words=self._left())

    def _share(self) -> float:
        total = sum(self._weights.values()) or 1.0
        return (self._weight(self._done) + self._running()) / total

    def _weight(self, names: Iterable[str]) -> float:
        return sum(self._weights.get(name, 0.0) for name in names)

    def _running(self) -> float:
        return sum(self._weights.get(name, 0.0) * share for name, share in self._shares.items())

    def _left(self) -> str:
        total = sum(self._weights.values())
        left = (1 - self._share()) * total
        worked = self._weight(self._done - self._not_run) + self._running()
        if worked > _ENOUGH * total:
            left *= (time.monotonic() - self._begun) / worked
        count = f"{len(self._done)} of {max(len(self._weights), len(self._done))} done"
        if len(self._done) >= len(self._weights):
            return count
        return f"{count}, " + (f"about {max(1, round(left / 60))} min left" if left >= 45 else "under a minute left")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        return f"{minutes:02d}:{seconds:02d}"
