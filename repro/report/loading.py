"""Finds the rows of finished runs, and the committed reference rows that belong beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.errors import UserError
from repro.experiments.sweeps.environment import ROOT
from repro.experiments.sweeps.rows import ROWS_FILE, RUN_FILE, Row, read_rows

HINT = "`repro reproduce --scale smoke` or `repro run peers --scale smoke` makes one"
REFERENCE = ROOT / "results" / "reference"

_NEEDED = (
    "target",
    "scale",
    "command",
    "date",
    "device",
    "device_name",
    "cores",
    "system",
    "git_revision",
    "python",
    "versions",
)
"""What a report says of a run."""


@dataclass(frozen=True)
class Results:
    """The rows of one run.

    Attributes:
        folder: where they are.
        rows: all of them.
        run: what ``run.json`` says.
    """

    folder: Path
    rows: Sequence[Row]
    run: dict[str, Any]

    @property
    def target(self) -> str:
        """What was run, for example ``reproduce``."""
        return str(self.run["target"])

    @property
    def scale(self) -> str:
        """How big it was."""
        return str(self.run["scale"])

    @property
    def machine(self) -> str:
        """The name of the reference machine; of one's own runs the folder's, which means nothing."""
        return self.folder.parents[1].name


def load(folder: Path) -> Results:
    """The run in ``folder``.

    Raises:
        UserError: it has no rows, or no ``run.json`` beside them.
    """
    rows = read_rows(folder)
    path = folder / RUN_FILE
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(run, dict):
            raise ValueError("it holds no JSON object")
        absent = [name for name in _NEEDED if name not in run]
        if absent or not isinstance(run["versions"], dict):
            raise ValueError(f"it lacks {', '.join(absent) or 'the names of versions'}")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is missing or damaged ({error}); run the target again") from error
    return Results(folder, rows, run)


def find(folder: Path) -> list[Results]:
    """Every run at or below ``folder``, results that a newer run has set aside left out.

    Raises:
        UserError: there is none.
    """
    paths = sorted(path.parent for path in folder.rglob(ROWS_FILE) if "earlier" not in path.relative_to(folder).parts)
    if not paths:
        raise UserError(f"no finished run in {folder}; {HINT}")
    return [load(path) for path in paths]


def references(results: Results, folder: Path = REFERENCE) -> list[Results]:
    """Committed runs of the same target and scale, by machine."""
    found = sorted(folder.glob(f"*/{results.target}/{results.scale}/{ROWS_FILE}"))
    return [load(path.parent) for path in found if path.parent.resolve() != results.folder.resolve()]
