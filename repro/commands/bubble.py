"""``repro bubble``: the bubble, peak memory and step time of every schedule over stages and micro-batches."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction

from repro.arguments import ArgumentParser
from repro.schedules import GENERATORS, Generator, Remat, ScheduleError, make_schedule
from repro.schedules.comparison import Comparison, Work, compare, smallest_for_bubble

from .naming import find_schedule

_DESCRIPTION = """\
Compare the schedules over P stages (one per rank) and M micro-batches: how long ranks idle, how many micro-batches
keep their activations, how long a step takes. All stages cost the same and messages are free; all figures are exact,
from closed forms or by replaying the order that a training run executes. Nothing here is measured."""

_EPILOG = """\
columns:
  bubble       idle time of all ranks / (ranks x makespan); a recomputation counts as work
  of ideal     the same idle time / the time of a step without any
  utilisation  1 - bubble
  peak live    micro-batches of one stage whose activations are alive at once, on the rank with most of them; with V
               stages per rank a stage has 1 / V of the rank's layers: in brackets, in micro-batches of a whole rank
  step time    time of a step / (M (t_F + t_B)), 1 if no rank ever idles or recomputes

pipedream has no flush: its figures are those in the middle of a stream, and its gradients those of older weights.
chimera holds all weights twice. Both can be simulated only.

