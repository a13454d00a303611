"""What Tables 2 and 3 have in common: sizes, options, and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from repro.arguments import ArgumentParser, suggest
from repro.errors import UserError
from repro.planning import partition
from repro.schedules import Remat

from ..costs.accelerators import accelerator_names, find_accelerator, find_link, link_names
from ..costs.full_models import FullModel, LayerCosts, choose_models
from ..costs.link import Link
from ..costs.scaled_models import SCALED, ScaledModel
from ..sweeps.environment import usable_cores
from ..sweeps.sweep import Request
from .cells import BATCH_POLICIES, FIXED, Setting, TableCell, table_cells, time_factor

FLOPS, PROFILE = "flops", "profile"
WHOLE, SEPARATE = "whole", "attention and feed-forward separate"
REMATS = tuple(remat.value for remat in (Remat.ALWAYS, Remat.NEVER, Remat.EXCEPT_LAST))
BASE_STAGES = 2
"""K of the entry that is 1 in the paper's tables."""


@dataclass(frozen=True)
class Table:
    """A throughput table of the paper.

    Attributes:
        name: of the target and of the published table.
        models: full-size, one for each family.
        num_micro_batches: the paper's.
        link: between accelerators; None: what their row in ``data/hardware/accelerators.csv`` names.
    """

    name: str
    models: tuple[FullModel, ...]
    num_micro_batches: tuple[int, ...]
    link: str | None = None


@dataclass(frozen=True)
class Sizes:
    """How much is run at a scale.

    Attributes:
        longest: seconds of the longest emulated step, K = 2 and M = 1 with remat always. Eight stages share two cores:
            with 16 s what the machine adds comes to 5% of the shortest step.
        grouped: whether the emulated cells of one K share their processes, and so are kept or repeated together.
        remats: that are emulated and measured unless others are asked for.
        rounds: measured steps of each kind.
        num_stages: K, unless others are asked for; the paper's are 2, 4 and 8.
        tolerance: how far emulated may be from simulated; None where steps are so short that what the machine adds may
            outweigh them, and no more can be asked than that none is shorter than its costs allow.
    """

    longest: float
    grouped: bool
    remats: tuple[str, ...]
    rounds: int
    tolerance: float | None
    num_stages: tuple[int, ...]


SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        "smoke": Sizes(0.5, True, ("always",), 1, None, (2, 8)),
        "laptop": Sizes(18.0, False, ("always", "never"), 5, 0.05, (2, 4, 8)),
        "gpu": Sizes(18.0, False, ("always", "never"), 5, 0.05, (2, 4, 8)),
    }
)


@dataclass(frozen=True)
class TableRow:
    """Everything of one model of a table.

    Attributes:
        setting: with whole layers; this is what is emulated.
        separate: of a Transformer, with attention and feed-forward as layers of their own.
        cells: all of them, the base included.
        base: the cell whose throughput is 1.
        factor: seconds of an emulated step for each second of the real one.
        scaled: the scaled-down model that is measured.
        measured: the cells that are measured, K and (M, rows of the mini-batch); none where there is room for the base
            alone.
    """

    setting: Setting
    separate: Setting | None
    cells: tuple[TableCell, ...]
    base: TableCell
    factor: float
    scaled: ScaledModel
    measured: Mapping[int, tuple[tuple[int, int], ...]]


def add_options(parser: ArgumentParser) -> None:
    """The options of both tables; they are checked in ``choose``."""
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="amoebanet, transformer (default: both)")
    parser.add_argument(
        "--costs",
        default=FLOPS,
        metavar="HOW",
        help="costs of full-size layers: flops (counted, at an accelerator's rate; the default) or profile (timed "
        "here, each distinct layer once at one row; minutes the first time)",
    )
    parser.add_argument(
        "--accelerator",
        metavar="NAME",
        help=f"for --costs flops: {', '.join(accelerator_names())} (default: the paper's)",
    )
    parser.add_argument("--link", metavar="NAME", help=f"between stages: {', '.join(link_names())}")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="of the link, each way, in place of its own")
    parser.add_argument("--latency", type=float, metavar="US", help="of the link, microseconds, in place of its own")
    parser.add_argument(
        "--remat", nargs="+", metavar="R", help=f"what is emulated and measured, of {', '.join(REMATS)}"
    )
    parser.add_argument(
        "--batch-policy",
        default=FIXED,
        metavar="P",
        help="fixed: one mini-batch for all cells (the default); per-cell: M times the micro-batch of M = 32",
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="rows of the mini-batch (default: Table 1's)")


