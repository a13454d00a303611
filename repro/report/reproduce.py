"""The sections of the report on ``repro reproduce``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from repro.experiments.accuracy.scales import TRANSLATION
from repro.experiments.costs.workload import BARE_LOOP, ENGINE, ONE_PROCESS, TORCH
from repro.experiments.sweeps.rows import Row

from .lines import NOTHING, Figure, Line, Section, line
from .loading import Results

PICTURES = ("timeline_translation.png", "loss_translation.png")
# What must hold of the engine's step time relative to each other way, and how that reads.
LIMITS = {ONE_PROCESS: 0.70, BARE_LOOP: 1.05, TORCH: 1.0}


_DIFFERENCES = {
    "loss": "the loss",
    "gradient_norm": "the gradient norm",
    "held_out": "the held-out metrics",
}


def sections(results: Results, reference: Results | None) -> list[Section]:
    """All sections for which there are rows."""
    rows = results.rows
    others = reference.rows if reference is not None else ()
    made = [
        _agreement(rows, others),
        _speed(rows, others),
        _bubble(rows, others),
        _learning(rows, others),
    ]
    return [section for section in made if section.lines]


def headline(results: Results, reference: Results | None) -> list[Line]:
    """The few lines that sum the run up."""
    wanted = (
        "against K=1: largest difference of the loss",
        "relative to bare",
        "relative to torch",
        "relative to one process (paired",
        "from the trace",
        "replayed from the costs in its trace",
        "held-out accuracy of the pictures",
        "negative log likelihood",
        "unigram model",
        "held-out BLEU",
    )
    found = [one for section in sections(results, reference) for one in section.lines]
    return [one for one in found if any(word in one.what for word in wanted)]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draws every figure for which there are rows."""
    # Only now: this loads matplotlib.
    from .plots import draw_all

    draw_all(rows, folder)