examples:
  repro bubble
  repro bubble -P 4 -M 4 8 --schedules gpipe 1f1b
  repro bubble -P 8 --target 0.1                 the smallest M with a bubble of at most 10%
  repro bubble --forward 1 --backward 3 --remat always --csv"""

_FIGURES = (
    "num_micro_batches",
    "bubble",
    "bubble_of_ideal",
    "utilisation",
    "peak_live",
    "peak_live_ranks",
    "relative_step_time",
)


def main(argv: Sequence[str]) -> int:
    """Runs ``repro bubble`` with ``argv`` and returns its exit code."""
    options = _parser().parse_all(argv)
    work = Work(options.forward, options.backward, _remat(options.remat))
    if options.target is None:
        table, text = _sweep(options, work)
    else:
        table, text = _targets(options, work)
    if options.json:
        print(json.dumps(table, indent=1))
    elif options.csv:
        print(_as_csv(table), end="")
    else:
        print(text)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro bubble", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "-P",
        "-K",
        "--num-stages",
        type=int,
        nargs="+",
        default=[2, 4, 8, 16],
        metavar="P",
        help="pipeline ranks, called K elsewhere (default: 2 4 8 16)",
    )
    parser.add_argument(
        "-M",
        "--num-micro-batches",
        type=int,
        nargs="+",
        default=[4, 8, 16, 32, 64],
        metavar="M",
        help="micro-batches (default: 4 8 16 32 64)",
    )
    parser.add_argument(
        "-V",
        "--num-virtual-stages",
        type=int,
        default=2,
        metavar="V",
        help="stages per rank of the schedule interleaved (default: 2); the others have one, zb-v has two",
    )
    parser.add_argument(
        "--schedules",
        nargs="+",
        default=list(GENERATORS),
        metavar="NAME",
        help=f"which: {', '.join(GENERATORS)}, or functions MODULE.FUNCTION (default: all of the names)",
    )
    parser.add_argument("--forward", type=_number, default=Fraction(1), metavar="COST", help="t_F (default: 1)")
    parser.add_argument("--backward", type=_number, default=Fraction(2), metavar="COST", help="t_B (default: 2)")
    parser.add_argument(
        "--remat",
        nargs="?",
        const="always",
        default="never",
        metavar="WHICH",
        help=f"recompute, at the cost of a forward: {', '.join(Remat)} (default: never; without a word: always)",
    )
    parser.add_argument(
        "--target", type=_number, metavar="SHARE", help="the smallest M with a bubble of at most this share, like 0.15"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a list of JSON objects")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    return parser


def _number(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number: give one like 2, 0.15 or 1/3") from None


def _remat(text: str) -> Remat:
    try:
        return Remat(text)
    except ValueError:
        raise ScheduleError(f"unknown remat={text!r}; known: {', '.join(Remat)}") from None


def _virtual_stages(name: str, asked: int) -> int:
    return {"interleaved": asked, "zb-v": 2}.get(name, 1)


def _combinations(options: argparse.Namespace) -> tuple[list[tuple[str | Generator, int, int]], list[str]]:
    """(schedule, P, V) that can be, and why others cannot; an error if none can, or a number is no number of stages."""
    possible: list[tuple[str | Generator, int, int]] = []
    notes = []
    for stages in options.num_stages:
        for name in options.schedules:
            schedule = find_schedule(name)
            virtual = _virtual_stages(name, options.num_virtual_stages)
            try:
                make_schedule(schedule, num_stages=stages, num_micro_batches=1, num_virtual_stages=virtual)
            except ScheduleError as error:
                # What one schedule alone cannot have is a note; what none can have is a mistake.
                if schedule not in GENERATORS or stages < 1 or virtual < 1:
                    raise
                notes.append(f"left out: {error}")
            else:
                possible.append((schedule, stages, virtual))
    if not possible:
        raise ScheduleError(notes[0].removeprefix("left out: "))
    return possible, notes


def _sweep(options: argparse.Namespace, work: Work) -> tuple[list[dict[str, object]], str]:
    for count in options.num_micro_batches:
        make_schedule("gpipe", num_stages=1, num_micro_batches=count)
    combinations, notes = _combinations(options)
    rows = [
        compare(schedule, stages, count, virtual, work)
        for schedule, stages, virtual in combinations
        for count in options.num_micro_batches
    ]
    lines = _heading(work)
    for stages in dict.fromkeys(options.num_stages):
        header = f"{'schedule':<12} {'V':>2} {'M':>5} {'bubble':>7} {'of ideal':>9} {'utilisation':>12}"
        lines += ["", f"P = {stages}", f"{header} {'peak live':>12} {'step time':>10}"]
        lines += [_line(row) for row in rows if row.num_stages == stages]
    return [_as_dict(row, work) for row in rows], "\n".join(lines + _closing(rows, notes))


def _name(row: Comparison) -> str:
    return row.schedule if row.flush else row.schedule + " *"


def _line(row: Comparison) -> str:
    peak = str(row.peak_live)
    if row.num_virtual_stages > 1:
        peak += f" [{float(row.peak_live_ranks):g}]"
    return (
        f"{_name(row):<12} {row.num_virtual_stages:>2} {row.num_micro_batches:>5} {100 * float(row.bubble):>6.1f}% "
        f"{100 * float(row.bubble_of_ideal):>8.1f}% {100 * float(row.utilisation):>11.1f}% {peak:>12} "
        f"{float(row.relative_step_time):>10.3f}"
    )


def _targets(options: argparse.Namespace, work: Work) -> tuple[list[dict[str, object]], str]:
    combinations, notes = _combinations(options)
    target = options.target
    share = f"{100 * float(target):g}%"
    lines = [
        *_heading(work),
        "",
        f"the smallest M with a bubble of at most {share} (and the smallest that is strictly below it, if another)",
        f"{'schedule':<12} {'V':>2} {'P':>4} {'M':>6} {'bubble':>8} {'peak live':>10} {'strictly below':>15}",
    ]
    table: list[dict[str, object]] = []
    rows = []
    for schedule, stages, virtual in combinations:
        found = smallest_for_bubble(schedule, stages, virtual, work, target)
        below = found
        if found is not None and found.bubble == target:
            below = smallest_for_bubble(schedule, stages, virtual, work, target, strictly=True)
        one = found or compare(schedule, stages, 1, virtual, work)
        start = f"{_name(one):<12} {virtual:>2} {stages:>4}"
        if found is None:
            lines.append(f"{start} {'none':>6}")
        else:
            rows.append(found)
            strictly = "" if below is found else str(below.num_micro_batches) if below else "none"
            lines.append(
                f"{start} {found.num_micro_batches:>6} {100 * float(found.bubble):>7.2f}% {found.peak_live:>10} "
                f"{strictly:>15}".rstrip()
            )
        entry = _as_dict(one, work)
        if found is None:
            entry |= dict.fromkeys(_FIGURES)
        table.append({**entry, "target": float(target), "strictly_below": below.num_micro_batches if below else None})
    if any(entry["num_micro_batches"] is None for entry in table):
        notes = [*notes, "none: idle time that grows with M keeps the bubble above the target"]
    return table, "\n".join(lines + _closing(rows, notes))


def _heading(work: Work) -> list[str]:
    ratio = f"t_F : t_B = {_plain(work.forward)} : {_plain(work.backward)}"
    return [f"{ratio}, remat {work.remat.value}; equal stages, free messages; simulated, nothing is measured"]


def _plain(number: Fraction) -> str:
    return f"{float(number):g}" if Fraction(f"{float(number):g}") == number else str(number)


def _closing(rows: Sequence[Comparison], notes: Sequence[str]) -> list[str]:
    stream = ["* no flush: in the middle of a stream, with gradients of older weights"]
    closing = [*(stream if any(not row.flush for row in rows) else []), *dict.fromkeys(notes)]
    return ["", *closing] if closing else []


def _as_dict(row: Comparison, work: Work) -> dict[str, object]:
    return {
        "schedule": row.schedule,
        "num_stages": row.num_stages,
        "num_micro_batches": row.num_micro_batches,
        "num_virtual_stages": row.num_virtual_stages,
        "remat": work.remat.value,
        "bubble": float(row.bubble),
        "bubble_of_ideal": float(row.bubble_of_ideal),
        "utilisation": float(row.utilisation),
        "peak_live": row.peak_live,
        "peak_live_ranks": float(row.peak_live_ranks),
        "relative_step_time": float(row.relative_step_time),
        "flush": row.flush,
        "provenance": "simulated",
    }


def _as_csv(table: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
