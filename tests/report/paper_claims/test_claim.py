"""A verdict follows from rows, and from nothing else."""

from __future__ import annotations

import pytest

from repro.report.paper_claims.catalogue import claims
from repro.report.paper_claims.claim import COUNTS, Claim, Finding, Missing, Rows, Verdict, found
from tests.report.paper_claims.made_up import EMULATED, MEASURED, SIMULATED, row


def claim_with(rule: object, *targets: str) -> Claim:
    return Claim("a", "a section", "it is so", "1", "S2", "table2", targets, rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("holds", "provenance", "verdict"),
    [
        (True, SIMULATED, Verdict.REPRODUCED),
        (True, EMULATED, Verdict.SMALL_SCALE),
        (True, MEASURED, Verdict.SMALL_SCALE),
        (False, SIMULATED, Verdict.CONTRADICTED),
        (False, EMULATED, Verdict.CONTRADICTED),
        (False, MEASURED, Verdict.CONTRADICTED),
    ],
)
def test_only_what_is_of_full_size_reproduces(holds: bool, provenance: object, verdict: Verdict) -> None:
    assert found(holds, "1", provenance, "why").verdict is verdict  # type: ignore[arg-type]


def test_without_rows_the_rule_is_not_asked() -> None:
    def rule(rows: Rows) -> Finding:
        raise AssertionError

    some = {"table2": [row("x", 1)], "table3": []}
    finding = claim_with(rule, "table2", "table3", "peers").judge(some)
    assert finding.verdict is Verdict.NOT_TESTABLE
    assert finding.why == "no rows; run `make table3` and `make peers`"


def test_rows_without_what_the_rule_needs_are_named() -> None:
    def rule(rows: Rows) -> Finding:
        raise Missing("bubble with K 8")

    finding = claim_with(rule, "bubble").judge({"bubble": [row("x", 1)]})
    assert finding.verdict is Verdict.NOT_TESTABLE and "bubble have no bubble with K 8" in finding.why


def test_every_rule_copes_with_rows_that_say_nothing_to_it() -> None:
    """Half a run, or rows of another version: not testable, or contradicted by the paper alone; never an error."""
    for claim in claims():
        nothing = {target: [row("something else", 1.0, data="x")] for target in claim.targets}
        finding = claim.judge(nothing)
        assert finding.verdict is Verdict.NOT_TESTABLE or not claim.targets, claim.name


def test_names_are_unique_and_targets_exist() -> None:
    from repro.experiments.catalogue import TARGETS
    from repro.report.targets import MODULES

    names = [claim.name for claim in claims()]
    assert len(set(names)) == len(names) > 100
    known = {*TARGETS, *MODULES, COUNTS}
    assert all(set(claim.targets) <= known for claim in claims())
