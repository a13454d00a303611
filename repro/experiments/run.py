"""``repro run TARGET ...``: tables and figures of the paper, part by part, then their reports."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.words import counted

from .catalogue import TARGETS, find_target
from .sweeps.environment import usable_cores
from .sweeps.invocation import (
    DEVICES_HELP,
    add_output_options,
    check_count,
    chosen_device,
    duration,
    in_words,
    open_run,
    write_report,
)
from .sweeps.parts import PartRunner
from .sweeps.progress import Display
from .sweeps.sweep import Request, SweepPart, Target, side_by_side

SCALES = ("smoke", "laptop", "gpu")
_COMMON = ("scale", "devices", "num_stages", "num_micro_batches", "results", "json")

_EPILOG = """\
A run that was stopped goes on where it was when the same command is given again, as long as code, torch and device are
the same. Exit code: 0 when all checks passed, 1 when one did not or a part failed, 2 for a mistake in the options."""


@dataclass(frozen=True)
class _Order:
    """What is run of one target, and where its results go (None: the usual place)."""

    target: Target
    request: Request
    parts: Sequence[SweepPart]
    results: str | None
    command: str


def main(argv: Sequence[str]) -> int:
    """Runs ``repro run`` with ``argv`` and returns its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    names = list(dict.fromkeys(itertools.takewhile(lambda word: not word.startswith("-"), argv)))
    if not names:
        raise UserError(f"repro run {argv[0]}: the target comes first, one of {', '.join(TARGETS)}")
    words = list(itertools.dropwhile(lambda word: not word.startswith("-"), argv))
    targets = [find_target(name) for name in names]
    orders = [_order(target, words, alone=len(targets) == 1) for target in targets]
    folders: list[Path] = []
    failed = False
    try:
        for order in orders:
            folder, good = _run(order)
            folders.append(folder)
            failed = failed or not good
    finally:
        # One process draws all figures; also of what was finished before an interruption.
        code = write_report(folders, "--json" in words) if folders else 0
    return code or int(failed)


def _order(target: Target, words: Sequence[str], *, alone: bool) -> _Order:
    options = _parser(target).parse_all(words)
    request = _request(options)
    parts = target.parts(request)
    _check_unique(target, parts)
    results = options.results
    if results is not None and not alone:
        results = f"{results}/{target.name}/{request.scale}"
    return _Order(target, request, parts, results, " ".join(["repro run", target.name, *words]))


def _run(order: _Order) -> tuple[Path, bool]:
    """Runs what has not been finished and writes rows; where to, and whether everything succeeded."""
    target, request, parts = order.target, order.request, order.parts
    store, run = open_run(target.name, request.scale, request.device, order.results, order.command)
    with Display({part.title: part.seconds for part in parts}) as display:
        groups, cores = side_by_side(parts), usable_cores()
        expected = duration(request.scale, sum(_seconds(group, cores) for group in groups) / 60)
        display.say(
            f"repro run {target.name} --scale {request.scale}: {counted(len(parts), 'part')}, "
            f"{expected} if none is finished; results go to {store.folder}"
        )
        runner = PartRunner(store, display)
        for group in groups:
            runner.run(group, cores)
        rows, checks = target.rows(request, runner.results)
        run |= {
            "minutes": runner.minutes,
            "checks": [asdict(check) for check in checks],
            "failures": runner.failures,
        }
        kept = store.finish(rows, run)
        if kept is not None:
            display.say(f"the results of an earlier run (other options or other code) are kept in {kept}")
    return store.folder, not runner.failures and all(check.passed for check in checks)


def _request(options: Any) -> Request:
    for name in ("num_stages", "num_micro_batches"):
        for value in getattr(options, name) or ():
            check_count(name, value)
    own = {name: value for name, value in vars(options).items() if name not in _COMMON}
    stages, micro_batches = (
        None if values is None else tuple(dict.fromkeys(values))
        for values in (options.num_stages, options.num_micro_batches)
    )
    return Request(options.scale, chosen_device(options.devices, options.scale), stages, micro_batches, own)


def _check_unique(target: Target, parts: Sequence[SweepPart]) -> None:
    for what in ("name", "title"):
        values = [getattr(part, what) for part in parts]
        if len(values) != len(set(values)):
            raise ValueError(f"two parts of {target.name} have the same {what}: {values}")


def _parser(target: Target) -> ArgumentParser:
    times = ", ".join(f"{scale} {in_words(minutes)}" for scale, minutes in target.minutes.items())
    description = (
        f"{target.summary}\nExpected on two cores: {times}; not measured on a GPU.\n"
        "Writes rows.jsonl, run.json and report.md with figures."
    )
    parser = ArgumentParser(f"repro run {target.name}", description, _EPILOG)
    parser.add_argument("--scale", choices=SCALES, default="laptop", help="how big it is (default: laptop)")
    parser.add_argument("--devices", metavar="D", help=DEVICES_HELP)
    for letter, name, what in (("K", "stages", "stages"), ("M", "micro-batches", "micro-batches")):
        parser.add_argument(
            f"-{letter}",
            f"--num-{name}",
            type=int,
            nargs="+",
            metavar=letter,
            help=f"numbers of {what}, one or several (default: the target's)",
        )
    target.add_options(parser)
    add_output_options(parser, target.name)
    return parser


def _seconds(group: Sequence[SweepPart], cores: int) -> float:
    """Expected for parts that run at the same time."""
    return max(*(part.seconds for part in group), sum(part.seconds for part in group) / cores)


def _help() -> str:
    names = "\n".join(
        textwrap.fill(find_target(name).summary, 110, initial_indent=f"  {name:<10} ", subsequent_indent=" " * 13)
        for name in TARGETS
    )
    return f"""usage: repro run TARGET [TARGET ...] [options]

Runs tables and figures of the paper and writes their reports: paper | reference | yours.

targets:
{names}

repro run TARGET --help says what it shows, how long it takes, and its options.

examples:
  repro run table2 --scale smoke
  repro run table2 -K 2 4 -M 1 32
  repro run breakdown figure2 --scale smoke
  repro run peers --scale laptop --json"""