def _agreement(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines: list[Line | None] = []
    for experiment, against in (("agreement", "K=1"), ("plain", "plain Lightning")):
        for task, stages, way in _keys(rows, others, experiment):
            known = [row for row in (*rows, *others) if _is(row, experiment, task, stages, way)]
            run = f"{known[0].model}, K={stages} ({way}), M={known[0].num_micro_batches} against {against}"
            mine = partial(_is, experiment=experiment, task=task, stages=stages, way=way)
            for prefix, words in _DIFFERENCES.items():
                own, other = (_largest([row for row in some if mine(row)], prefix) for some in (rows, others))
                lines.append(line(f"{run}: largest difference of {words}", own, other, lambda row: True))
    figures = [
        Figure(
            f"loss_{task}.png",
            f"Training loss of {model} with K = 1, 2 and more stages, same seed and same M "
            "(measured): the curves lie on top of each other; below, what they differ by.",
        )
        for task, model in _tasks(rows, "agreement")
    ]
    steps = max((row.params.get("step") or 0 for row in rows if row.experiment == "agreement"), default=0)
    text = (
        f"The same seed and data for {steps} steps. First with the same micro-batches and different numbers of stages; "
        "BatchNorm normalises each micro-batch with its own statistics, and each has its own dropout masks, so the "
        "answer depends on M, but not on K. Then against plain Lightning on whole mini-batches, where M does not "
        "matter (AmoebaNet with M = 1, the Transformer without dropout). Differences are relative, the largest over "
        "all steps; 0 means equal to the last bit."
    )
    return Section("The pipeline gives the answer of plain training", text, _there(lines), figures)


def _speed(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines: list[Line | None] = []
    for way in (ENGINE, BARE_LOOP, TORCH, ONE_PROCESS):
        stages = "one process" if way == ONE_PROCESS else f"K=2, {way}"
        lines.append(line(f"step time, {stages}", rows, others, partial(_speed_is, metric="step_time", way=way)))
    for way, limit in LIMITS.items():
        what = f"step time of this engine relative to {way} (paired; should be at most {limit:.2f})"
        lines.append(line(what, rows, others, partial(_speed_is, metric="step_time_ratio", way=ENGINE, reference=way)))
    what = "step time of equal stages relative to one process, messages free (the ideal)"
    lines.append(line(what, rows, others, partial(_speed_is, metric="step_time_ratio", way="ideal")))
    for way in (ENGINE, BARE_LOOP, TORCH):
        lines.append(
            line(f"speed-up over one process, K=2, {way}", rows, others, partial(_speed_is, metric="speed_up", way=way))
        )
    known = next((row for row in rows if row.experiment == "step_time"), None)
    text = ""
    if known is not None:
        params = known.params
        text = (
            f"{known.model}, {params['length']} tokens, {known.batch_size} rows in M = {known.num_micro_batches} "
            f"micro-batches, no re-materialization, one thread a process; {params['rounds']} rounds in which the ways "
            f"take turns, {params['steps']} steps each. Values are medians, ± is half the interquartile range; ratios "
            "are of the same round. All ways were first shown to give the same gradients."
        )
    figures = [Figure("step_time.png", "Step time of the same layers in four ways (measured, one interleaved run).")]
    return Section("Step time beside PyTorch's own pipeline and a bare loop", text, _there(lines), figures)


def _bubble(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines: list[Line | None] = []
    forms = {
        "trace": "from the trace",
        "replay": "replayed from the costs in its trace",
        "closed form with remat": "closed form, equal stages, with remat",
        "closed form without remat": "closed form (K-1)/(M+K-1)",
    }
    for task, stages, way in _keys(rows, others, "bubble"):
        for form, words in forms.items():
            select = partial(_is, experiment="bubble", task=task, stages=stages, way=way, form=form)
            known = next((row for row in (*rows, *others) if select(row)), None)
            if known is None:
                continue
            what = f"{known.model}: bubble, K={stages} ({way}), M={known.num_micro_batches}, {words}"
            paper = f"{100 * known.value:.1f}% (section 2.3)" if form == "closed form without remat" else NOTHING
            lines.append(line(what, rows, others, select, paper))
    figures = [
        Figure(
            f"timeline_{task}.png",
            f"One step of {model}: K = 2 processes as measured, and below the stages of the "
            "local run replayed from the costs in its trace (simulated).",
        )
        for task, model in _tasks(rows, "timeline")
    ]
    text = (
        "Idle time of the ranks / (ranks x makespan); R counts as work. With one process a stage it is measured from "
        "the trace, median over the last steps. Stages that share one process leave no bubble to measure: theirs is "
        "simulated, the schedule replayed with the cost that each action had. The closed forms assume equal stages; "
        "what the replay says beyond them is imbalance, what the trace says beyond the replay is messages and noise."
    )
    return Section("The bubble", text, _there(lines), figures)


def _learning(rows: Sequence[Row], others: Sequence[Row]) -> Section:
    lines: list[Line | None] = []
    metrics = {
        "accuracy": "held-out accuracy of the next token",
        "top5": "the same, right class among the first five guesses",
        "loss": "held-out loss",
        "nll": "held-out negative log likelihood per token",
        "unigram_nll": "the same of the unigram model",
        "perplexity": "held-out perplexity",
        "bleu": "held-out BLEU, greedy decoding",
        "bleu_copy": "held-out BLEU of copying the source",
        "bleu_nearest": "held-out BLEU of the nearest training sentence",
    }
    for task, stages, way in _keys(rows, others, "learning"):
        known = next(row for row in (*rows, *others) if _is(row, "learning", task, stages, way))
        name = f"{known.model} on {known.params['data']}"
        is_mine = partial(_is, experiment="learning", task=task, stages=stages, way=way)
        lines.append(line(f"{name}: steps, K={stages} ({way})", rows, others, partial(is_mine, metric="steps")))
        named = metrics if task == TRANSLATION.name else metrics | {"accuracy": "held-out accuracy of the pictures"}
        for metric, words in named.items():
            lines.append(line(f"{name}: {words}", rows, others, partial(is_mine, metric=metric, part="held out")))
        lines.append(line(f"{name}: step time", rows, others, partial(is_mine, metric="step_time")))
        lines.append(line(f"{name}: time of the whole fit", rows, others, partial(is_mine, metric="fit_time")))
    figures = [
        Figure(f"learning_{task}.png", f"{model}, K = 2: training loss by step, and the held-out result (measured).")
        for task, model in _tasks(rows, "learning")
    ]
    text = (
        "A longer run of each, a fixed number of steps, scaled-down models on packaged data: it shows that both learn, "
        "and says nothing about the paper's accuracies."
    )
    return Section("Both models learn", text, _there(lines), figures)


def _is(row: Row, experiment: str, task: str, stages: int | None, way: str, **params: str) -> bool:
    metric = params.pop("metric", row.metric)
    return (
        (row.experiment, row.params.get("task"), row.num_stages, row.params.get("way"), row.metric)
        == (experiment, task, stages, way, metric)
    ) and all(row.params.get(name) == value for name, value in params.items())


def _largest(rows: Sequence[Row], prefix: str) -> list[Row]:
    """The row with the largest difference among those whose metric begins with ``prefix``."""
    found = [row for row in rows if row.metric.startswith(prefix) and row.metric.endswith("_difference")]
    return [max(found, key=lambda row: row.value)] if found else []


def _speed_is(row: Row, metric: str, way: str, reference: str | None = None) -> bool:
    return (row.experiment, row.metric, row.params.get("way")) == ("step_time", metric, way) and (
        reference is None or row.params.get("reference") == reference
    )


def _keys(rows: Sequence[Row], others: Sequence[Row], experiment: str) -> list[tuple[str, int | None, str]]:
    known = [row for row in (*rows, *others) if row.experiment == experiment]
    return list(dict.fromkeys((row.params["task"], row.num_stages, row.params["way"]) for row in known))


def _tasks(rows: Sequence[Row], experiment: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.params["task"], row.model) for row in rows if row.experiment == experiment))


def _there(lines: Iterable[Line | None]) -> list[Line]:
    return [one for one in lines if one is not None]
