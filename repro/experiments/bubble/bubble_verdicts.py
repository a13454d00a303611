"""What the rows of the bubble say about two rules of thumb, and what must hold of them.

"M >= 4K makes the bubble negligible" is the paper's (section 2.3 says: almost); "M = 4K to 8K is the sweet spot" is
folklore. Both are judged from the rows alone, by rules that are written down here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.schedules import bubble

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from .bubble_rows import EXPERIMENT, GRID, MICRO_BATCH, MINI_BATCH, TRACE, WITH_REMAT

VERDICT = "verdict"
SMALL = 0.2
"""A bubble below this counts as small: the closed form without remat stays below it for M >= 4K, whatever K."""
TIE = 0.02
"""Throughputs that differ by less than this, or by less than their spread, count as equal."""
ENGINE_SECONDS = 0.0018
"""What the engine and the messages may add for each micro-batch: 6% of stages with t_F = 10 ms and t_B = 20 ms."""
FLAT = 0.05
"""Live activations that differ by less than this share count as the same."""
GROWTH = 0.10
"""Live activations that differ from a proportional growth by less than this share count as proportional."""


@dataclass(frozen=True)
class Verdict:
    """A rule, where it was looked at, and what came out.

    Attributes:
        claim: in words.
        where: K, panel, remat.
        holds: whether the rows agree with it.
        words: why.
        of: a row that it follows from.
    """

    claim: str
    where: str
    holds: bool
    words: str
    of: Row

    def row(self) -> Row:
        """1 where it holds, 0 where it does not; as good as the rows that it follows from."""
        known = self.of
        return Row(
            experiment=EXPERIMENT,
            model=known.model,
            batch_size=None,
            num_stages=known.num_stages,
            num_micro_batches=None,
            schedule=known.schedule,
            remat=known.remat,
            provenance=known.provenance,
            metric=VERDICT,
            value=float(self.holds),
            unit="1",
            params={"claim": self.claim, "where": self.where, "words": self.words, "panel": known.params["panel"]},
        )


def verdict_rows(rows: Sequence[Row]) -> list[Row]:
    """All verdicts that the rows allow."""
    return [verdict.row() for verdict in (*_small_bubbles(rows), *_best_numbers(rows))]


def check_bubbles(rows: Sequence[Row], seconds: float) -> list[Check]:
    """Emulated equal stages must have the bubble of the closed form, within what the engine may cost.

    Of each cell the step counts that was disturbed least.

    Args:
        seconds: t_F + t_B of the emulated stages.
    """
    allowed = 1 + ENGINE_SECONDS / seconds
    checks = []
    for stages in sorted({row.num_stages or 0 for row in rows if row.params["panel"] == GRID}):
        worst, where = 0.0, ""
        for row in _select(rows, GRID, "bubble", TRACE):
            if row.num_stages != stages:
                continue
            closed = next(
                other.value
                for other in _select(rows, GRID, "bubble", WITH_REMAT)
                if (other.num_stages, other.num_micro_batches, other.remat)
                == (stages, row.num_micro_batches, row.remat)
            )
            least = float(row.params["least"])
            longer = (1 - closed) / (1 - least)
            if longer > worst:
                worst = longer
                where = f"M = {row.num_micro_batches}, remat {row.remat}: {least:.1%} against {closed:.1%}"
        text = f"emulated K = {stages}: a step is at most {allowed:.2f} x what the closed form of the bubble says"
        checks.append(Check(f"{text} ({worst:.3f} x at {where})", worst <= allowed))
    return checks


def check_memory(rows: Sequence[Row]) -> list[Check]:
    """Without remat, live activations must not depend on M at a fixed mini-batch, and grow with it at a fixed slice."""
    checks = []
    for stages in sorted({row.num_stages or 0 for row in rows if row.metric == "live_activations"}):
        for panel in (MINI_BATCH, MICRO_BATCH):
            held = {
                row.num_micro_batches or 0: row.value
                for row in _select(rows, panel, "live_activations")
                if (row.num_stages, row.remat) == (stages, "never")
            }
            if len(held) < 2:
                continue
            first, last = min(held), max(held)
            growth = held[last] / held[first]
            if panel == MINI_BATCH:
                low, high = min(held.values()), max(held.values())
                text = (
                    f"K = {stages}, {panel}, remat never: live activations are the same for M = {first} to {last} "
                    f"({low / 2**20:.1f} to {high / 2**20:.1f} MiB)"
                )
                checks.append(Check(text, high <= (1 + FLAT) * low))
            else:
                text = (
                    f"K = {stages}, {panel}, remat never: live activations grow with M ({growth:.2f} x from M = "
                    f"{first} to {last})"
                )
                checks.append(Check(text, abs(growth / (last / first) - 1) <= GROWTH))
    return checks


def _small_bubbles(rows: Sequence[Row]) -> Iterable[Verdict]:
    for provenance in (Provenance.EMULATED, Provenance.MEASURED):
        found = [
            row
            for panel in (GRID, MINI_BATCH, MICRO_BATCH)
            for row in _select(rows, panel, "bubble", TRACE)
            if row.provenance is provenance and (row.num_stages or 0) > 1
        ]
        for stages, remat in dict.fromkeys((row.num_stages or 0, row.remat) for row in found):
            own = [row for row in found if (row.num_stages, row.remat) == (stages, remat)]
            enough = [row for row in own if (row.num_micro_batches or 0) >= 4 * stages]
            if not enough:
                continue
            worst = max(enough, key=lambda row: row.value)
            words = (
                f"largest bubble from M = {4 * stages} on: {worst.value:.1%} at M = {worst.num_micro_batches} (closed "
                f"form without remat at M = 4K: {bubble(stages, 4 * stages):.1%}; small: below {SMALL:.0%})"
            )
            where = f"K = {stages}, remat {remat}"
            yield Verdict("M >= 4K makes the bubble small", where, worst.value < SMALL, words, worst)


def _best_numbers(rows: Sequence[Row]) -> Iterable[Verdict]:
    for panel in (MINI_BATCH, MICRO_BATCH):
        found = _select(rows, panel, "throughput")
        for stages, remat in dict.fromkeys((row.num_stages or 0, row.remat) for row in found):
            own = [row for row in found if (row.num_stages, row.remat) == (stages, remat)]
            best = max(own, key=lambda row: row.value)
            where = f"K = {stages}, {panel}, remat {remat}"
            inside = [row for row in own if 4 * stages <= (row.num_micro_batches or 0) <= 8 * stages]
            if inside:
                nearest = max(inside, key=lambda row: row.value)
                yield Verdict(
                    "M = 4K to 8K is the sweet spot",
                    where,
                    _as_good(nearest, best),
                    f"best M = {best.num_micro_batches} with {best.value:.1f} rows/s; best of {4 * stages} to "
                    f"{8 * stages}: M = {nearest.num_micro_batches} with {nearest.value / best.value:.1%} of that",
                    best,
                )
            fewer = [row for row in own if (row.num_micro_batches or 0) < 4 * stages]
            more = [row for row in own if (row.num_micro_batches or 0) >= 4 * stages]
            if fewer and more:
                few, many = (max(some, key=lambda row: row.value) for some in (fewer, more))
                yield Verdict(
                    "throughput needs M >= 4K",
                    where,
                    not _as_good(few, many),
                    f"best below {4 * stages}: M = {few.num_micro_batches} with {few.value:.1f} rows/s; best from "
                    f"there on: M = {many.num_micro_batches} with {many.value:.1f} rows/s",
                    best,
                )


def _as_good(row: Row, other: Row) -> bool:
    noise = max(TIE * other.value, (row.spread or 0.0) + (other.spread or 0.0))
    return row.value >= other.value - noise


def _select(rows: Sequence[Row], panel: str, metric: str, form: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if row.metric == metric and row.params["panel"] == panel and (form is None or row.params["form"] == form)
    ]
