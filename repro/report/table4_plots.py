"""The figures of Table 4, from rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter, MaxNLocator

from repro.experiments.sweeps.rows import Row

from .style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, figure

_NORMS = {"batch": ("BatchNorm", BLUE, "o"), "group": ("GroupNorm", ORANGE, "s")}
_PARTS = {"scratch": ("from scratch", SKY), "fine_tuning": ("fine-tuned", GREEN)}


def draw_sizes(rows: Sequence[Row], path: Path) -> Path:
    """Accuracy against parameters."""
    means = sorted((row for row in rows if row.metric == "mean_accuracy"), key=lambda row: row.params["parameters"])
    single = [row for row in rows if row.metric == "accuracy"]
    with figure(path, 7.2, 3.8, 1) as (_, (axis,)):
        sizes = [row.params["parameters"] for row in means]
        values = [100 * row.value for row in means]
        axis.errorbar(
            sizes,
            values,
            yerr=[100 * (row.spread or 0.0) for row in means],
            color=BLUE,
            marker="o",
            capsize=4,
            label="mean and standard deviation over seeds",
        )
        axis.scatter(
            [row.params["parameters"] for row in single],
            [100 * row.value for row in single],
            color=GREY,
            s=14,
            zorder=3,
            label="one seed",
        )
        for row in means:
            words = f"{row.params['size']}\nD = {row.params['num_filters']}"
            place = (row.params["parameters"], 100 * row.value)
            axis.annotate(words, place, (8, -8), textcoords="offset points", va="top", fontsize=8.5)
        axis.set_xscale("log")
        axis.minorticks_off()
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.set_xlim(0.7 * min(sizes), 2.2 * max(sizes))
        axis.margins(y=0.25)
        axis.set_title(f"AmoebaNet-D on {_data(means[0])}, {means[0].params['steps']} steps (measured)")
        axis.set_xlabel("parameters")
        axis.set_ylabel("test accuracy (%)")
        axis.legend(loc="upper left")
    return path


def draw_micro_batches(rows: Sequence[Row], path: Path) -> Path:
    """Accuracy over M for both norms, and below it how far running statistics are off."""
    with figure(path, 7.2, 5.4, 1.3, 1) as (_, (upper, lower)):
        for norm, (name, colour, marker) in _NORMS.items():
            _curve(upper, rows, "accuracy", norm, colour, marker, f"{name}, as trained", "-", 100)
        _curve(upper, rows, "accuracy_recomputed", "batch", BLUE, "x", "BatchNorm, statistics recomputed", ":", 100)
        _curve(lower, rows, "running_mean_error", "batch", GREEN, "o", "running mean, in standard deviations", "-", 1)
        _curve(lower, rows, "running_variance_error", "batch", VERMILION, "s", "running variance, |log ratio|", "-", 1)
        known = rows[0]
        batch = known.batch_size
        upper.set_title(f"{known.model} on {_data(known)}, mini-batches of {batch}, one seed (measured)")
        upper.set_ylabel("test accuracy (%)")
        lower.set_ylabel("error")
        lower.set_ylim(bottom=0)
        lower.set_xlabel("M, micro-batches of a mini-batch")
        ticks = sorted({row.num_micro_batches for row in rows if row.num_micro_batches})
        for axis in (upper, lower):
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
            axis.yaxis.set_major_locator(MaxNLocator(6))
            axis.minorticks_off()
            axis.legend()
    return path


def draw_transfer(rows: Sequence[Row], path: Path) -> Path:
    """For every set, accuracy from scratch and fine-tuned, beside the share of the largest class."""
    chosen = [row for row in rows if row.params.get("part") in _PARTS]
    sets = list(dict.fromkeys(row.params["data"] for row in chosen))
    shares = {
        row.params["data"]: row.value
        for row in rows
        if row.params.get("part") == "data" and row.metric == "largest_class_share"
    }
    with figure(path, 7.2, 3.8, 1) as (_, (axis,)):
        for offset, (part, (name, colour)) in zip((-0.2, 0.2), _PARTS.items(), strict=True):
            means = {
                row.params["data"]: row
                for row in chosen
                if row.params["part"] == part and row.metric == "mean_accuracy"
            }
            places = [sets.index(data) + offset for data in means]
            axis.bar(
                places,
                [100 * row.value for row in means.values()],
                width=0.36,
                yerr=[100 * (row.spread or 0.0) for row in means.values()],
                color=colour,
                capsize=4,
                label=name,
            )
            single = [row for row in chosen if row.params["part"] == part and row.metric == "accuracy"]
            axis.scatter(
                [sets.index(row.params["data"]) + offset for row in single],
                [100 * row.value for row in single],
                color=GREY,
                s=12,
                zorder=3,
            )
        for place, data in enumerate(sets):
            if data in shares:
                label = "largest class" if data == next(iter(name for name in sets if name in shares)) else None
                axis.hlines(
                    100 * shares[data], place - 0.42, place + 0.42, color=VERMILION, linestyle="--", label=label
                )
        axis.set_xticks(range(len(sets)), sets)
        axis.grid(axis="x", visible=False)
        axis.set_ylim(0, 105)
        axis.set_ylabel("test accuracy (%)")
        axis.set_title(f"{chosen[0].model}: {chosen[0].params['steps']} steps on other sets (measured)", pad=24)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
    return path


def _curve(
    axis: object,
    rows: Sequence[Row],
    metric: str,
    norm: str,
    colour: str,
    marker: str,
    label: str,
    line: str,
    by: float,
) -> None:
    some = sorted(
        (row for row in rows if row.metric == metric and row.params["norm"] == norm),
        key=lambda row: row.num_micro_batches or 0,
    )
    if some:
        axis.plot(  # type: ignore[attr-defined]
            [row.num_micro_batches for row in some],
            [by * row.value for row in some],
            line,
            color=colour,
            marker=marker,
            label=label,
        )


def _data(row: Row) -> str:
    return {"fashion-mnist": "Fashion-MNIST"}.get(row.params["data"], str(row.params["data"]))
