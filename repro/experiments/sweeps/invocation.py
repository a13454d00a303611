"""What ``repro reproduce`` and ``repro run`` share: options and their checks, the folder of a run, its report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError
from repro.words import counted

from .cells import CellStore
from .environment import describe_run

DEVICES_HELP = "cpu, cuda:0, or several: cuda:0,cuda:1 (default: cpu, with --scale gpu cuda:0)"


def add_output_options(parser: ArgumentParser, target: str) -> None:
    """``--results`` and ``--json``."""
    parser.add_argument(
        "--results", metavar="DIR", help=f"where to write (default: results/local/{target}/SCALE below this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print checks and figures as JSON")


def check_count(name: str, value: int | None) -> None:
    """Raises UserError for a number of stages or micro-batches below 1."""
    if value is not None and value < 1:
        raise UserError(f"{name}={value}: give a whole number of at least 1")


def duration(scale: str, minutes: float) -> str:
    """How long a run takes, as far as that is known."""
    return "how long it takes is not measured on a GPU" if scale == "gpu" else f"{in_words(minutes)} on two cores"


def in_words(minutes: float) -> str:
    """Seconds, or whole minutes."""
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    return f"about {counted(round(minutes), 'minute')}"


def chosen_device(devices: str | None, scale: str) -> str:
    """The value of ``--devices``, or its default.

    Raises:
        UserError: it names no device of this machine.
    """
    device = devices or ("cuda:0" if scale == "gpu" else "cpu")
    if device == "cpu":
        return device
    names = device.split(",")
    if not all(name == "cuda" or name.startswith("cuda:") for name in names):
        raise UserError(f"--devices {device}: give cpu, cuda:0, or several such as cuda:0,cuda:1")
    import torch

    count = torch.cuda.device_count()
    for name in names:
        number = name.partition(":")[2] or "0"
        if not number.isdigit() or int(number) >= count:
            raise UserError(f"--devices {device}: there is no {name}; this machine has {count} CUDA devices")
    return device


def open_run(
    target: str, scale: str, device: str, results: str | None, command: str
) -> tuple[CellStore, dict[str, Any]]:
    """The folder of a run, made if it is not there, and what ``run.json`` says of where and with what it was made.

    Raises:
        UserError: nothing can be written there.
    """
    run: dict[str, Any] = {"target": target, "scale": scale} | describe_run(command, device)
    context = {
        "git_revision": run["git_revision"],
        "torch": run["versions"]["torch"],
        "device": [device, run["device_name"]],
    }
    store = CellStore(Path(results or f"results/local/{target}/{scale}").resolve(), context)
    store.prepare()
    return store, run


def write_report(folders: Sequence[Path], as_json: bool) -> int:
    """Writes and prints reports as ``repro report`` does: plots are drawn in a process of their own."""
    words = [sys.executable, "-m", "repro", "report", "--results", *map(str, folders), *(["--json"] if as_json else [])]
    # In a session of its own it does not hear Ctrl-C, of which this process tells; it is ended then.
    return subprocess.run(words, check=False, start_new_session=True).returncode
