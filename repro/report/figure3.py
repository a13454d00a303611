"""The sections of the report on Figures 3 and 1b: multilingual models of growing size."""

from __future__ import annotations

from collections.abc import Sequence

from repro.datasets.paper import published
from repro.experiments.accuracy.figure3_plans import BILINGUAL, MULTILINGUAL, STANDS_FOR
from repro.experiments.accuracy.figure3_rows import BASELINE_MODELS
from repro.experiments.sweeps.rows import Row

from .figure3_finding import first, languages_by_rank, last_loss, of_size
from .figure3_plots import PAPER_COLUMNS, PICTURE, WINDOW, draw
from .lines import NOTHING, Figure, Grid, Line, Section, find_row, of_model
from .loading import Results

__all__ = ["PICTURE", "PICTURES", "draw", "headline", "sections"]

PICTURES = (PICTURE,)
GROUPS = ("high", "middle", "low", "all")
_ABOUT = (
    "Scaled-down models on a corpus of user-interface messages translated to English: {languages} languages, {most:,} "
    "to {least:,} training pairs (the paper: 102 languages, 10,000 to a billion), sentences of at most 26 pieces, "
    "{steps:,} steps of {batch} sentence pairs drawn by temperature T = 5, one vocabulary, one seed. BLEU is "
    "sacrebleu's (`{signature}`), 0 to 100."
)
_BY_HEART = (
    "The same English sentences, some ten thousand, recur in all languages and in each pass, so these models are "
    "trained with more dropout than the paper's, and with label smoothing: with less of both they learn the "
    "sentences by heart, and more capacity does not lower the NLL of what is held out. Both raise the training loss, "
    "which is therefore no likelihood."
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
    known = of_size(rows, "large", "nll")
    name = "the largest model" if known is None else known.model
    lines = [line for line in _gain_lines(rows, []) if line.what.startswith("large")]
    return of_model(f"{name}: BLEU above bilingual models", lines)


def _sizes(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    average = {row["model"]: row["average_bleu"] for row in published("figure1b")}
    lines = []
    for size, name in STANDS_FOR.items():
        known = of_size(rows, size, "nll") or of_size(others, size, "nll")
        if known is None:
            continue
        own = f"{size}, {known.model.split(', width')[0]}, {known.params['parameters'] / 1e6:.2f}M parameters"
        if (known.num_stages or 1) > 1:
            where = "processes" if known.params["processes"] > 1 else "stages of one process"
            own += f", pipeline of K={known.num_stages} {where}"
        lines += _line(f"{own}: held-out NLL (nat per token)", rows, others, size, "nll", "{:.3f}")
        paper = f"{average[name]:.2f} ({name})" if name in average else NOTHING
        found = [last_loss(some, size) for some in (rows, others)]
        if any(found):
            values = [_text(row, "{:.3f}") for row in found]
            lines.append(
                Line(f"{own}: training loss at the end (with dropout and label smoothing)", "measured", *values)
            )
        lines += _line(f"{own}: average BLEU over the languages", rows, others, size, "average_bleu", "{:.2f}", paper)
    for kind, name in BASELINE_MODELS.items():
        own_row, other = (first(some, "average_bleu", trained_on=kind) for some in (rows, others))
        if own_row or other:
            values = [_text(row, "{:.2f}") for row in (own_row, other)]
            lines.append(Line(f"{name}: average BLEU over the languages", "measured", *values))
    text = f"{_about(rows or others)} {_BY_HEART}".strip()
    return Section("Size of the multilingual model", text, lines)


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
        f"training data (dots) and the trailing average over {WINDOW} languages (lines); BLEU above the bilingual "
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
                first(some, "bleu_gain", part="group", group=group, size=size, trained_on=MULTILINGUAL)
                for some in (rows, others)
            ]
            if not any(found):
                continue
            value = paper[PAPER_COLUMNS[group]]
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
        for about in languages_by_rank(rows):
            language = about["language"]
            values: list[dict[str, str]] = [{"trained_on": kind} for kind in BASELINE_MODELS]
            values.append({"trained_on": BILINGUAL})
            values += [{"trained_on": MULTILINGUAL, "size": size} for size in STANDS_FOR]
            cells = [_text(first(rows, metric, part="language", language=language, **value), form) for value in values]
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
            own, other = (first(some, "bleu", part="pool", pool=pool, **value) for some in (rows, others))
            known = own or other
            if known is not None:
                what = f"{words.get(pool, f'{pool} group')}, {known.params['test_sentences']} sentences: {name}"
                lines.append(Line(what, "measured", *(_text(row, "{:.2f}") for row in (own, other))))
    text = "BLEU of all sentences of several languages together; *fewer* are languages with fewer than 100 of them."
    return Section("Languages together", text, lines)


def _about(rows: Sequence[Row]) -> str:
    languages = languages_by_rank(rows)
    known = of_size(rows, "base", "nll") or find_row(rows, lambda row: row.metric == "nll")
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


def _line(
    what: str,
    rows: Sequence[Row],
    others: Sequence[Row],
    size: str,
    metric: str,
    form: str,
    paper: str = NOTHING,
) -> list[Line]:
    own, other = (of_size(some, size, metric) for some in (rows, others))
    if own is None and other is None:
        return []
    return [Line(what, "measured", _text(own, form), _text(other, form), paper)]


def _text(row: Row | None, form: str) -> str:
    return NOTHING if row is None else form.format(row.value)
