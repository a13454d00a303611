"""The sections and the figure of the report on Figures 3 and 1b: multilingual models of growing size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repro.datasets.paper import published
from repro.experiments.figure3_plans import STANDS_FOR
from repro.experiments.figure3_rows import BASELINE_MODELS, BILINGUAL, MULTILINGUAL, trailing_average
from repro.experiments.rows import Row

from .lines import NOTHING, Figure, Grid, Line, Section, find_row
from .loading import Results
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, figure

PICTURE = "figure3.png"
PICTURES = (PICTURE,)
GROUPS = ("high", "middle", "low", "all")
_PAPER_COLUMNS = {"high": "first_25", "middle": "middle_52", "low": "last_25", "all": "all_languages"}
_COLORS = {"base": BLUE, "wide": ORANGE, "deep": GREEN, "large": VERMILION}
_MARKS = {"base": "o", "wide": "s", "deep": "^", "large": "D"}
_GROUP_SIZE = 4
_ABOUT = (
    "Scaled-down models on a corpus of user-interface messages translated to English: {languages} languages, {most:,} "
    "to {least:,} training pairs (the paper: 102 languages, 10,000 to a billion), sentences of at most 26 pieces, "
    "{steps:,} steps of {batch} sentence pairs drawn by temperature T = 5, one vocabulary, one seed. BLEU is "
    "sacrebleu's (`{signature}`), 0 to 100."
)
_SHOWN = (
    "**What this shows:** how held-out NLL and BLEU change with the size of the model at equal data, equal steps and "
    "one width of states, and what a low-resource language gains from being trained together with others. **What it "
    "does not show:** the paper's qualities. The models are a thousandth of the paper's size and training stops long "
    "before it has converged, so the BLEU of all of them is low; copying and nearest neighbour, which need no "
    "training, stand beside it. The test sentences have relatives in training (messages come in families; near "
    "duplicates are on one side of the split), which favours the nearest neighbour. The high-resource languages here "
    "have as many pairs as the paper's low-resource ones. A difference of a few tenths of BLEU on one language is "
    "within the noise of its test sentences. How much the paper's bilingual models were trained is not published; here "
    "they stop earlier the less text there is, since they overfit."
)


def sections(results: Results, reference: Results | None) -> list[Section]:
    """All sections for which there are rows."""
    rows = list(results.rows)
    others = list(reference.rows) if reference is not None else []
    made = [_sizes(rows, others), _gains(rows, others), _languages(rows), _pools(rows, others)]
    return [section for section in made if section.lines or section.grids]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The gain of the largest model by group."""
    rows = list(results.rows)
    return [line for line in _gain_lines(rows, []) if line.what.startswith("large")]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """NLL by size; BLEU by the rank of the language; BLEU above the bilingual models, ours and the paper's."""
    sizes = [size for size in STANDS_FOR if _model_row(rows, size, "nll") is not None]
    if not sizes:
        return
    with figure(folder / PICTURE, 7.4, 13.0, 0.75, 1.15, 1.0, 0.9) as (_, (nll, bleu, gain, paper)):
        _draw_nll(nll, rows, sizes)
        _draw_bleu(bleu, rows, sizes)
        _draw_gain(gain, rows, sizes)
        _draw_paper(paper, sizes)


