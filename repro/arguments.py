"""The argument parser of the light commands: one line per mistake, with the nearest option."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """``argparse`` with one clear line per mistake (exit code 2), no abbreviations, and help with line breaks kept."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses ``argv``; an unknown option ends the program and names the nearest known one."""
        options, unknown = self.parse_known_args(argv)
        if unknown:
            given = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            what = "option" if given.startswith("-") else "argument"
            self.error(f"unknown {what} {given}{suggest(given, self._option_string_actions)}")
        return options

    def error(self, message: str) -> NoReturn:
        """Prints one line to stderr and exits with code 2."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def positive(text: str) -> int:
    """A ``type`` for ``add_argument``: a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, and at least 1")
    return number


def suggest(given: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` for the known word nearest to ``given``, or nothing."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
