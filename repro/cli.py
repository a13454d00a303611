"""The one command, ``repro``: finds the subcommand, imports only what it needs, prints errors as one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from repro import __version__
from repro.arguments import suggest
from repro.errors import UserError


class Command(NamedTuple):
    """A subcommand: where its ``main(argv) -> int | None`` is, and what it does.

    ``passes_name`` says whether ``main`` gets the name of the subcommand as its first argument, and ``goes_on`` whether
    the same command goes on where an interrupted one was.
    """

    module: str
    function: str
    summary: str
    passes_name: bool = False
    goes_on: bool = False


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "fit": Command("repro.tasks.cli", "main", "train a model, --config FILE", passes_name=True),
        "validate": Command("repro.tasks.cli", "main", "evaluate on the validation split", passes_name=True),
        "test": Command("repro.tasks.cli", "main", "evaluate on the held-out split", passes_name=True),
        "predict": Command("repro.tasks.cli", "main", "write predictions", passes_name=True),
        "translate": Command("repro.commands.translate", "main", "translate lines of text with a trained Transformer"),
        "verify": Command("repro.tasks.verify", "main", "one step unsplit, one through the pipeline: largest errors"),
        "reproduce": Command(
            "repro.experiments.comparison.reproduce",
            "main",
            "run the main comparison and write its report",
            goes_on=True,
        ),
        "run": Command(
            "repro.experiments.run", "main", "run one table or figure of the paper and write its report", goes_on=True
        ),
        "report": Command("repro.report", "main", "turn the rows of finished runs into tables and figures"),
        "bubble": Command("repro.commands.bubble", "main", "compare the schedules: bubble, peak memory, step time"),
        "schedule": Command("repro.commands.schedule", "main", "draw a schedule, with its bubble and peak memory"),
        "plan": Command("repro.commands.plan", "main", "lay a model over devices: stages, schedule, partition, memory"),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``repro`` with ``argv`` (the command line by default) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"repro {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        known = ["--help", "--version"] if name.startswith("-") else COMMANDS
        print(f"repro: error: unknown {what} {name}{suggest(name, known)} (see repro --help)", file=sys.stderr)
        return 2
    command = COMMANDS[name]
    try:
        run = getattr(importlib.import_module(command.module), command.function)
        code = run([name, *rest] if command.passes_name else rest) or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"repro: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "; run the same command again to go on" if command.goes_on else ""
        print(f"repro: interrupted{again}", file=sys.stderr)
        return 130
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich makes of it an exit with code 1
            return 0
        raise
    except BrokenPipeError:
        # The reader of our output (head, less) has left. Python flushes once more at exit and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    return f"""usage: repro COMMAND [options]

Reproduction suite of the paper GPipe (Huang et al. 2019), version {__version__}.

commands:
{rows}

repro COMMAND --help explains a command; repro --version prints the version.

examples:
  repro schedule gpipe -K 4 -M 8
  repro reproduce --scale smoke
  repro run table2 --scale laptop"""
