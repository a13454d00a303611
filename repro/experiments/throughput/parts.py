"""The parts of Tables 2 and 3 that run: emulated and measured cells."""

from __future__ import annotations

from collections.abc import Sequence

from ..sweeps.sweep import Request, SweepPart
from .cells import TableCell, simulated_step
from .table import SIZES, Table, choose, devices_of, remats_of

_START = 2.5
_START_A_RANK = 0.4


def parts(table: Table, request: Request) -> list[SweepPart]:
    """Emulated cells, then measured ones."""
    from .emulated_steps import EmulatedPlan, emulate
    from .measured_steps import MeasuredPlan, measure

    sizes, remats, made = SIZES[request.scale], remats_of(request), []
    rows = choose(table, request)
    for row in rows:
        for cells in _groups(row.cells, grouped=sizes.grouped):
            steps = {
                (cell, remat): row.factor * simulated_step(row.setting, cell, remat)
                for cell in cells
                for remat in remats
            }
            repeats = 1 if sizes.grouped else _repeats(max(steps.values()))
            plan = EmulatedPlan(row.setting, cells, remats, row.factor, repeats)
            numbers = ", ".join(str(cell.num_micro_batches) for cell in cells)
            stages = cells[0].num_stages
            made.append(
                SweepPart(
                    name=f"emulated-{row.setting.model.family}-K{stages}-M{numbers.replace(', ', '-')}",
                    title=f"{row.setting.model.name}, K = {stages}, M = {numbers} (emulated)",
                    function=emulate,
                    arguments=(plan,),
                    world_size=stages,
                    seconds=_START + _START_A_RANK * stages + repeats * sum(steps.values()),
                )
            )
    devices = devices_of(request)
    for row in rows:
        for stages, numbers_and_rows in row.measured.items():
            measured = MeasuredPlan(row.scaled, stages, numbers_and_rows, remats, tuple(devices[:stages]), sizes.rounds)
            made.append(
                SweepPart(
                    name=f"measured-{row.setting.model.family}-K{stages}",
                    title=f"{row.scaled.name}, K = {stages} (measured)",
                    function=measure,
                    arguments=(measured,),
                    world_size=stages,
                    seconds=_START + 0.5 * (sizes.rounds + 1) * len(remats) * len(numbers_and_rows),
                )
            )
    return made


def _groups(cells: Sequence[TableCell], *, grouped: bool) -> list[tuple[TableCell, ...]]:
    if not grouped:
        return [(cell,) for cell in cells]
    stages = sorted({cell.num_stages for cell in cells})
    return [tuple(cell for cell in cells if cell.num_stages == number) for number in stages]


def _repeats(seconds: float) -> int:
    """Steps of a cell: what disturbs a machine for a moment weighs most in the short ones."""
    return 3 if seconds < 5 else 2 if seconds < 10 else 1
