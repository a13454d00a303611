"""The sections and the figure of the report on Table 5: larger batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.datasets.paper import published
from repro.experiments.accuracy.figure3_rows import BASELINE_MODELS
from repro.experiments.accuracy.table5_plans import SAMPLES, STEPS
from repro.experiments.sweeps.rows import Row

from .lines import NOTHING, Figure, Line, Section, find_row, of_model
from .loading import Results
from .style import BLUE, GREY, ORANGE, figure

PICTURE = "table5.png"
PICTURES = (PICTURE,)
_HELD_FIXED = {STEPS: "equal steps", SAMPLES: "equal samples"}
_COLORS = {STEPS: BLUE, SAMPLES: ORANGE}
_METRICS = {"bleu": ("BLEU", "bleu", "{:.2f}"), "nll": ("held-out NLL (nat per token)", "validation_nll", "{:.3f}")}


def sections(results: Results, reference: Results | None) -> list[Section]:
    """Both comparisons and the baselines, as far as there are rows."""
    rows = list(results.rows)
    others = list(reference.rows) if reference is not None else []
    made = [_comparison(rows, others, held) for held in _HELD_FIXED]
    made.append(_baselines(rows, others))
    return [section for section in made if section.lines]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The comparison at equal steps."""
    rows = list(results.rows)
    return [one for known in _runs(rows, STEPS)[:1] for one in of_model(known.model, _lines(rows, [], STEPS))]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """BLEU and held-out NLL by the size of the batch, the paper's in panels of their own; the curves of training."""
    if not _runs(rows, STEPS):
        return
    with figure(folder / PICTURE, 7.2, 13.5, 1, 0.8, 1, 0.8, 1.1) as (drawn, axes):
        *panels, training = axes
        for metric, (measured, paper) in zip(_METRICS, (panels[:2], panels[2:]), strict=True):
            _draw_metric(measured, rows, metric)
            _draw_paper(paper, metric)
        for row in _runs(rows, STEPS):
            curve = [one for one in rows if one.metric == "training_loss" and _same_run(one, row)]
            points = sorted((one.params["step"], one.value) for one in curve)
            if points:
                training.plot(*zip(*points, strict=True), "-", label=f"batches of {row.batch_size}")
        training.set_xlabel("step")
        training.set_ylabel("training loss,\nsmoothed (nat)")
        training.legend()
        training.set_title("Training at equal steps (measured)")
        drawn.legend(handles=panels[0].get_lines(), loc="outside upper center", ncols=2)


def _comparison(rows: Sequence[Row], others: Sequence[Row], held: str) -> Section:
    known = next(iter(_runs(rows, held) or _runs(others, held)), None)
    if known is None:
        return Section(_HELD_FIXED[held].capitalize(), "", [])
    tokens = _first(rows or others, "bleu", model=next(iter(BASELINE_MODELS.values())))
    pair = f" A pair has {tokens.params['tokens_of_a_pair']:.0f} tokens on average." if tokens is not None else ""
    if held == STEPS:
        text = (
            f"A scaled-down model, {known.model} ({known.params['parameters'] / 1e6:.2f}M parameters), on "
            f"{known.params['language']} to English, the language with most text in the packaged corpus; the paper's "
            "row is Transformer Big on German to English. The optimiser's settings, learning rate and number of steps "
            "stay, the batch grows fourfold each time, so a larger batch sees more samples: the paper keeps its "
            f"settings and does not say what else stays.{pair} **What this shows:** that the larger batch is better "
            "per step. **What it does not show:** whether it is better for the same work, which is the next section's; "
            "nor the paper's sizes: its batches hold ten thousand times more tokens, and its corpus is not seen more "
            "than a few times, where here the largest batch goes over a small one again and again. The paper's NLL is "
            "of its validation part and its vocabulary, so only the direction compares. One seed."
        )
        caption = (
            "BLEU and NLL by the size of the batch: measured (full lines), and in panels of its own published (dashed)."
        )
        return Section("Equal steps", text, _lines(rows, others, held), [Figure(PICTURE, caption)] if rows else ())
    text = (
        "The same number of sentence pairs, so a larger batch makes fewer steps, with the learning rate as before. The "
        "paper has no such row: it is here because what is held fixed decides which batch looks better."
    )
    return Section("Equal samples", text, _lines(rows, others, held))


