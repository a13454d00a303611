"""``repro reproduce``: both models through the pipeline and in one stage, side by side, and what that costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError

from .cells import CellStore
from .environment import describe_run
from .progress import Display
from .scales import SCALES

_DESCRIPTION = """\
Train AmoebaNet and the Transformer through GPipe with different numbers of stages and without a pipeline, same seed;
compare losses, gradient norms and held-out metrics; compare step times with PyTorch's own pipeline and a bare loop;
measure the bubble; then train both for longer, so that they are seen to learn. Writes rows.jsonl, run.json and
report.md with figures."""

_EPILOG = """\
A run that was stopped goes on where it was when the same command is given again, as long as code, torch and device are
the same. Exit code: 0 when all checks passed, 1 when one did not or a part failed, 2 for a mistake in the options or
when no data is there. Expected minutes on two cores: smoke 2, laptop 12.

examples:
  repro reproduce --scale smoke
  repro reproduce --scale laptop -M 4
  repro reproduce --scale gpu --devices cuda:0"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro reproduce`` with ``argv`` and returns its exit code."""
    options = _parser().parse_all(argv)
    scale = SCALES[options.scale]
    folder = Path(options.results or f"results/local/reproduce/{options.scale}").resolve()
    device = options.devices or ("cuda:0" if options.scale == "gpu" else "cpu")
    _check_options(options, device)
    # Only now: these load torch and lightning, and --help should not wait for them.
    from .plan import make_plan
    from .reproduction import Reproduction

    run = {"target": "reproduce", "scale": options.scale}
    run |= describe_run(" ".join(["repro reproduce", *argv]), device)
    context = {
        "git_revision": run["git_revision"],
        "torch": run["versions"]["torch"],
        "device": [device, run["device_name"]],
    }
    store = CellStore(folder, context)
    store.prepare()
    plan = make_plan(scale, device, options.num_stages, options.num_micro_batches)
    weights = {part.title: group.seconds / len(group.parts) for group in plan.groups for part in group.parts}
    with Display(weights) as display:
        display.say(
            f"repro reproduce --scale {options.scale}: about {scale.minutes:.0f} minutes on two cores; "
            f"results go to {folder}"
        )
        reproduction = Reproduction(plan, store, display)
        reproduction.run()
        rows, checks = reproduction.collect(scale)
        kept = reproduction.store.finish(rows, run | reproduction.summary(checks))
        if kept is not None:
            display.say(f"the results of an earlier run (other options or other code) are kept in {kept}")
    return _report(folder, options.json) or (0 if reproduction.succeeded(checks) else 1)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro reproduce", _DESCRIPTION, _EPILOG)
    parser.add_argument("--scale", choices=list(SCALES), default="laptop", help="how big it is (default: laptop)")
    parser.add_argument(
        "--devices",
        metavar="D",
        help="cpu, cuda:0, or several: cuda:0,cuda:1 (default: cpu, with --scale gpu cuda:0); where there are fewer "
        "than stages, all stages share the first one",
    )
    parser.add_argument(
        "-K", "--num-stages", type=int, default=2, metavar="K", help="stages of the runs in processes (default: 2)"
    )
    parser.add_argument(
        "-M", "--num-micro-batches", type=int, metavar="M", help="micro-batches (default: 8; longer runs: the config's)"
    )
    parser.add_argument(
        "--results", metavar="DIR", help="where to write (default: results/local/reproduce/SCALE below this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print checks and figures as JSON")
    return parser


def _check_options(options: Any, device: str) -> None:
    for name in ("num_stages", "num_micro_batches"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: give a whole number of at least 1")
    names = device.split(",")
    if device != "cpu" and not all(name == "cuda" or name.startswith("cuda:") for name in names):
        raise UserError(f"--devices {device}: give cpu, cuda:0, or several such as cuda:0,cuda:1")
    if device != "cpu":
        import torch

        count = torch.cuda.device_count()
        for name in names:
            number = name.partition(":")[2] or "0"
            if not number.isdigit() or int(number) >= count:
                raise UserError(f"--devices {device}: there is no {name}; this machine has {count} CUDA devices")


def _report(folder: Path, as_json: bool) -> int:
    """Writes the report as ``repro report`` does: plots are drawn in a process of their own."""
    words = [sys.executable, "-m", "repro", "report", "--results", str(folder), *(["--json"] if as_json else [])]
    return subprocess.run(words, check=False).returncode
