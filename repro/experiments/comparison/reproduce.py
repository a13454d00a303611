"""``repro reproduce``: both models through the pipeline and in one stage, side by side, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

from repro.arguments import ArgumentParser
from repro.errors import UserError

from ..accuracy.scales import SCALES
from ..sweeps.invocation import (
    DEVICES_HELP,
    add_output_options,
    check_count,
    chosen_device,
    duration,
    open_run,
    write_report,
)
from ..sweeps.progress import Display

_DESCRIPTION = """\
Train AmoebaNet and the Transformer through GPipe with different numbers of stages and without a pipeline, same seed;
compare losses, gradient norms and held-out metrics; compare step times with PyTorch's own pipeline and a bare loop;
measure the bubble; then train both for longer, so that they are seen to learn. Writes rows.jsonl, run.json and
report.md with figures."""

_EPILOG = f"""\
A run that was stopped goes on where it was when the same command is given again, as long as code, torch and device are
the same. Exit code: 0 when all checks passed, 1 when one did not or a part failed, 2 for a mistake in the options or
when no data is there. Expected minutes on two cores: smoke {SCALES["smoke"].minutes:.0f}, laptop \
{SCALES["laptop"].minutes:.0f}; not measured on a GPU.

examples:
  repro reproduce --scale smoke
  repro reproduce --scale laptop -M 4
  repro reproduce --scale gpu --devices cuda:0"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro reproduce`` with ``argv`` and returns its exit code."""
    options = _parser().parse_all(argv)
    scale = SCALES[options.scale]
    for name in ("num_stages", "num_micro_batches"):
        check_count(name, getattr(options, name))
    device = chosen_device(options.devices, options.scale)
    # Only now: these load torch and lightning, and --help should not wait for them.
    from .plan import make_plan
    from .reproduction import Reproduction, find_missing

    plan = make_plan(scale, device, options.num_stages, options.num_micro_batches)
    missing = find_missing(plan)
    if options.check:
        return 0
    if len(missing) == len(plan.compared):
        raise UserError("there is no data to train on: " + " ".join(missing.values()))
    command = " ".join(["repro reproduce", *argv])
    store, run = open_run("reproduce", options.scale, device, options.results, command)
    weights = {part.title: group.seconds / len(group.parts) for group in plan.groups for part in group.parts}
    with Display(weights) as display:
        display.say(
            f"repro reproduce --scale {options.scale}: {duration(options.scale, scale.minutes)}; "
            f"results go to {store.folder}"
        )
        reproduction = Reproduction(plan, store, display, missing)
        reproduction.run()
        rows, checks = reproduction.collect(scale)
        kept = store.finish(rows, run | reproduction.summary(checks))
        if kept is not None:
            display.say(f"the results of an earlier run (other options or other code) are kept in {kept}")
    return write_report([store.folder], options.json) or (0 if reproduction.succeeded(checks) else 1)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro reproduce", _DESCRIPTION, _EPILOG)
    parser.add_argument("--scale", choices=list(SCALES), default="laptop", help="how big it is (default: laptop)")
    parser.add_argument(
        "--devices",
        metavar="D",
        help=f"{DEVICES_HELP}; where there are fewer than stages, all stages share the first one",
    )
    parser.add_argument(
        "-K", "--num-stages", type=int, default=2, metavar="K", help="stages of the runs in processes (default: 2)"
    )
    parser.add_argument(
        "-M", "--num-micro-batches", type=int, metavar="M", help="micro-batches (default: 8; longer runs: the config's)"
    )
    parser.add_argument("--check", action="store_true", help="only check the options: no data is needed, nothing runs")
    add_output_options(parser, "reproduce")
    return parser