def choose(table: Table, request: Request) -> list[TableRow]:
    """What is asked for, checked.

    Raises:
        UserError: an option that is unknown or impossible.
    """
    options = request.options
    _check_choice("--costs", options["costs"], (FLOPS, PROFILE))
    _check_choice("--batch-policy", options["batch_policy"], BATCH_POLICIES)
    remats_of(request)
    if options["costs"] == PROFILE and options["accelerator"] is not None:
        raise UserError(
            f"--accelerator {options['accelerator']} goes with --costs flops; --costs profile takes the times of this "
            "machine"
        )
    models = choose_models(table.models, options["models"])
    # All that can be wrong is looked at before anything is counted or timed.
    asked = [(model, *_cells(table, request, model)) for model in models]
    links = {model: _link(table, request, model) for model in models}
    scaled = {model.family: model for model in SCALED[request.scale]}
    rows = []
    for model, cells, base in asked:
        costs, separate, origin = _costs(model, request)
        setting = Setting(model, costs, origin, links[model])
        factor = time_factor(setting, cells, Remat.ALWAYS, SIZES[request.scale].longest)
        small = scaled[model.family]
        rows.append(
            TableRow(
                setting,
                None if separate is None else Setting(model, separate, origin, links[model]),
                tuple(cells),
                base,
                factor,
                small,
                _measured(request, small, cells, base),
            )
        )
    return rows


def remats_of(request: Request) -> tuple[str, ...]:
    """What is emulated and measured.

    Raises:
        UserError: an unknown one.
    """
    given = request.options["remat"]
    for remat in given or ():
        _check_choice("--remat", remat, REMATS)
    return tuple(dict.fromkeys(given)) if given else SIZES[request.scale].remats


def devices_of(request: Request) -> list[str]:
    """What stages are measured on: one entry for each core, or each GPU that was named."""
    if request.device == "cpu":
        return ["cpu"] * usable_cores()
    return request.device.split(",")


def _cells(table: Table, request: Request, model: FullModel) -> tuple[list[TableCell], TableCell]:
    options = request.options
    batch_size = model.batch_size if options["batch_size"] is None else options["batch_size"]
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: give at least 1")
    stages = request.num_stages or SIZES[request.scale].num_stages
    partition([1.0] * model.depth, max(stages))
    micro_batches = request.num_micro_batches or table.num_micro_batches
    base_micro_batches = min(table.num_micro_batches) if len(table.num_micro_batches) > 1 else min(micro_batches)
    all_cells = table_cells(
        sorted({BASE_STAGES, *stages}),
        sorted({base_micro_batches, *micro_batches}),
        batch_size,
        options["batch_policy"],
    )
    base = next(c for c in all_cells if (c.num_stages, c.num_micro_batches) == (BASE_STAGES, base_micro_batches))
    wanted = [
        cell
        for cell in all_cells
        if cell == base or (cell.num_stages in stages and cell.num_micro_batches in micro_batches)
    ]
    return wanted, base


def _link(table: Table, request: Request, model: FullModel) -> Link:
    options = request.options
    accelerator = find_accelerator(options["accelerator"] or model.accelerator)
    return find_link(
        options["link"] or table.link or accelerator.link,
        bandwidth=options["bandwidth"],
        latency=options["latency"],
    )


def _costs(model: FullModel, request: Request) -> tuple[LayerCosts, LayerCosts | None, str]:
    """Seconds of the layers, whole and (for a Transformer) separate, and where they come from."""
    splits = (False, True) if model.family == "transformer" else (False,)
    if request.options["costs"] == PROFILE:
        from ..costs.profiles import profile_of

        device = devices_of(request)[0]
        costs = [profile_of(model, device, split_sublayers=split) for split in splits]
        origin = f"layers timed one by one on {device}"
    else:
        from ..costs.layer_costs import counted_flops

        accelerator = find_accelerator(request.options["accelerator"] or model.accelerator)
        rate = accelerator.rate(model.family)
        costs = [counted_flops(model, split_sublayers=split).at(rate) for split in splits]
        origin = f"FLOPs at {accelerator.name}, {rate / 1e12:.3g} TFLOPS"
    return costs[0], costs[1] if len(costs) > 1 else None, origin


def _measured(
    request: Request, model: ScaledModel, cells: Sequence[TableCell], base: TableCell
) -> dict[int, tuple[tuple[int, int], ...]]:
    room = min(len(devices_of(request)), model.depth)
    found: dict[int, list[tuple[int, int]]] = {}
    for cell in cells:
        if cell.num_stages > room:
            continue
        rows = model.batch_size
        if request.options["batch_policy"] != FIXED:
            rows = max(1, model.batch_size // 32) * cell.num_micro_batches
        if rows % cell.num_micro_batches == 0:
            found.setdefault(cell.num_stages, []).append((cell.num_micro_batches, rows))
    only = [(stages, number) for stages, numbers in found.items() for number, _ in numbers]
    if only == [(base.num_stages, base.num_micro_batches)]:
        # Relative to itself it would say nothing.
        return {}
    return {stages: tuple(numbers) for stages, numbers in sorted(found.items())}


def _check_choice(option: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise UserError(f"{option} {given}: unknown{suggest(given, known)} (one of {', '.join(known)})")