def _lines(rows: Sequence[Row], others: Sequence[Row], held: str) -> list[Line]:
    made = []
    table = published("table5") if held == STEPS else []
    keys = dict.fromkeys((row.batch_size, row.params["steps"]) for some in (rows, others) for row in _runs(some, held))
    for metric, (name, column, form) in _METRICS.items():
        for number, (batch, steps) in enumerate(sorted(keys, key=lambda key: key[0] or 0)):
            found = [_first(some, metric, batch=batch, steps=steps) for some in (rows, others)]
            what = f"{_HELD_FIXED[held]}: batches of {batch} sentence pairs, {steps} steps: {name}"
            paper = NOTHING
            if number < len(table):
                paper = f"{table[number][column]} ({_tokens(table[number]['tokens_per_batch'])} tokens)"
            own, other = (_text(row, form) for row in found)
            made.append(Line(what, "measured", own, other, paper))
    return made


def _baselines(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = []
    for name in BASELINE_MODELS.values():
        found = [_first(some, "bleu", model=name) for some in (rows, others)]
        if any(found):
            lines.append(Line(f"{name}: BLEU", "measured", *(_text(row, "{:.2f}") for row in found)))
    text = (
        "What needs no training, on the same test sentences. They come in families, and a near relative in training "
        "is what the nearest neighbour lives on."
    )
    return Section("Baselines", text, lines)


def _draw_metric(axis: Any, rows: Sequence[Row], metric: str) -> None:
    name = _METRICS[metric][0]
    for held, words in _HELD_FIXED.items():
        points = [
            (row.batch_size, found.value)
            for row in _runs(rows, held)
            if (found := _first(rows, metric, batch=row.batch_size, steps=row.params["steps"])) is not None
        ]
        if points:
            axis.plot(*zip(*sorted(points), strict=True), "o-", color=_COLORS[held], label=f"{words} (measured)")
    sizes = sorted({row.batch_size or 0 for row in _runs(rows, STEPS)})
    axis.set_xscale("log", base=4)
    axis.set_xticks(sizes, [f"{size} pairs" for size in sizes])
    axis.minorticks_off()
    axis.set_ylabel(name.replace(" (", "\n("))
    axis.set_title(f"{name.split(' (')[0]} by batch, scaled down (measured)")


def _draw_paper(axis: Any, metric: str) -> None:
    table = published("table5")
    axis.plot(
        [_tokens(row["tokens_per_batch"]) for row in table],
        [row[_METRICS[metric][1]] for row in table],
        "s--",
        color=GREY,
    )
    axis.margins(x=0.045)
    axis.set_xlabel("tokens a batch")
    axis.set_ylabel("BLEU" if metric == "bleu" else "validation NLL")
    axis.set_title("The paper's Transformer Big (published, an axis of its own)")


def _runs(rows: Sequence[Row], held: str) -> list[Row]:
    """A row of each run of a comparison, the smallest batch first."""
    found = [row for row in rows if row.metric == "nll" and held in row.params.get("held_fixed", ())]
    return sorted(found, key=lambda row: row.batch_size or 0)


def _same_run(one: Row, other: Row) -> bool:
    return one.batch_size == other.batch_size and one.params.get("steps") == other.params.get("steps")


def _first(
    rows: Sequence[Row],
    metric: str,
    *,
    batch: int | None = None,
    steps: int | None = None,
    model: str | None = None,
) -> Row | None:
    return find_row(
        rows,
        lambda row: (
            row.metric == metric
            and row.batch_size == batch
            and row.params.get("steps") == steps
            and (model is None or row.model == model)
        ),
    )


def _text(row: Row | None, form: str) -> str:
    return NOTHING if row is None else form.format(row.value)


def _tokens(number: Any) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number / 1e3:g}K"
