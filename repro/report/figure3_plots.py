"""The picture of the report on Figure 3."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.datasets.paper import published
from repro.experiments.accuracy.figure3_plans import BILINGUAL, MULTILINGUAL, STANDS_FOR
from repro.experiments.accuracy.figure3_rows import BASELINE_MODELS, trailing_average
from repro.experiments.sweeps.rows import Row

from .figure3_finding import first, languages_by_rank, of_size
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, figure

PICTURE = "figure3.png"
WINDOW = 4
"""Languages that the trailing average is over: as many as a group has."""

PAPER_COLUMNS = {"high": "first_25", "middle": "middle_52", "low": "last_25", "all": "all_languages"}
_GROUPS = ("high", "middle", "low")
_COLORS = {"base": BLUE, "wide": ORANGE, "deep": GREEN, "large": VERMILION}
_MARKS = {"base": "o", "wide": "s", "deep": "^", "large": "D"}


def draw(rows: Sequence[Row], folder: Path) -> None:
    """NLL by size; BLEU by the rank of the language; BLEU above the bilingual models, ours and the paper's."""
    sizes = [size for size in STANDS_FOR if of_size(rows, size, "nll") is not None]
    if not sizes:
        return
    with figure(folder / PICTURE, 7.4, 13.0, 0.75, 1.15, 1.0, 0.9) as (_, (nll, bleu, gain, paper)):
        _draw_nll(nll, rows, sizes)
        _draw_bleu(bleu, rows, sizes)
        _draw_gain(gain, rows, sizes)
        _draw_paper(paper, sizes)


def _draw_nll(axis: Any, rows: Sequence[Row], sizes: Sequence[str]) -> None:
    for size in sizes:
        row = of_size(rows, size, "nll")
        assert row is not None
        millions = row.params["parameters"] / 1e6
        axis.plot([millions], [row.value], _MARKS[size], color=_COLORS[size], ms=8)
        words = f" {size}, {row.model.split(', width')[0]}"
        axis.annotate(words, (millions, row.value), xytext=(6, 5), textcoords="offset points", fontsize=8.5)
    axis.margins(x=0.3, y=0.25)
    axis.set_xlabel("parameters (million)")
    axis.set_ylabel("held-out NLL\n(nat per token)")
    axis.set_title("Size of the multilingual model (measured)")


def _draw_bleu(axis: Any, rows: Sequence[Row], sizes: Sequence[str]) -> None:
    languages = languages_by_rank(rows)
    drawn: list[tuple[str, dict[str, str], str, str, str]] = [
        (name, {"trained_on": kind}, color, "x", ":")
        for (kind, name), color in zip(BASELINE_MODELS.items(), (GREY, PURPLE), strict=True)
    ]
    drawn += [
        (f"multilingual {size}", {"trained_on": MULTILINGUAL, "size": size}, _COLORS[size], _MARKS[size], "-")
        for size in sizes
    ]
    for name, value, color, mark, dash in drawn:
        points = [
            (about["rank"], row.value)
            for about in languages
            if (row := first(rows, "bleu", part="language", language=about["language"], **value)) is not None
        ]
        if points:
            ranks, values = zip(*points, strict=True)
            axis.plot(ranks, values, mark, color=color, ms=4, alpha=0.5)
            axis.plot(ranks, trailing_average(values, WINDOW), dash, color=color)
            axis.plot([], [], mark + dash, color=color, ms=4, label=name)
    alone = [
        (about["rank"], row.value)
        for about in languages
        if (row := first(rows, "bleu", part="language", language=about["language"], trained_on=BILINGUAL)) is not None
    ]
    if alone:
        axis.plot(*zip(*alone, strict=True), "*", color=BLACK, ms=9, label="bilingual")
    _label_languages(axis, languages)
    axis.set_ylabel("BLEU")
    axis.set_ylim(bottom=0)
    axis.legend(ncols=4, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axis.set_title(f"BLEU by language (measured; marks), and its trailing average over {WINDOW} (lines)")


def _draw_gain(axis: Any, rows: Sequence[Row], sizes: Sequence[str]) -> None:
    languages = languages_by_rank(rows)
    places = _group_places(languages)
    for number, size in enumerate(sizes):
        shift = 0.12 * (number - (len(sizes) - 1) / 2)
        value = {"trained_on": MULTILINGUAL, "size": size}
        for about in languages:
            row = first(rows, "bleu_gain", part="language", language=about["language"], **value)
            if row is not None:
                axis.plot([about["rank"] + shift], [row.value], _MARKS[size], color=_COLORS[size], ms=5)
        means = [
            (place, row.value)
            for group, place in places.items()
            if (row := first(rows, "bleu_gain", part="group", group=group, **value)) is not None
        ]
        if means:
            axis.plot(*zip(*means, strict=True), "-", color=_COLORS[size], alpha=0.7)
            axis.plot([], [], f"{_MARKS[size]}-", color=_COLORS[size], ms=5, label=size)
    axis.axhline(0, color=BLACK, lw=0.8)
    _label_languages(axis, languages)
    axis.set_ylabel("BLEU above the\nbilingual model")
    axis.legend(ncols=4, fontsize=8)
    axis.set_title("Gain over bilingual models (measured): a language (marks), mean of a group (lines)")


def _draw_paper(axis: Any, sizes: Sequence[str]) -> None:
    for row in published("figure3"):
        size = next((size for size in sizes if STANDS_FOR[size] == row["model"]), None)
        if row["confidence"] != "D":
            continue
        values = [row[PAPER_COLUMNS[group]] for group in _GROUPS]
        color, mark = (GREY, "v") if size is None else (_COLORS[size], _MARKS[size])
        axis.plot(range(3), values, f"{mark}--", color=color, label=row["model"])
    axis.axhline(0, color=BLACK, lw=0.8)
    axis.set_xticks(range(3), ["first 25", "middle 52", "last 25 languages"])
    axis.margins(x=0.12)
    axis.set_ylabel("BLEU above the\nbilingual model")
    axis.legend(ncols=3, fontsize=7.5)
    axis.set_title("The paper's full-size models on its 102 languages (published)")


def _label_languages(axis: Any, languages: Sequence[dict[str, Any]]) -> None:
    axis.set_xticks([about["rank"] for about in languages], [about["language"] for about in languages], fontsize=8.5)
    ranks = [about["rank"] for about in languages]
    if ranks:
        axis.set_xlim(min(ranks) - 0.6, max(ranks) + 0.6)
    for before, after in itertools.pairwise(languages):
        if before["group"] != after["group"]:
            axis.axvline((before["rank"] + after["rank"]) / 2, color=GREY, lw=0.8, ls="--")


def _group_places(languages: Sequence[dict[str, Any]]) -> dict[str, float]:
    ranks: dict[str, list[int]] = {}
    for about in languages:
        ranks.setdefault(about["group"], []).append(about["rank"])
    return {group: sum(some) / len(some) for group, some in ranks.items()}
