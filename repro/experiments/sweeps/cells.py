"""Finished parts of a run, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.errors import UserError

from .rows import ROWS_FILE, RUN_FILE, Row, as_lines, write_json, write_rows

TRAINING = "training"
"""Folder of what training jobs keep, below that of the run."""

_CELLS = "cells"
_EARLIER = "earlier"
_STAYS = (_CELLS, _EARLIER, "logs", TRAINING)


@dataclass(frozen=True)
class Cell:
    """A part of a run that is done or not done.

    Attributes:
        name: unique within the run; part of a file name.
        parameters: everything that its results depend on, as JSON values.
    """

    name: str
    parameters: Mapping[str, Any]


class CellStore:
    """The finished cells in the folder of a run.

    The key of a cell is its parameters and ``context``: the revision of the code, the version of torch, the device.

    Args:
        folder: of the run.
        context: what all cells have in common.
    """

    def __init__(self, folder: Path, context: Mapping[str, Any]) -> None:
        self.folder = folder
        self._context = dict(context)

    def prepare(self) -> None:
        """Makes the folder.

        Raises:
            UserError: nothing can be written there.
        """
        write_json(self.folder / _CELLS / ".writable", {}).unlink()

    def key(self, cell: Cell) -> str:
        """A digest of all that the cell's results depend on."""
        data = {"name": cell.name, "parameters": dict(cell.parameters), "context": self._context}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def load(self, cell: Cell) -> Any | None:
        """What ``save`` was given for this cell under the same key, None where it has not been finished."""
        return self._read(cell).get("result")

    def seconds(self, cell: Cell) -> float:
        """What the cell took when it was finished, 0 where it has not been."""
        return float(self._read(cell).get("seconds", 0.0))

    def save(self, cell: Cell, result: Any, seconds: float = 0.0) -> None:
        """Keeps the result (JSON values) of a cell that is finished, and what it took."""
        write_json(self._path(cell), {"key": self.key(cell), "seconds": round(seconds, 3), "result": result})

    def finish(self, rows: Sequence[Row], run: Mapping[str, Any]) -> Path | None:
        """Writes ``rows.jsonl`` and ``run.json``; what other results of an earlier run lie here is kept.

        Returns:
            The folder that the earlier results were moved to, None where there were none or they are the same.
        """
        if self._is_there(rows, run):
            return None
        kept = self._set_aside()
        write_json(self.folder / RUN_FILE, dict(run))
        write_rows(self.folder, rows)
        return kept

    def _is_there(self, rows: Sequence[Row], run: Mapping[str, Any]) -> bool:
        """Whether an earlier command has written the same rows and come to the same verdict."""
        try:
            lines = (self.folder / ROWS_FILE).read_text(encoding="utf-8")
            before = json.loads((self.folder / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(before, dict):
            return False
        verdict = all(before.get(name) == run.get(name) for name in ("checks", "missing", "failures"))
        return verdict and lines == as_lines(rows)

    def _read(self, cell: Cell) -> dict[str, Any]:
        try:
            data = json.loads(self._path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # a damaged cell has not been finished
            return {}
        return data if isinstance(data, dict) and data.get("key") == self.key(cell) else {}

    def _set_aside(self) -> Path | None:
        items = [item for item in self.folder.glob("*") if item.name not in _STAYS]
        if not any(item.name == ROWS_FILE for item in items):
            return None
        earlier = self.folder / _EARLIER
        number = 1 + max((int(path.name) for path in earlier.glob("*") if path.name.isdigit()), default=0)
        target = earlier / str(number)
        try:
            target.mkdir(parents=True)
            for item in items:
                item.rename(target / item.name)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}; give another folder with --results") from error
        return target

    def _path(self, cell: Cell) -> Path:
        return self.folder / _CELLS / f"{cell.name}-{self.key(cell)[:12]}.json"
