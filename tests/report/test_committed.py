"""What is committed under results/reference comes out of the rows beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments.sweeps.rows import ROWS_FILE
from repro.report.loading import REFERENCE, load, references
from repro.report.render import markdown
from repro.report.targets import sections

FOLDERS = [path.parent for path in sorted(REFERENCE.glob(f"*/*/*/{ROWS_FILE}"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(REFERENCE)))
def test_a_committed_report_is_what_its_rows_give(folder: Path) -> None:
    results = load(folder)
    others = references(results)
    reference = others[0] if others else None
    assert (folder / "report.md").read_text() == markdown(results, reference, sections(results, reference))
