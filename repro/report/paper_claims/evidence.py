"""The rows that claims are judged by: of each target the largest scale in a folder of results, never the smallest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.experiments.sweeps.rows import ROWS_FILE, Row
from repro.report.loading import Results, load

from .claim import COUNTS, Claim, Finding, Rows

SCALES = ("paper", "gpu", "laptop")
"""Largest first. What runs in a minute at ``smoke`` shows that the code runs, not what the paper says."""


@dataclass(frozen=True)
class Judged:
    """A claim with what was found.

    Attributes:
        claim: of the paper.
        finding: by its rule.
        links: folders of the rows that the rule read, relative to the page.
    """

    claim: Claim
    finding: Finding
    links: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        claim, finding = self.claim, self.finding
        return {
            "name": claim.name,
            "section": claim.section,
            "claim": claim.text,
            "paper": claim.published,
            "confidence": claim.confidence,
            "source": f"data/paper/{claim.table}.csv",
            "headline": claim.headline,
            "ours": finding.ours,
            "provenance": finding.provenance,
            "verdict": finding.verdict.value,
            "by_own_numbers": finding.own,
            "in_short": finding.in_short,
            "why": finding.why,
            "rows": list(self.links),
        }


def find_runs(folder: Path) -> dict[str, Results]:
    """By target, the run with the largest scale in ``folder/TARGET/SCALE``."""
    found: dict[str, Results] = {}
    for path in sorted(folder.glob(f"*/*/{ROWS_FILE}")):
        target, scale = path.parent.parent.name, path.parent.name
        if scale in SCALES and (target not in found or _size(scale) > _size(found[target].scale)):
            found[target] = load(path.parent)
    return found


def judge(claims: list[Claim], runs: Mapping[str, Results], counted: list[Row]) -> list[Judged]:
    """Every claim against the rows of the targets that its rule reads."""
    rows: Rows = {target: results.rows for target, results in runs.items()} | {COUNTS: counted}
    made = []
    for claim in claims:
        read = [runs[target] for target in claim.targets if target in runs]
        links = tuple(f"{results.target}/{results.scale}" for results in read)
        made.append(Judged(claim, claim.judge({name: rows.get(name, ()) for name in claim.targets}), links))
    return made


def _size(scale: str) -> int:
    return len(SCALES) - SCALES.index(scale)
