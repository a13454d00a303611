"""``repro schedule``: simulates a schedule from given costs and draws it."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.report.timeline import draw
from repro.schedules import GENERATORS, Kind, Remat, Timeline, make_schedule, simulate, staleness

from .cost_files import Cost, Shape, read_costs, trace_shape
from .naming import find_schedule

_DESCRIPTION = """\
Draw a pipeline schedule: one row per rank, time from left to right, dots where the rank idles. It is simulated from
the costs given here; the order of the actions is the one that a training run executes."""

_EPILOG = """\
In the drawing: F forward, R recompute, B backward, which some schedules split into I (gradient of the input) and W
(gradient of the weights); the number is the micro-batch; where a rank holds several stages a letter tells which. COST
is one number, or one per stage (K x V of them) separated by commas, in any unit. The bubble is the idle time of all
ranks / (ranks x makespan); R counts as work.

FILE of --costs is JSON: an object with forward, backward and perhaps recompute, weight, transfer, each a number or a
list by stage or by layer; a profile of layers; a trace of a run in Chrome's format. Options override it.

NAME may also be a function of your own, as MODULE.FUNCTION (docs/adding_a_schedule.md).

examples:
  repro schedule gpipe -K 4 -M 8
  repro schedule gpipe -K 4 -M 8 --remat always
  repro schedule gpipe -K 4 -M 1                 naive model parallelism
  repro schedule interleaved -K 4 -M 8 -V 2 --svg interleaved.svg
  repro schedule gpipe -K 2 -M 4 --forward 1,2 --json"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro schedule`` with ``argv`` and returns its exit code."""
    parser = _parser()
    options = parser.parse_all(argv)
    if options.width is not None and options.width < 20:
        parser.error(f"--width {options.width}: give at least 20 columns")
    traced = None if options.costs is None else trace_shape(options.costs)
    stages, micro_batches, virtual = _numbers(options, traced)
    schedule = make_schedule(
        find_schedule(options.name),
        num_stages=stages,
        num_micro_batches=micro_batches,
        num_virtual_stages=virtual,
        remat=options.remat,
    )
    costs = _costs(options, schedule.total_stages)
    timeline = simulate(schedule, **costs)
    if not math.isfinite(timeline.bubble):
        raise UserError(f"costs {_shown(timeline, costs)} add up to more than a number can hold: give a larger unit")
    if options.svg is not None:
        _write_svg(timeline, costs, options.svg)
    if options.json:
        print(json.dumps(_as_json(timeline, costs)))
    else:
        unit = " microseconds, medians of the trace" if traced else ""
        print(_as_text(timeline, costs, options.width, _colours(options.color), unit))
        if options.svg is not None:
            print(f"drawn      {options.svg}")
    return 0


def _numbers(options: argparse.Namespace, traced: Shape | None) -> tuple[int, int, int]:
    """K, M and V: those of the options, else of the trace that the costs are from, else the defaults."""
    stages, micro_batches, virtual = options.num_stages, options.num_micro_batches, options.num_virtual_stages
    if stages is None:
        stages = traced.num_stages if traced else 4
    if micro_batches is None:
        micro_batches = traced.num_micro_batches if traced else 4 * stages
    if virtual is None and traced is not None and traced.total_stages % max(1, stages) == 0:
        virtual = traced.total_stages // max(1, stages)
    elif virtual is None:
        virtual = 2 if options.name == "zb-v" else 1
    return stages, micro_batches, virtual


def _costs(options: argparse.Namespace, num_stages: int) -> dict[str, Cost]:
    """Costs of all kinds: those of the options, else of the file, else units; R costs what F costs."""
    costs: dict[str, Cost] = {"forward": 1.0, "backward": 2.0, "transfer": 0.0}
    if options.costs is not None:
        costs |= read_costs(options.costs, num_stages)
    given = {name: getattr(options, name) for name in ("forward", "backward", "recompute", "weight", "transfer")}
    costs |= {name: cost for name, cost in given.items() if cost is not None}
    costs.setdefault("recompute", costs["forward"])
    return costs


def _colours(when: str) -> bool:
    if when == "auto":
        return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return when == "always"


