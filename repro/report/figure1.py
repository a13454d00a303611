"""The report on Figure 1: quality over model size, ours and the published curves on axes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullFormatter

from repro.datasets.paper import Value, published
from repro.experiments.accuracy.figure1 import SOURCES
from repro.experiments.sweeps.rows import Row

from .lines import NOTHING, Figure, Grid, Line, Section, find_row
from .loading import Results
from .style import BLUE, GREY, ORANGE, VERMILION, figure

PICTURES = ("figure1a.png", "figure1b.png")
_NEAR_SIZE = 1.8
_TEXT = {
    "a": (
        "The published panel compares nine years of networks on ImageNet and ends with AmoebaNet-B (18, 512), 557 "
        "million parameters. Ours has widths of one AmoebaNet-D on Fashion-MNIST after half an epoch, thousands of "
        "times smaller. What both say is that accuracy grows with size under one recipe; neither slope nor "
        "height can be compared, so the panels share no axis."
    ),
    "b": (
        "The published panel has the average BLEU over 102 languages of multilingual Transformers with 400 million to "
        "6 billion parameters, trained on 25 billion sentence pairs. Ours are hundreds of times smaller, trained for "
        "minutes on software messages in a dozen languages. What can be compared is the direction, and deep against "
        "wide at equal size; BLEU of different test sets cannot."
    ),
}
_TITLES = {"a": "Figure 1a: accuracy over size", "b": "Figure 1b: BLEU over size"}


def sections(results: Results, reference: Results | None) -> list[Section]:
    """One section a panel."""
    rows, others = results.rows, () if reference is None else reference.rows
    return [_section(panel, rows, others) for panel in _TITLES]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """``figure1a.png`` and ``figure1b.png``, where there are rows for them."""
    for panel in _TITLES:
        own = [row for row in rows if row.params.get("panel") == panel]
        if own:
            _draw(panel, own, folder / f"figure1{panel}.png")


def _section(panel: str, rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = []
    known = {_name(row): row for row in (*rows, *others) if row.params.get("panel") == panel}
    for name, row in sorted(known.items(), key=lambda item: item[1].params["parameters"]):
        own, other = (find_row(some, partial(_is, panel=panel, name=name)) for some in (rows, others))
        what = f"{name}, {_count(row.params['parameters'])} parameters"
        lines.append(Line(what, row.provenance.value, _show(own), _show(other)))
    text = _TEXT[panel]
    drawn = any(row.params.get("panel") == panel for row in rows)
    if not drawn:
        text += f"\n\n**Left out**: there are no rows; `repro run {SOURCES[panel]}` makes them."
    words = "published above, measured on the packaged data below; the panels share no axis"
    figures = [Figure(f"figure1{panel}.png", f"{_TITLES[panel]}: {words}.")] if drawn else []
    return Section(_TITLES[panel], text, lines, figures, [_published(panel)])


def _published(panel: str) -> Grid:
    value = "top-1, %" if panel == "a" else "average BLEU"
    table = [
        [str(row["model"]), _count(_size(row)), str(_value(row))]
        for row in sorted(published(f"figure1{panel}"), key=_size)
    ]
    return Grid("The paper's figure (published, digitised from the picture)", ["model", "parameters", value], table)


def _draw(panel: str, own: Sequence[Row], path: Path) -> None:
    paper = sorted(published(f"figure1{panel}"), key=_size)
    by = 100 if panel == "a" else 1
    with figure(path, 7.2, 6.4, 1, 1) as (_, (upper, lower)):
        upper.plot([_size(row) for row in paper], [_value(row) for row in paper], "o", color=GREY, label="published")
        _name_points(upper, paper)
        colours = (BLUE, ORANGE, VERMILION)
        provenances = list(dict.fromkeys(row.provenance for row in own))
        for provenance, colour in zip(provenances, colours, strict=False):
            some = sorted(
                (row for row in own if row.provenance is provenance), key=lambda row: row.params["parameters"]
            )
            sizes, values = [row.params["parameters"] for row in some], [by * row.value for row in some]
            look: dict[str, Any] = {"fmt": "o", "color": colour, "label": f"{provenance.value}, scaled down"}
            if any(row.spread is not None for row in some):
                look |= {"yerr": [by * (row.spread or 0.0) for row in some], "capsize": 4}
            lower.errorbar(sizes, values, **look)
        for one in own:
            place = (one.params["parameters"], by * one.value)
            lower.annotate(_name(one), place, (6, -4), textcoords="offset points", va="top", fontsize=8)
        unit = ("top-1 accuracy, ImageNet (%)", "test accuracy (%)") if panel == "a" else ("average BLEU",) * 2
        for axis, label, title in zip((upper, lower), unit, ("The paper", f"This run: {_data(own[0])}"), strict=True):
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_xlabel("parameters")
            axis.set_ylabel(label)
            axis.set_title(title)
            axis.margins(x=0.2, y=0.25)
            axis.legend(loc="upper left")
        ticks: list[float] = []
        for size in sorted({row.params["parameters"] for row in own}):
            if not ticks or size > 1.3 * ticks[-1]:  # wide and deep are of nearly the same size
                ticks.append(size)
        lower.set_xticks(ticks, [_count(size) for size in ticks])
        lower.minorticks_off()


def _name_points(axis: Any, paper: Sequence[dict[str, Value]]) -> None:
    """Names beside the published points, to the left of those that have another close to their right."""
    left = 0
    for row in paper:
        crowded = any(
            1 < _size(other) / _size(row) < _NEAR_SIZE and abs(_value(other) - _value(row)) < 1 for other in paper
        )
        left += crowded
        across, up = (-6, 4 if left % 2 == 0 else -4) if crowded else (6, 3)
        axis.annotate(
            str(row["model"]),
            (_size(row), _value(row)),
            (across, up),
            textcoords="offset points",
            fontsize=8,
            ha="right" if crowded else "left",
            va="top" if up < 0 else "bottom",
        )


def _is(row: Row, panel: str, name: str) -> bool:
    return row.params.get("panel") == panel and _name(row) == name


def _name(row: Row) -> str:
    return row.model


def _data(row: Row) -> str:
    data = str(row.params.get("data", "packaged data"))
    return {"fashion-mnist": "Fashion-MNIST"}.get(data, data)


def _show(row: Row | None) -> str:
    if row is None:
        return NOTHING
    if row.params["panel"] == "b":
        return f"{row.value:.1f}" + ("" if row.spread is None else f" ± {row.spread:.1f}")
    return f"{100 * row.value:.1f}%" + ("" if row.spread is None else f" ± {100 * row.spread:.1f}")


def _size(row: dict[str, Value]) -> float:
    size: Any = row.get("parameters", row.get("stated_parameters"))
    return float(size)


def _value(row: dict[str, Value]) -> float:
    value: Any = row.get("top1_percent", row.get("average_bleu"))
    return float(value)


def _count(number: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:.0f}"
