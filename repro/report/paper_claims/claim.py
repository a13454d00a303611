"""A claim of the paper, the rule that judges it, and what the rule finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING

COUNTS = "counts"
"""Rows that are counted on the meta device when the page is made, see ``counts``; no target of ``repro run``."""


class Verdict(StrEnum):
    """What rows say about a claim."""

    REPRODUCED = "reproduced"
    SMALL_SCALE = "reproduced at small scale"
    NOT_TESTABLE = "not testable here"
    CONTRADICTED = "contradicted"


MEANING: Mapping[Verdict, str] = {
    Verdict.REPRODUCED: "at the size of the paper's model: counted exactly, or predicted or simulated from costs and "
    "as good as those; none of it measured",
    Verdict.SMALL_SCALE: "the same shape with scaled-down models or emulated stages; never the paper's own number",
    Verdict.NOT_TESTABLE: "needs accelerators, data or settings that are not here, or rows that have not been made",
    Verdict.CONTRADICTED: "our rows come out differently, or the paper's own numbers do not agree with each other",
}


@dataclass(frozen=True)
class Finding:
    """What a rule says.

    Attributes:
        verdict: of the claim.
        ours: our value, with its unit; ``NOTHING`` where there is none.
        provenance: of our value: one of ``Provenance``, several, or ``NOTHING``.
        why: the rule with its limits, and what of it holds.
        own: contradicted by the paper's own numbers.
        in_short: the rule in a few words, for the summary.
    """

    verdict: Verdict
    ours: str
    provenance: str
    why: str
    own: bool = False
    in_short: str = ""


class Missing(Exception):
    """Rows that a rule needs are not there."""


Rows = Mapping[str, Sequence[Row]]
"""By target."""

Rule = Callable[[Rows], Finding]
"""A pure function of rows; raises ``Missing`` where it finds none of what it needs."""


@dataclass(frozen=True)
class Claim:
    """A statement or a number of the paper.

    Attributes:
        name: unique.
        section: of the page.
        text: what it says.
        published: its number with unit; ``NOTHING`` where it states none.
        confidence: how far the number can be trusted, a key of ``CONFIDENCE``.
        table: ``data/paper/<table>.csv`` has it.
        targets: whose rows the rule reads; empty for a rule over published numbers alone.
        rule: what judges it.
        headline: whether the summary shows it.
    """

    name: str
    section: str
    text: str
    published: str
    confidence: str
    table: str
    targets: tuple[str, ...]
    rule: Rule
    headline: bool = False

    def judge(self, rows: Rows) -> Finding:
        """What the rows say; a target without rows makes the claim not testable."""
        absent = [target for target in self.targets if not rows.get(target)]
        if absent:
            return not_testable(f"no rows; run {' and '.join(f'`make {target}`' for target in absent)}")
        try:
            return self.rule(rows)
        except Missing as missing:
            return not_testable(f"the rows of {' and '.join(self.targets)} have no {missing}")


def not_testable(why: str) -> Finding:
    """Nothing of ours to compare."""
    return Finding(Verdict.NOT_TESTABLE, NOTHING, NOTHING, why)


def found(holds: bool, ours: str, provenance: Provenance, why: str, *, in_short: str = "") -> Finding:
    """The verdict on a rule that rows of one provenance keep or break.

    Only what is simulated (or counted) of full-size models reproduces a claim as it stands.
    """
    kept = Verdict.REPRODUCED if provenance is Provenance.SIMULATED else Verdict.SMALL_SCALE
    return Finding(kept if holds else Verdict.CONTRADICTED, ours, provenance.value, why, in_short=in_short)


def inconsistent(ours: str, why: str, provenance: Provenance = Provenance.PUBLISHED, *, in_short: str = "") -> Finding:
    """Contradicted by the paper's own numbers; ``provenance`` is that of the value shown as ours."""
    return Finding(Verdict.CONTRADICTED, ours, provenance.value, why, own=True, in_short=in_short)


def consistent(ours: str, why: str) -> Finding:
    """The paper's own numbers agree with each other, which tests none of them."""
    return Finding(Verdict.NOT_TESTABLE, ours, Provenance.PUBLISHED.value, why)
