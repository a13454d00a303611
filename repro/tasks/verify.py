"""``repro verify``: one step unsplit and one through the pipeline, compared parameter by parameter."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from repro.arguments import ArgumentParser, positive
from repro.gpipe import Verification, verify
from repro.tasks.cli import ReproCLI, quiet
from repro.words import counted

_DTYPES = {"float64": torch.float64, "float32": torch.float32}

_DESCRIPTION = """\
Run one training step of a configured model twice on this machine: unsplit, and through a pipeline whose stages all run
in this process; then show the largest error of every gradient and of BatchNorm's running statistics. Both go over the
same micro-batches of the first training batch, with the same weights and the same random numbers."""

_EPILOG = """\
Other options are those of repro fit, such as --data.init_args.batch_size 16.

exit code: 0 equal, 1 an error above the tolerance (1e-10 in float64; in float32 1e-5 of the largest gradient)

examples:
  repro verify --config configs/amoebanet/base.yaml --config configs/amoebanet/smoke.yaml -K 4 -M 8
  repro verify --config configs/transformer/base.yaml --config configs/transformer/laptop.yaml --device cuda"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro verify`` with ``argv``; returns 0 where both steps agree, else 1."""
    parser = _parser()
    options, others = parser.parse_known_args(argv)
    if not options.config:
        parser.error("give a model with --config FILE (several for overlays)")
    configs = [word for file in options.config for word in ("--config", file)]
    # Only the model, its data and the numbers of the strategy are used: the Trainer may be the plainest.
    trainer = ["--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.logger", "false"]
    with quiet(logging.WARNING):
        cli = ReproCLI([*configs, *others, *trainer], run=False)
        strategy = cli.config.trainer.strategy
        configured = {} if isinstance(strategy, str) else vars(strategy.get("init_args", {}))
        num_stages = options.num_stages or configured.get("num_stages") or 2
        asked = options.num_micro_batches or configured.get("num_micro_batches") or 4 * num_stages
        outcome = verify(
            cli.model,
            _first_batch(cli.datamodule),
            num_stages=num_stages,
            num_micro_batches=asked,
            remat=options.remat or configured.get("remat") or "always",
            device=options.device,
            dtype=_DTYPES[options.dtype],
        )
    if options.json:
        print(json.dumps({**dataclasses.asdict(outcome), "passed": outcome.passed}))
    else:
        if len(outcome.micro_batches) < asked:
            rows, made = sum(outcome.micro_batches), len(outcome.micro_batches)
            print(f"M = {asked} was asked for, but the {rows} rows of the batch make {made} micro-batches")
        _show(outcome, len(outcome.differences) if options.all else 6)
    return 0 if outcome.passed else 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro verify", _DESCRIPTION, _EPILOG)
    parser.add_argument("--config", "-c", action="append", metavar="FILE", help="config file; later ones overlay")
    parser.add_argument("-K", "--num-stages", type=positive, metavar="K", help="stages (default: the config's, or 2)")
    parser.add_argument(
        "-M", "--num-micro-batches", type=positive, metavar="M", help="micro-batches (default: the config's, or 4K)"
    )
    parser.add_argument("--remat", choices=("always", "except_last", "never"), help="default: the config's, or always")
    parser.add_argument(
        "--device", default="cpu", help="cpu, cuda:0, or cuda for all visible GPUs in turn (default: cpu)"
    )
    parser.add_argument("--dtype", choices=tuple(_DTYPES), default="float64", help="default: float64")
    parser.add_argument("--all", action="store_true", help="show every parameter, not only the worst")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _first_batch(data: Any) -> Any:
    if hasattr(data, "check"):
        data.check()
    data.prepare_data()
    data.setup("fit")
    return next(iter(data.train_dataloader()))


def _show(outcome: Verification, limit: int) -> None:
    console = Console()
    rows = outcome.micro_batches
    console.print(
        f"K = {counted(len(outcome.partition), 'stage')} of {list(outcome.partition)} layers on "
        f"{', '.join(outcome.devices)}; M = {counted(len(rows), 'micro-batch')} of {max(rows)} "
        f"rows{'' if min(rows) == max(rows) else ' or one less'}; "
        f"{outcome.dtype}",
        soft_wrap=True,
    )
    table = Table()
    table.add_column("tensor", overflow="fold", ratio=1)
    for name in ("kind", "largest", "error", "relative"):
        table.add_column(name, justify="right", no_wrap=True)
    kinds = {kind: [d for d in outcome.differences if d.kind == kind] for kind in ("gradient", "buffer")}
    shown = [difference for found in kinds.values() for difference in found[:limit]]
    for difference in shown:
        table.add_row(
            difference.name,
            difference.kind,
            f"{difference.largest:.3e}",
            f"{difference.absolute:.3e}",
            f"{difference.relative:.3e}",
        )
    console.print(table)
    hidden = len(outcome.differences) - len(shown)
    if hidden:
        console.print(f"{hidden} more, each with an error no larger than those of its kind (--all shows them)")
    console.print(f"loss      {outcome.loss:.12g}, off by {outcome.loss_error:.3e}")
    console.print(
        "BatchNorm "
        + (
            f"{outcome.batch_norm} layers: both normalise each micro-batch with its own statistics; the running mean "
            "and variance after one update from the pooled mini-batch are among the buffers compared"
            if outcome.batch_norm
            else "none"
        ),
        soft_wrap=True,
    )
    console.print(
        "dropout   "
        + (
            f"{outcome.dropout} layers: both draw the masks of (seed, batch, micro-batch, layer), so equal gradients "
            "mean equal masks, recomputation included"
            if outcome.dropout
            else "none"
        ),
        soft_wrap=True,
    )
    if outcome.whole_batch is not None:
        console.print(f"whole     the mini-batch in one piece gives the same gradients to {outcome.whole_batch:.3e}")
    verdict = "equal" if outcome.passed else "NOT equal"
    limits = ", ".join(f"{kind} {value:.1e}" for kind, value in outcome.tolerance.items())
    console.print(f"{verdict} within the tolerance (absolute: {limits})", soft_wrap=True)
