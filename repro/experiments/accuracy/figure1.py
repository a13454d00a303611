"""Figure 1: accuracy and BLEU over model size, from the rows of table4 and figure3. Trains nothing.

Rows have ``experiment="figure1"`` and keep the provenance of what they were read from. ``params["panel"]`` is ``a``
(``mean_accuracy``, a share of test images) or ``b`` (``average_bleu``); ``parameters``, ``data`` and ``source`` (the
target whose row it is) are there for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.arguments import ArgumentParser
from repro.errors import UserError

from ..sweeps.checks import Check
from ..sweeps.rows import ROWS_FILE, Row, read_rows
from ..sweeps.sweep import Request, SweepPart, Target

EXPERIMENT = "figure1"
SOURCES: Mapping[str, str] = {"a": "table4", "b": "figure3"}
"""The target that each panel is read from."""

_DEFAULT = "results/local"


def parts(request: Request) -> Sequence[SweepPart]:
    """None: the figure is drawn from what others have measured."""
    return []


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """The panels for which there are rows.

    Raises:
        UserError: there are none for either; the message says what to run.
    """
    made: list[Row] = []
    absent: list[str] = []
    for panel, source in SOURCES.items():
        folder = Path(request.options.get("rows") or _DEFAULT) / source / request.scale
        found = _panel(panel, read_rows(folder)) if (folder / ROWS_FILE).is_file() else []
        made += found
        if not found:
            absent.append(f"`repro run {source} --scale {request.scale}` (no rows in {folder})")
    if not made:
        raise UserError(
            f"figure1 draws what other targets have measured, and there is nothing yet: run {absent[0]}, "
            f"or {absent[1]}, or give another folder with --rows"
        )
    return made, []


def add_options(parser: ArgumentParser) -> None:
    """``--rows``."""
    parser.add_argument(
        "--rows", metavar="DIR", help=f"folder with table4/SCALE and figure3/SCALE (default: {_DEFAULT})"
    )


def _panel(panel: str, found: Sequence[Row]) -> list[Row]:
    """The mean of each size, as rows of this figure."""
    chosen = [row for row in found if _belongs(panel, row)]
    return [
        Row.from_dict(
            row.as_dict()
            | {
                "experiment": EXPERIMENT,
                "params": {**row.params, "panel": panel, "source": SOURCES[panel]},
            }
        )
        for row in sorted(chosen, key=lambda row: row.params["parameters"])
    ]


def _belongs(panel: str, row: Row) -> bool:
    if panel == "a":
        return row.params.get("part") == "sizes" and row.metric == "mean_accuracy"
    return row.params.get("trained_on") == "multilingual" and row.metric == "average_bleu"


TARGET = Target(
    name="figure1",
    summary="accuracy and BLEU over model size beside the published curves; trains nothing: reads table4 and figure3",
    minutes={"smoke": 0.1, "laptop": 0.1},
    parts=parts,
    rows=rows,
    add_options=add_options,
)