def _sizes(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    average = {row["model"]: row["average_bleu"] for row in published("figure1b")}
    lines = []
    for size, name in STANDS_FOR.items():
        known = _model_row(rows, size, "nll") or _model_row(others, size, "nll")
        if known is None:
            continue
        own = f"{size}, {known.model.split(', width')[0]}, {known.params['parameters'] / 1e6:.2f}M parameters"
        if (known.num_stages or 1) > 1:
            where = "processes" if known.params["processes"] > 1 else "stages of one process"
            own += f", pipeline of K={known.num_stages} {where}"
        lines += _line(f"{own}: held-out NLL (nat per token)", rows, others, size, "nll", "{:.3f}")
        paper = f"{average[name]:.2f} ({name})" if name in average else NOTHING
        lines += _line(f"{own}: average BLEU over the languages", rows, others, size, "average_bleu", "{:.2f}", paper)
    for kind, name in BASELINE_MODELS.items():
        own_row, other = (_first(some, "average_bleu", trained_on=kind) for some in (rows, others))
        if own_row or other:
            text = [_text(row, "{:.2f}") for row in (own_row, other)]
            lines.append(Line(f"{name}: average BLEU over the languages", "measured", *text))
    return Section("Size of the multilingual model", _about(rows or others), lines)


def _gains(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = _gain_lines(rows, others)
    counts = {
        row.params["group"]: row.params["with_bilingual"]
        for row in rows
        if row.metric == "bleu_gain" and row.params["part"] == "group"
    }
    means = ", ".join(f"{count} of {group}" for group, count in counts.items() if group != "all")
    text = (
        "The BLEU of a multilingual model less that of a model of the same language alone, which has the size `base`, "
        f"as the paper's bilingual models have that of its smallest; means over the languages that have one ({means}). "
        "The paper's groups are the first 25, the middle 52 and the last 25 of 102 languages, its values read off "
        f"Figure 3. {_SHOWN}"
    )
    caption = (
        "Measured, but for the last panel: held-out NLL by size of the model; BLEU of each language by the rank of its "
        f"training data (dots) and the trailing average over {_GROUP_SIZE} languages (lines); BLEU above the bilingual "
        "models (dots) with the mean of each group (lines); published: the same of the paper's full-size models on its "
        "data, by group, read off its Figure 3."
    )
    return Section("BLEU above bilingual models", text, lines, [Figure(PICTURE, caption)] if rows else ())


def _gain_lines(rows: Sequence[Row], others: Sequence[Row]) -> list[Line]:
    lines = []
    for size, name in STANDS_FOR.items():
        paper = next(row for row in published("figure3") if row["model"] == name and row["confidence"] == "D")
        for group in GROUPS:
            found = [
                _first(some, "bleu_gain", part="group", group=group, size=size, trained_on=MULTILINGUAL)
                for some in (rows, others)
            ]
            if not any(found):
                continue
            value = paper[_PAPER_COLUMNS[group]]
            published_text = NOTHING if value is None else f"{value:+g} ({name})"
            what = f"{size}, {'all languages that have one' if group == 'all' else f'{group} group'}"
            own, other = (_text(row, "{:+.2f}") for row in found)
            lines.append(Line(what, "measured", own, other, published_text))
    return lines


def _languages(rows: Sequence[Row]) -> Section:
    columns = ["language", "group", "pairs", "rank of 102", "tests", *BASELINE_MODELS, BILINGUAL, *STANDS_FOR]
    grids = []
    for metric, form in (("bleu", "{:.1f}"), ("chrf", "{:.1f}")):
        table = []
        for about in _by_rank(rows):
            language = about["language"]
            values: list[dict[str, str]] = [{"trained_on": kind} for kind in BASELINE_MODELS]
            values.append({"trained_on": BILINGUAL})
            values += [{"trained_on": MULTILINGUAL, "size": size} for size in STANDS_FOR]
            cells = [_text(_first(rows, metric, part="language", language=language, **value), form) for value in values]
            pairs = f"{about['training_pairs']:,}" if about["training_pairs"] else NOTHING
            rank = str(about["rank_in_corpus"] or NOTHING)
            table.append([language, about["group"], pairs, rank, str(about["test_sentences"]), *cells])
        if table:
            name = "BLEU" if metric == "bleu" else "chrF"
            grids.append(Grid(f"{name} of each language (measured)", columns, table))
    text = "The language with most training pairs first; *copy* and *nearest* need no training."
    return Section("Each language", text, [], grids=grids)


def _pools(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines = []
    pools = dict.fromkeys(row.params["pool"] for row in (*rows, *others) if row.params.get("part") == "pool")
    words = {"enough": "languages with at least 100 test sentences", "all": "all languages"}
    for pool in pools:
        for value, name in (
            *(({"trained_on": kind}, name) for kind, name in BASELINE_MODELS.items()),
            *(({"trained_on": MULTILINGUAL, "size": size}, f"multilingual {size}") for size in STANDS_FOR),
        ):
            own, other = (_first(some, "bleu", part="pool", pool=pool, **value) for some in (rows, others))
            known = own or other
            if known is not None:
                what = f"{words.get(pool, f'{pool} group')}, {known.params['test_sentences']} sentences: {name}"
                lines.append(Line(what, "measured", *(_text(row, "{:.2f}") for row in (own, other))))
    text = "BLEU of all sentences of several languages together; *fewer* are languages with fewer than 100 of them."
    return Section("Languages together", text, lines)


def _draw_nll(axis: Any, rows: Sequence[Row], sizes: Sequence[str]) -> None:
    for size in sizes:
        row = _model_row(rows, size, "nll")
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
    languages = _by_rank(rows)
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
            if (row := _first(rows, "bleu", part="language", language=about["language"], **value)) is not None
        ]
        if points:
            ranks, values = zip(*points, strict=True)
            axis.plot(ranks, values, mark, color=color, ms=4, alpha=0.5)
            axis.plot(ranks, trailing_average(values, _GROUP_SIZE), dash, color=color, label=name)
    alone = [
        (about["rank"], row.value)
        for about in languages
        if (row := _first(rows, "bleu", part="language", language=about["language"], trained_on=BILINGUAL)) is not None
    ]
    if alone:
        axis.plot(*zip(*alone, strict=True), "*", color=BLACK, ms=9, label="bilingual")
    _label_languages(axis, languages)
    axis.set_ylabel("BLEU")
    axis.set_ylim(bottom=0)
    axis.legend(ncols=4, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axis.set_title("BLEU by language (measured); lines: trailing average")


def _draw_gain(axis: Any, rows: Sequence[Row], sizes: Sequence[str]) -> None:
    languages = _by_rank(rows)
    places = _group_places(languages)
    for number, size in enumerate(sizes):
        shift = 0.12 * (number - (len(sizes) - 1) / 2)
        value = {"trained_on": MULTILINGUAL, "size": size}
        for about in languages:
            row = _first(rows, "bleu_gain", part="language", language=about["language"], **value)
            if row is not None:
                axis.plot([about["rank"] + shift], [row.value], _MARKS[size], color=_COLORS[size], ms=5)
        means = [
            (place, row.value)
            for group, place in places.items()
            if (row := _first(rows, "bleu_gain", part="group", group=group, **value)) is not None
        ]
        if means:
            axis.plot(*zip(*means, strict=True), "-", color=_COLORS[size], alpha=0.7, label=size)
    axis.axhline(0, color=BLACK, lw=0.8)
    _label_languages(axis, languages)
    axis.set_ylabel("BLEU above the\nbilingual model")
    axis.legend(ncols=4, fontsize=8)
    axis.set_title("Gain over bilingual models (measured); lines: mean of a group")


def _draw_paper(axis: Any, sizes: Sequence[str]) -> None:
    for row in published("figure3"):
        size = next((size for size in sizes if STANDS_FOR[size] == row["model"]), None)
        if row["confidence"] != "D":
            continue
        values = [row[_PAPER_COLUMNS[group]] for group in GROUPS[:3]]
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


def _about(rows: Sequence[Row]) -> str:
    languages = _by_rank(rows)
    known = _model_row(rows, "base", "nll") or find_row(rows, lambda row: row.metric == "nll")
    sizes = [about["training_pairs"] for about in languages if about["training_pairs"]]
    if known is None or not sizes:
        return ""
    return _ABOUT.format(
        languages=len(languages),
        most=max(sizes),
        least=min(sizes),
        steps=known.params["steps"],
        batch=known.batch_size,
        signature=languages[0]["signature"],
    )


def _by_rank(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What is known of each language, the one with most text first."""
    found = {row.params["language"]: dict(row.params) for row in rows if row.params.get("part") == "language"}
    return sorted(found.values(), key=lambda about: int(about["rank"]))


def _line(
    what: str,
    rows: Sequence[Row],
    others: Sequence[Row],
    size: str,
    metric: str,
    form: str,
    paper: str = NOTHING,
) -> list[Line]:
    own, other = (_model_row(some, size, metric) for some in (rows, others))
    if own is None and other is None:
        return []
    return [Line(what, "measured", _text(own, form), _text(other, form), paper)]


def _text(row: Row | None, form: str) -> str:
    return NOTHING if row is None else form.format(row.value)


def _model_row(rows: Sequence[Row], size: str, metric: str) -> Row | None:
    return _first(rows, metric, part="model", size=size, trained_on=MULTILINGUAL)


def _first(rows: Sequence[Row], metric: str, **params: str) -> Row | None:
    wanted: Callable[[Row], bool] = lambda row: (  # noqa: E731
        row.metric == metric and all(row.params.get(name) == value for name, value in params.items())
    )
    return find_row(rows, wanted)
