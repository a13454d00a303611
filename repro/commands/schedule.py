"""``repro schedule``: simulates a schedule from given costs and draws it."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence

from repro.arguments import ArgumentParser
from repro.report.timeline import draw
from repro.schedules import GENERATORS, Remat, Timeline, make_schedule, simulate

_DESCRIPTION = """\
Draw a pipeline schedule: one row per rank, time from left to right, dots where the rank idles. It is simulated from
the costs given here; the order of the actions is the one that a training run executes."""

_EPILOG = """\
In the drawing: F forward, R recompute, B backward, the number is the micro-batch; with virtual stages a letter tells
which of the rank's stages. COST is one number, or one per stage (K x V of them) separated by commas, in any unit.
The bubble is the idle time of all ranks / (ranks x makespan); R counts as work.

examples:
  repro schedule gpipe -K 4 -M 8
  repro schedule gpipe -K 4 -M 8 --remat always
  repro schedule gpipe -K 4 -M 1                 naive model parallelism
  repro schedule gpipe -K 2 -M 4 --forward 1,2 --json"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro schedule`` with ``argv`` and returns its exit code."""
    parser = _parser()
    options = parser.parse_all(argv)
    if options.width is not None and options.width < 20:
        parser.error(f"--width {options.width}: give at least 20 columns")
    micro_batches = 4 * options.num_stages if options.num_micro_batches is None else options.num_micro_batches
    schedule = make_schedule(
        options.name,
        num_stages=options.num_stages,
        num_micro_batches=micro_batches,
        num_virtual_stages=options.num_virtual_stages,
        remat=options.remat,
    )
    costs = {
        "forward": options.forward,
        "backward": options.backward,
        "recompute": options.forward if options.recompute is None else options.recompute,
        "transfer": options.transfer,
    }
    timeline = simulate(schedule, **costs)
    print(json.dumps(_as_json(timeline, costs)) if options.json else _as_text(timeline, costs, options.width))
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro schedule", _DESCRIPTION, _EPILOG)
    parser.add_argument("name", nargs="?", default="gpipe", help=f"one of: {', '.join(GENERATORS)} (default: gpipe)")
    parser.add_argument("-K", "--num-stages", type=int, default=4, metavar="K", help="pipeline ranks (default: 4)")
    parser.add_argument(
        "-M", "--num-micro-batches", type=int, metavar="M", help="micro-batches (default: 4 x K, the paper's rule)"
    )
    parser.add_argument(
        "-V", "--num-virtual-stages", type=int, default=1, metavar="V", help="stages per rank (default: 1)"
    )
    parser.add_argument(
        "--remat",
        default="never",
        metavar="WHICH",
        help=f"which micro-batches are recomputed: {', '.join(Remat)} (default: never)",
    )
    parser.add_argument("--forward", type=_cost, default=1.0, metavar="COST", help="cost of F (default: 1)")
    parser.add_argument("--backward", type=_cost, default=2.0, metavar="COST", help="cost of B (default: 2)")
    parser.add_argument("--recompute", type=_cost, metavar="COST", help="cost of R (default: the cost of F)")
    parser.add_argument(
        "--transfer",
        type=_cost,
        default=0.0,
        metavar="COST",
        help="delay of a message between ranks, one number or one per boundary (default: 0)",
    )
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="width of the drawing (default: the terminal's)")
    parser.add_argument("--json", action="store_true", help="print every action with its start and end as JSON")
    return parser


def _cost(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no cost: give one number, or numbers like 1,2,1") from None
    return values[0] if len(values) == 1 else values


def _as_text(timeline: Timeline, costs: dict[str, float | tuple[float, ...]], width: int | None) -> str:
    schedule = timeline.schedule
    shown = {"F": costs["forward"], "B": costs["backward"]}
    if any(action.kind.value == "R" for actions in schedule.actions for action in actions):
        shown["R"] = costs["recompute"]
    if costs["transfer"]:
        shown["transfer"] = costs["transfer"]
    virtual = f", V = {schedule.num_virtual_stages} (stages per rank)" if schedule.num_virtual_stages > 1 else ""
    peaks = sorted(set(timeline.peak_live))
    return "\n".join(
        [
            f"{schedule.name}: K = {schedule.num_stages} (ranks), M = {schedule.num_micro_batches} (micro-batches)"
            f"{virtual}, remat {schedule.remat.value}",
            "simulated from the costs " + ", ".join(f"{name} = {_number(cost)}" for name, cost in shown.items()),
            "",
            draw(timeline, shutil.get_terminal_size((160, 50)).columns if width is None else width),
            "",
            f"bubble     {100 * float(timeline.bubble):.1f}% of ranks x makespan",
            f"makespan   {_number(float(timeline.makespan))}",
            f"peak live  {peaks[0]} on every rank"
            if len(peaks) == 1
            else f"peak live  {list(timeline.peak_live)} by rank",
            "           (activations kept, counted in micro-batches of one stage)",
        ]
    )


def _number(cost: float | tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in (cost if isinstance(cost, tuple) else (cost,)))


def _as_json(timeline: Timeline, costs: dict[str, float | tuple[float, ...]]) -> dict[str, object]:
    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "num_stages": schedule.num_stages,
        "num_micro_batches": schedule.num_micro_batches,
        "num_virtual_stages": schedule.num_virtual_stages,
        "remat": schedule.remat.value,
        "provenance": "simulated",
        "costs": costs,
        "makespan": timeline.makespan,
        "bubble": timeline.bubble,
        "rank_bubbles": timeline.rank_bubbles,
        "peak_live": timeline.peak_live,
        "ranks": [
            [
                {"kind": kind.value, "stage": stage, "micro_batch": micro_batch, "start": start, "end": end}
                for (kind, stage, micro_batch), start, end in zip(actions, starts, ends, strict=True)
            ]
            for actions, starts, ends in zip(schedule.actions, timeline.starts, timeline.ends, strict=True)
        ],
    }
