"""Claims of section 5: Figures 1b and 3 and Table 5, translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from repro.datasets.paper import published
from repro.experiments.accuracy.depth import DIVERGED, cure_verdicts
from repro.experiments.sweeps.rows import Provenance, Row
from repro.report.lines import NOTHING

from .claim import Claim, Finding, Missing, Rows, Rule, Verdict, found, not_testable
from .selecting import number, said, select
from .shapes import falls, rises

SECTIONS = {
    "figure1b": "Figure 1b: average BLEU over model size",
    "figure3": "Figure 3: translation of high, middle and low-resource languages",
    "table5": "Table 5: batch size",
}
FIGURE, TABLE = "figure3", "table5"
GROUPS = {"first_25": "high", "middle_52": "middle", "last_25": "low", "all_languages": "all"}
"""Columns of the published figure, and groups of ours."""
EQUAL = 1.0
"""BLEU between models that count as equal."""


def claims() -> Iterator[Claim]:
    """Every point, the curves, and the findings of the text."""
    for row in published("figure1b"):
        yield Claim(
            f"figure1b-{row['model']}",
            SECTIONS["figure1b"],
            f"{row['model']}: BLEU, mean over 102 languages",
            f"{row['average_bleu']}",
            str(row["confidence"]),
            "figure1b",
            (),
            in_house,
        )
    yield _text("larger-translation", "figure1b", FIGURE, larger_is_better, headline=True)
    for row in published("figure3"):
        if row["confidence"] == "D":
            for column in GROUPS:
                if row[column] is not None:
                    yield Claim(
                        f"figure3-{row['model']}-{column}",
                        SECTIONS["figure3"],
                        f"{row['model']}: BLEU above bilingual models, {column.replace('_', ' ')}",
                        f"{number(row, column):+g}",
                        "D",
                        "figure3",
                        (),
                        in_house,
                    )
    for name, rule in (
        ("helps-all", helps_all),
        ("diminishing", diminishing),
        ("low-gains-most", low_gains_most),
        ("deep", deep_on_low),
        ("beats-bilingual", beats_bilingual),
        ("instability", unstable),
    ):
        target = "depth" if name == "instability" else FIGURE
        yield _text(name, "figure3", target, rule, headline=name == "low-gains-most")
    for row in published("table5"):
        for column, what in (("bleu", "BLEU"), ("validation_nll", "validation loss (NLL)")):
            yield Claim(
                f"table5-{row['tokens_per_batch']}-{column}",
                SECTIONS["table5"],
                f"{number(row, 'tokens_per_batch') / 1e3:,g}K tokens a batch, German to English: {what}",
                f"{row[column]}",
                str(row["confidence"]),
                "table5",
                (),
                in_house,
            )
    for held in ("steps", "samples"):
        yield _text("larger-batch", "table5", TABLE, partial(larger_batch, held), suffix=f", equal {held}")


def _text(name: str, section: str, target: str, rule: Rule, *, suffix: str = "", headline: bool = False) -> Claim:
    row = said(name)
    value = NOTHING if row["value"] is None else f"{row['value']} {row['unit']}"
    return Claim(
        name + suffix.replace(", equal ", "-"),
        SECTIONS[section],
        str(row["claim"]) + suffix,
        value,
        str(row["confidence"]),
        "claims",
        (target,),
        rule,
        headline,
    )


def in_house(rows: Rows) -> Finding:
    """A BLEU of another corpus says nothing about this one."""
    return not_testable("the corpus (25 billion pairs) is not published, and BLEU of two test sets cannot be compared")


def unstable(rows: Rows) -> Finding:
    """At every learning rate: the loss of the deep model runs away without the cures and not with both.

    The criterion is that of the target's own checks.
    """
    verdicts = cure_verdicts(rows["depth"])
    if not verdicts:
        raise Missing("runs without the cures and with both")
    ours = "; ".join(f"learning rate {verdict.learning_rate:g}: {verdict.words}" for verdict in verdicts)
    why = (
        f"largest loss over the first one, at learning rates far too high so that it takes seconds: without cures at "
        f"least {DIVERGED:g} times (or no longer finite), with both below, at each; the paper saw it after thousands "
        "of steps"
    )
    return found(all(verdict.holds for verdict in verdicts), ours, Provenance.MEASURED, why)


def larger_is_better(rows: Rows) -> Finding:
    """Average BLEU over parameters; models that do not beat a look-up of training sentences cannot tell."""
    bleu, nll = (_by_size(rows, metric) for metric in ("average_bleu", "nll"))
    if len(bleu) < 3:
        raise Missing("three multilingual models")
    nearest = _nearest(rows)
    ours = "; ".join(f"{row.model.split(', width')[0]}: {row.value:.2f}" for row in bleu)
    best, losses = max(row.value for row in bleu), ", ".join(f"{row.value:.3f}" for row in nll)
    falling = _best_at_the_ends([-row.value for row in nll])
    falls_or_not = f"held-out loss {'falls' if falling else 'does not fall'} with size"
    held_out = f"{falls_or_not}: {losses} nat, the two in the middle of equal size"
    if best <= nearest:
        why = (
            f"all are below the nearest training sentence ({nearest:.2f}), so that their order says nothing: one seed, "
            f"a thousandth of the paper's sizes; {held_out}"
        )
        ends = f"{nll[0].value:.2f} to {nll[-1].value:.2f} nat"
        in_short = f"all below the nearest training sentence ({nearest:.2f}); {falls_or_not} ({ends})"
        return Finding(Verdict.NOT_TESTABLE, ours, Provenance.MEASURED.value, why, in_short=in_short)
    why = (
        f"average BLEU: the smallest is worst, the largest best (those between have equal size), and above the nearest "
        f"training sentence ({nearest:.2f}); {held_out}"
    )
    in_short = "scaled-down models, smallest worst and largest best"
    holds = _best_at_the_ends([row.value for row in bleu])
    return found(holds, ours, Provenance.MEASURED, why, in_short=in_short)


def _best_at_the_ends(values: Sequence[float]) -> bool:
    """The first is the least and the last the greatest."""
    return values[0] < min(values[1:]) and values[-1] == max(values)


def helps_all(rows: Rows) -> Finding:
    """From the smallest to the two models of four times the width or depth, in every group."""
    gains = _group_gains(rows)
    larger = [size for size in ("wide", "deep") if size in gains]
    if "base" not in gains or not larger:
        raise Missing("gains of a small and a middle model")
    groups = [group for group in ("high", "middle", "low") if group in gains["base"]]
    best = {group: max(gains[size][group] for size in larger) for group in groups}
    ours = ", ".join(f"{group} {gains['base'][group]:+.2f} to {best[group]:+.2f}" for group in groups)
    why = "mean BLEU above bilingual models, smallest model to the better of wide and deep: rises in every group"
    return found(all(best[group] > gains["base"][group] for group in groups), ours, Provenance.MEASURED, why)


def diminishing(rows: Rows) -> Finding:
    """The second step in size gains, and gains less than the first."""
    bleu = {str(row.params["size"]): row.value for row in _by_size(rows, "average_bleu")}
    if not {"base", "large"} <= bleu.keys() or not {"wide", "deep"} & bleu.keys():
        raise Missing("average BLEU of three sizes")
    middle = max(bleu[size] for size in ("wide", "deep") if size in bleu)
    first, second = middle - bleu["base"], bleu["large"] - middle
    ours = f"{first:+.2f}, then {second:+.2f} BLEU"
    nearest = _nearest(rows)
    if max(bleu.values()) <= nearest:
        why = f"all models are below the nearest training sentence ({nearest:.2f}), so that their order says nothing"
        return Finding(Verdict.NOT_TESTABLE, ours, Provenance.MEASURED.value, why)
    why = "average BLEU, smallest to the better of wide and deep, then to the largest: both gain, the second less"
    return found(0 < second < first, ours, Provenance.MEASURED, why)


def low_gains_most(rows: Rows) -> Finding:
    """BLEU above the bilingual models falls from low to high, for the largest multilingual model."""
    gains = _group_gains(rows)
    if "large" not in gains:
        raise Missing("gains of the largest model")
    groups = [group for group in ("low", "middle", "high") if group in gains["large"]]
    values = [gains["large"][group] for group in groups]
    ours = ", ".join(f"{group} {value:+.2f}" for group, value in zip(groups, values, strict=True))
    why = "largest multilingual model, BLEU above bilingual ones: positive for low, and falling from low to high"
    in_short = "scaled-down models, positive for low and falling from low to high"
    return found(falls(values) and values[0] > 0, ours, Provenance.MEASURED, why, in_short=in_short)


def deep_on_low(rows: Rows) -> Finding:
    """Deep against wide by group."""
    gains = _group_gains(rows)
    if not {"wide", "deep"} <= gains.keys():
        raise Missing("gains of a wide and a deep model")
    differences = {g: gains["deep"][g] - gains["wide"][g] for g in ("high", "low") if g in gains["wide"]}
    if len(differences) < 2:
        raise Missing("gains in the high and the low group")
    ours = ", ".join(f"{group} {value:+.2f}" for group, value in differences.items())
    why = f"BLEU of deep less wide, equal parameters: above {EQUAL:g} on low, within {EQUAL:g} on high"
    holds = differences["low"] > EQUAL and abs(differences["high"]) <= EQUAL
    return found(holds, ours, Provenance.MEASURED, why)


def beats_bilingual(rows: Rows) -> Finding:
    """Languages on which the largest model is above the bilingual one, of those that have one."""
    gains = select(rows[FIGURE], "bleu_gain", part="language", size="large", trained_on="multilingual")
    above = [row for row in gains if row.value > 0]
    stated, of = (int(text) for text in str(said("beats-bilingual")["value"]).split(" of "))
    ours = f"{len(above)} of {len(gains)} languages"
    below = ", ".join(str(row.params["language"]) for row in gains if row.value <= 0)
    why = f"as large a share as {stated} of {of}" + (f"; below on {below}" if below else "")
    return found(len(above) / len(gains) >= stated / of, ours, Provenance.MEASURED, why)


def larger_batch(held: str, rows: Rows) -> Finding:
    """BLEU and NLL over three batch sizes."""

    def over(metric: str) -> list[Row]:
        chosen = [row for row in select(rows[TABLE], metric, part="model") if held in row.params.get("held_fixed", ())]
        return sorted(chosen, key=lambda row: row.batch_size or 0)

    bleu, nll = over("bleu"), over("nll")
    if len(bleu) < 3 or len(nll) < 3:
        raise Missing(f"three batch sizes with equal {held}")
    ours = ", ".join(
        f"{one.batch_size} pairs: {one.value:.1f} BLEU, {other.value:.3f} nat"
        for one, other in zip(bleu, nll, strict=True)
    )
    holds = rises([row.value for row in bleu]) and falls([row.value for row in nll])
    why = f"BLEU rises and held-out NLL falls over batches a factor of four apart, equal {held}"
    return found(holds, ours, Provenance.MEASURED, why)


def _nearest(rows: Rows) -> float:
    """Average BLEU of looking up the nearest training sentence, which needs no training."""
    return select(rows[FIGURE], "average_bleu", trained_on="nearest")[0].value


def _by_size(rows: Rows, metric: str) -> list[Row]:
    chosen = select(rows[FIGURE], metric, part="model", trained_on="multilingual")
    return sorted(chosen, key=lambda row: (row.params["parameters"], row.value))


def _group_gains(rows: Rows) -> Mapping[str, Mapping[str, float]]:
    """By size and group."""
    made: dict[str, dict[str, float]] = {}
    for row in select(rows[FIGURE], "bleu_gain", part="group", trained_on="multilingual"):
        made.setdefault(str(row.params["size"]), {})[str(row.params["group"])] = row.value
    return made