def _write_svg(timeline: Timeline, costs: Mapping[str, Cost], path: Path) -> None:
    from repro.report.timeline_svg import svg

    title = f"{_title(timeline)}; simulated from {_shown(timeline, costs)}: bubble {100 * float(timeline.bubble):.1f}%"
    try:
        path.write_text(svg(timeline, title), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg {path}: {error.strerror or error}") from None


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro schedule", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "name",
        nargs="?",
        default="gpipe",
        metavar="NAME",
        help=f"one of: {', '.join(GENERATORS)} (default: gpipe); or a function MODULE.FUNCTION",
    )
    parser.add_argument("-K", "--num-stages", type=int, metavar="K", help="pipeline ranks (default: the trace's, or 4)")
    parser.add_argument(
        "-M", "--num-micro-batches", type=int, metavar="M", help="micro-batches (default: the trace's, or 4 x K)"
    )
    parser.add_argument(
        "-V",
        "--num-virtual-stages",
        type=int,
        metavar="V",
        help="stages per rank (default: the trace's, or 1; zb-v: 2)",
    )
    parser.add_argument(
        "--remat",
        default="never",
        metavar="WHICH",
        help=f"which micro-batches are recomputed: {', '.join(Remat)} (default: never)",
    )
    parser.add_argument("--forward", type=_cost, metavar="COST", help="cost of F (default: 1)")
    parser.add_argument("--backward", type=_cost, metavar="COST", help="cost of B = I + W (default: 2)")
    parser.add_argument("--weight", type=_cost, metavar="COST", help="the part of it that W takes (default: half)")
    parser.add_argument("--recompute", type=_cost, metavar="COST", help="cost of R (default: the cost of F)")
    parser.add_argument(
        "--transfer",
        type=_cost,
        metavar="COST",
        help="delay of a message between ranks, one number or one per boundary (default: 0)",
    )
    parser.add_argument("--costs", type=Path, metavar="FILE", help="costs from a file: a profile, a trace, numbers")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the drawing to a file as well")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colours (default: where there are any)"
    )
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="width of the drawing (default: the terminal's)")
    parser.add_argument("--json", action="store_true", help="print every action with its start and end as JSON")
    return parser


def _cost(text: str) -> Cost:
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no cost: give one number, or numbers like 1,2,1") from None
    return values[0] if len(values) == 1 else values


def _as_text(timeline: Timeline, costs: Mapping[str, Cost], width: int | None, colours: bool, unit: str) -> str:
    columns = shutil.get_terminal_size((160, 50)).columns if width is None else width
    peaks = sorted(set(timeline.peak_live))
    lines = [
        _title(timeline),
        f"simulated from the costs {_shown(timeline, costs)}{unit}",
        "",
        draw(timeline, columns, colours=colours),
        "",
        f"bubble     {100 * float(timeline.bubble):.1f}% of ranks x makespan",
        f"makespan   {_number(float(timeline.makespan))}",
        f"peak live  {peaks[0]} on every rank" if len(peaks) == 1 else f"peak live  {list(timeline.peak_live)} by rank",
        "           (activations kept, counted in micro-batches of one stage)",
    ]
    if not timeline.schedule.flush:
        lines += [
            "no flush   each micro-batch is a mini-batch of its own, and the weights change after its backward: as a",
            "           stream goes on, the idle time at its start and end matters less and less",
            f"stale by   {list(staleness(timeline.schedule))} updates at most, by stage (0 for schedules with a flush)",
        ]
    if timeline.schedule.restriction:
        lines.append(f"simulated only: {timeline.schedule.restriction}")
    return "\n".join(lines)


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    virtual = f", V = {schedule.num_virtual_stages} (stages per rank)" if schedule.num_virtual_stages > 1 else ""
    return (
        f"{schedule.name}: K = {schedule.num_stages} (ranks), M = {schedule.num_micro_batches} (micro-batches)"
        f"{virtual}, remat {schedule.remat.value}"
    )


def _shown(timeline: Timeline, costs: Mapping[str, Cost]) -> str:
    kinds = {action.kind for actions in timeline.schedule.actions for action in actions}
    shown = {"F": costs["forward"], "B": costs["backward"]}
    if Kind.WEIGHT_GRADIENT in kinds:
        shown["of which W"] = costs.get("weight", _half(costs["backward"]))
    if Kind.RECOMPUTE in kinds:
        shown["R"] = costs["recompute"]
    if costs["transfer"]:
        shown["transfer"] = costs["transfer"]
    return ", ".join(f"{name} = {_number(cost)}" for name, cost in shown.items())


def _half(cost: Cost) -> Cost:
    return tuple(value / 2 for value in cost) if isinstance(cost, tuple) else cost / 2


def _number(cost: Cost) -> str:
    return ",".join(f"{value:g}" for value in (cost if isinstance(cost, tuple) else (cost,)))


def _as_json(timeline: Timeline, costs: Mapping[str, Cost]) -> dict[str, object]:
    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "num_stages": schedule.num_stages,
        "num_micro_batches": schedule.num_micro_batches,
        "num_virtual_stages": schedule.num_virtual_stages,
        "remat": schedule.remat.value,
        "provenance": "simulated",
        "costs": dict(costs),
        "makespan": timeline.makespan,
        "bubble": timeline.bubble,
        "rank_bubbles": timeline.rank_bubbles,
        "peak_live": timeline.peak_live,
        "staleness": staleness(schedule),
        "ranks": [
            [
                {"kind": kind.value, "stage": stage, "micro_batch": micro_batch, "start": start, "end": end}
                for (kind, stage, micro_batch), start, end in zip(actions, starts, ends, strict=True)
            ]
            for actions, starts, ends in zip(schedule.actions, timeline.starts, timeline.ends, strict=True)
        ],
    }
