"""Sections on worked cases: figures that are stated for a configuration, and the smallest M for a bubble."""

from __future__ import annotations

from fractions import Fraction

from repro.datasets.paper import Value, published

from .circulating import number, target, whole
from .formulas import int_plus_one
from .replay import Case, Outcome, replay, smallest
from .writing import Entry, command, paragraph, percent, share, table


def entries() -> list[Entry]:
    """In the order of the page."""
    return [_cases(), _smallest()]


def _cases() -> Entry:
    rows, agree, stated = [], True, []
    outcomes: dict[str, Outcome] = {}
    for row in published("circulating_cases"):
        stages, count = whole(row["num_stages"]), whole(row["num_micro_batches"])
        outcome = outcomes[str(row["case"])] = replay(Case("1f1b", stages, count))
        told = "none" if row["stated_percent"] is None else f"{number(row['stated_percent']):.1f}%"
        if row["stated_percent"] is not None:
            stated.append(told)
            agree = agree and told == percent(outcome.bubble)
        rows.append([str(row["case"]), str(stages), str(count), told, share(outcome.bubble)])
    many = outcomes["M = 10000"]
    body = (
        paragraph(
            "Bubbles of `gpipe` and `1f1b` alike, replayed. How large the model is does not matter, only that its "
            "stages cost the same."
        ),
        table(["case", "P", "M", "stated", "replayed"], rows),
        paragraph(
            f"With M = 10000 the bubble is {percent(many.bubble)}, but not nothing, and a mini-batch must have as many "
            f"rows. In `gpipe` it keeps 10000 micro-batches, in `1f1b` {max(many.peak_live)}. Beyond some M the gain "
            "is small, and smaller micro-batches make the work itself slower."
        ),
        command(
            "repro bubble -P 4 -M 16 32 --schedules gpipe 1f1b",
            "repro bubble -P 8 -M 8 16 10000 --schedules gpipe 1f1b",
        ),
    )
    return Entry(
        "Worked cases",
        "70B over 4 stages with M = 16 and 32, over 8 with M = 16",
        ", ".join(stated),
        ", ".join(stated) if agree else "others",
        "hold" if agree else "do not hold",
        body,
    )


def _smallest() -> Entry:
    rows, wrong = [], []
    for row in published("circulating_smallest"):
        stages, wanted = whole(row["num_stages"]), target(row["target_percent"])
        at_most, below = smallest(stages, wanted), smallest(stages, wanted, strictly=True)
        told = [str(row[column]) for column in ("at_most", "int_plus_one") if row[column] is not None]
        counted = [str(at_most.num_micro_batches), str(int_plus_one(stages, wanted))][: len(told)]
        wrong += [told] if told != counted else []
        before = replay(Case("1f1b", stages, at_most.num_micro_batches - 1))
        rows.append(
            [
                str(stages),
                percent(wanted),
                f"{at_most.num_micro_batches} ({percent(at_most.bubble)})",
                percent(before.bubble),
                f"{below.num_micro_batches} ({_digits(below.bubble)})",
                str(int_plus_one(stages, wanted)),
            ]
        )
    eight = smallest(8, Fraction(1, 10))
    body = (
        paragraph(
            "The bubble is exactly the target t at x = (P - 1)(1 - t) / t micro-batches. Where x is a whole number, "
            '"at most t" needs M = x and "below t" needs M = x + 1; `int(x) + 1` answers the second question. Where it '
            "is not, both are the next whole number."
        ),
        table(
            ["P", "t", "smallest M, at most t", "one micro-batch fewer", "smallest M, below t", "`int(x) + 1`"],
            rows,
        ),
        paragraph(
            f"So with 8 stages M = {eight.num_micro_batches} gives a bubble of at most 10%: exactly "
            f"{share(eight.bubble)}. For one strictly below 10% it takes M = {int_plus_one(8, Fraction(1, 10))}."
        ),
        command(
            "repro bubble -P 2 4 8 16 --target 0.15 --schedules gpipe 1f1b",
            "repro bubble -P 8 --target 0.10 --schedules gpipe 1f1b",
        ),
    )
    told_15 = [row for row in published("circulating_smallest") if whole(row["target_percent"]) == 15]
    return Entry(
        "The smallest M for a bubble",
        "P = 2, 4, 8, 16 need this M for 15%",
        _list(told_15, "at_most") + " or " + _list(told_15, "int_plus_one"),
        "the first: at most 15%; the second: below" if not wrong else "others",
        "hold, for two questions" if not wrong else "do not hold",
        body,
    )


def _digits(value: Fraction) -> str:
    return f"{100 * float(value):.2f}%"


def _list(rows: list[dict[str, Value]], column: str) -> str:
    return ", ".join(str(row[column]) for row in rows)
