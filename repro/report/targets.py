"""How the rows of each target are reported: the module that knows its sections and figures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from repro.errors import UserError

from .lines import Line, Section
from .loading import Results

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "reproduce": "repro.report.reproduce",
        "table1": "repro.report.table1",
        "table2": "repro.report.table2",
        "table3": "repro.report.table3",
        "table4": "repro.report.table4",
        "remat": "repro.report.remat",
        "breakdown": "repro.report.breakdown",
        "bubble": "repro.report.bubble",
        "figure1": "repro.report.figure1",
        "figure2": "repro.report.figure2",
        "peers": "repro.report.peers",
        "plan": "repro.report.plan_check",
        "schedules": "repro.report.schedules",
        "figure3": "repro.report.figure3",
        "table5": "repro.report.table5",
        "depth": "repro.report.depth",
    }
)
"""Each module has ``sections(results, reference) -> list[Section]`` and ``draw(rows, folder) -> None``, which writes
the figures that the sections name; where the README shows more than the checks also ``headline(results, reference) ->
list[Line]`` and ``PICTURES``, names of figures."""


def sections(results: Results, reference: Results | None) -> list[Section]:
    """The sections of the report on a run, beside those of the committed run."""
    made: list[Section] = _module(results).sections(results, reference)
    return made


def draw(results: Results) -> None:
    """Draws the figures of a run into its folder."""
    _module(results).draw(results.rows, results.folder)


def headline(results: Results) -> list[Line]:
    """The few lines that sum a run up, none where the checks say it all."""
    make = getattr(_module(results), "headline", None)
    return [] if make is None else list(make(results, None))


def pictures(results: Results) -> Sequence[Path]:
    """The figures in the folder of a run that belong into the README."""
    names = getattr(_module(results), "PICTURES", ())
    return [results.folder / name for name in names if (results.folder / name).exists()]


def _module(results: Results) -> Any:
    name = MODULES.get(results.target)
    if name is None:
        raise UserError(f"{results.folder}: unknown target {results.target} (one of {', '.join(MODULES)})")
    return importlib.import_module(name)
