"""A line of progress on standard error, where a person looks at it and it takes more than a moment."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self


class Counting:
    """Called with how many are done, of how many; shows nothing in the first second, and never in a pipe.

    Args:
        what: is counted.
        quiet: show nothing.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._shows = not quiet and sys.stderr.isatty()
        self._next = 0.0
        self._shown = False

    def __enter__(self) -> Self:
        self._next = time.monotonic() + 1
        return self

    def __call__(self, done: int, total: int) -> None:
        """Shows the numbers where it is time to."""
        if self._shows and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.2
            self._shown = True
            print(f"\r{done} of {total} {self._what}", end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
