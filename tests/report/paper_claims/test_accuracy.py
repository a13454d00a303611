"""Rules on counts, images and translation, with made-up rows for each verdict."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from repro.experiments.sweeps.rows import Row
from repro.report.paper_claims import counts, images, translation
from repro.report.paper_claims.claim import COUNTS, Missing, Verdict
from tests.report.paper_claims.made_up import SIMULATED, row

REPRODUCED, SMALL, NOT, CONTRADICTED = Verdict


def counted(model: str, value: float, by_layer: list[int] | None = None) -> Row:
    return row("parameters", value, model=model, provenance=SIMULATED, by_layer=by_layer or [])


@pytest.mark.parametrize(
    ("model", "off", "verdict"),
    [
        ("AmoebaNet-B (18, 512)", 1.01, REPRODUCED),
        ("AmoebaNet-B (18, 512)", 1.02, CONTRADICTED),
        ("T(6, 8192, 16)", 1.02, REPRODUCED),
        ("T(6, 8192, 16)", 1.18, CONTRADICTED),
    ],
)
def test_counts(model: str, off: float, verdict: Verdict) -> None:
    rule = partial(counts.counted, model, 400e6)
    assert rule({COUNTS: [counted(model, off * 400e6)]}).verdict is verdict


@pytest.mark.parametrize(("odd", "verdict"), [(1.54e9, CONTRADICTED), (1.31e9, REPRODUCED)])
def test_other_heads(odd: float, verdict: Verdict) -> None:
    rows = [counted("T(24, 8192, 32)", odd), counted("T(24, 8192, 16)", 1.24e9)]
    finding = counts.other_heads({COUNTS: rows})
    assert finding.verdict is verdict and finding.own == (verdict is CONTRADICTED)


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [([10**9] * 4, REPRODUCED), ([10**9, 2 * 10**9], CONTRADICTED), ([10**9], CONTRADICTED)],
)
def test_partitions(layers: list[int], verdict: Verdict) -> None:
    """12 bytes a parameter: 16 GiB hold 1.43 billion."""
    number = 4 if len(layers) == 4 else 2
    rule = partial(counts.holds_in_partitions, "m", number)
    assert rule({COUNTS: [counted("m", sum(layers), layers)]}).verdict is verdict


@pytest.mark.parametrize(
    ("model", "data", "value", "verdict"),
    [
        ("AmoebaNet-B (18, 512)", "cifar10", 0.985, REPRODUCED),
        ("AmoebaNet-B (18, 512)", "cifar10", 0.95, CONTRADICTED),
        ("AmoebaNet-D (3, 16)", "cifar10", 0.99, NOT),
        ("AmoebaNet-B (18, 512)", "cifar100", 0.99, NOT),
    ],
)
def test_accuracy_needs_the_model_and_the_set(model: str, data: str, value: float, verdict: Verdict) -> None:
    """What the paper's own model does on the paper's own data is no small scale."""
    finding = images.accuracy(
        "CIFAR-10", "accuracy", 0.99, {"table4": [row("accuracy", value, model=model, data=data)]}
    )
    assert finding.verdict is verdict


def test_the_name_of_imagenet_is_shorter() -> None:
    rows = [row("top5", 0.97, model="AmoebaNet-B (18, 512)", data="imagenet")]
    assert images.accuracy("ImageNet-2012", "top-5 accuracy", 0.97, {"table4": rows}).verdict is REPRODUCED


def test_claims_that_the_papers_numbers_bear_out_are_not_tested() -> None:
    for rule, ours in ((images.new_best, "6 of 8"), (images.capacity, "35.6x")):
        finding = rule({})
        assert (finding.verdict, finding.ours, finding.provenance) == (NOT, ours, "published")


@pytest.mark.parametrize(
    ("model", "size", "verdict"),
    [
        ("AmoebaNet-C (6, 228)", 131e6, CONTRADICTED),
        ("AmoebaNet-C (6, 228)", 155e6, NOT),
        ("AmoebaNet-B (18, 512)", 556e6, NOT),
        ("SENet", 146e6, NOT),
    ],
)
def test_sizes_in_the_figure(model: str, size: float, verdict: Verdict) -> None:
    assert images.point(model, size, {}).verdict is verdict


@pytest.mark.parametrize(("gain", "verdict"), [(0.03, SMALL), (0.01, CONTRADICTED), (-0.02, CONTRADICTED)])
def test_transfer(gain: float, verdict: Verdict) -> None:
    rows = [row("fine_tuning_gain", value, spread=0.02, data="x") for value in (0.1, gain)]
    assert images.transfers({"table4": rows}).verdict is verdict


@pytest.mark.parametrize(("of_k4", "verdict"), [(0.815, SMALL), (0.75, CONTRADICTED)])
def test_accuracy_over_k(of_k4: float, verdict: Verdict) -> None:
    rows = [row("accuracy", value, k=k, part="stages") for k, value in ((1, 0.8), (2, 0.8), (4, of_k4))]
    rows += [row("loss_difference", 1e-6, part="stages")]
    rows += [row("accuracy", value, part="sizes", size="small") for value in (0.79, 0.81)]
    assert images.same_for_every_k({"table4": rows}).verdict is verdict
    with pytest.raises(Missing):
        images.same_for_every_k({"table4": rows[1:]})


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.7, 0.8, 0.9), SMALL), ((0.7, 0.8, 0.81), CONTRADICTED), ((0.8, 0.7, 0.9), CONTRADICTED)]
)
def test_larger_is_better(values: tuple[float, ...], verdict: Verdict) -> None:
    rows = [
        row("mean_accuracy", value, spread=0.01, part="sizes", parameters=10**n, data="x")
        for n, value in enumerate(values)
    ]
    assert images.larger_is_better({"table4": rows[::-1]}).verdict is verdict


SIZES = {"base": 1, "wide": 4, "deep": 4, "large": 16}


def models(bleu: dict[str, float], nearest: float = 0.5) -> list[Row]:
    params: dict[str, Any] = {"part": "model", "trained_on": "multilingual"}
    made = [row("average_bleu", nearest, part="model", trained_on="nearest")]
    for size, value in bleu.items():
        about = {**params, "size": size, "parameters": SIZES[size]}
        made += [row("average_bleu", value, model=size, **about), row("nll", 9 - value, model=size, **about)]
    return made


def gains(**by_size: tuple[float, float, float]) -> list[Row]:
    return [
        row("bleu_gain", value, part="group", trained_on="multilingual", size=size, group=group)
        for size, values in by_size.items()
        for group, value in zip(("high", "middle", "low"), values, strict=True)
    ]


@pytest.mark.parametrize(
    ("bleu", "larger", "fewer"),
    [
        ({"base": 1, "wide": 3, "deep": 4, "large": 5}, SMALL, SMALL),
        ({"base": 1, "wide": 2, "deep": 2.5, "large": 5}, SMALL, CONTRADICTED),
        ({"base": 1, "wide": 3, "deep": 4, "large": 3.5}, CONTRADICTED, CONTRADICTED),
        ({"base": 3, "wide": 2, "deep": 4, "large": 5}, CONTRADICTED, CONTRADICTED),
    ],
)
def test_bleu_over_size(bleu: dict[str, float], larger: Verdict, fewer: Verdict) -> None:
    rows = {"figure3": models(bleu)}
    assert translation.larger_is_better(rows).verdict is larger
    assert translation.diminishing(rows).verdict is fewer


def test_bleu_below_a_look_up_of_training_sentences_tells_nothing() -> None:
    rows = {"figure3": models({"base": 1, "wide": 3, "deep": 4, "large": 3.5}, nearest=8.26)}
    finding = translation.larger_is_better(rows)
    assert finding.verdict is translation.diminishing(rows).verdict is NOT
    assert "nearest training sentence (8.26); held-out loss" in finding.in_short and "does not fall" in finding.in_short


@pytest.mark.parametrize(("wide", "verdict"), [((0.5, 0.5, 3.0), SMALL), ((-2.0, 0.5, 3.0), CONTRADICTED)])
def test_four_times_the_size_helps_all(wide: tuple[float, float, float], verdict: Verdict) -> None:
    rows = gains(base=(-1.0, 0.0, 2.0), wide=wide)
    assert translation.helps_all({"figure3": rows}).verdict is verdict


@pytest.mark.parametrize(
    ("large", "verdict"),
    [((0.5, 1.0, 3.0), SMALL), ((3.0, 1.0, 0.5), CONTRADICTED), ((-3.0, -2.0, -1.0), CONTRADICTED)],
)
def test_low_resource_gains_most(large: tuple[float, float, float], verdict: Verdict) -> None:
    assert translation.low_gains_most({"figure3": gains(large=large)}).verdict is verdict


@pytest.mark.parametrize(
    ("deep", "verdict"), [((0.5, 1.0, 4.5), SMALL), ((0.5, 1.0, 3.5), CONTRADICTED), ((2.5, 1.0, 4.5), CONTRADICTED)]
)
def test_deep_against_wide(deep: tuple[float, float, float], verdict: Verdict) -> None:
    rows = gains(wide=(0.0, 1.0, 3.0), deep=deep)
    assert translation.deep_on_low({"figure3": rows}).verdict is verdict
    with pytest.raises(Missing):
        translation.deep_on_low({"figure3": gains(wide=(0.0, 1.0, 3.0))})


@pytest.mark.parametrize(("below", "verdict"), [(0, SMALL), (1, CONTRADICTED)])
def test_beats_bilingual(below: int, verdict: Verdict) -> None:
    rows = [
        row(
            "bleu_gain",
            -1.0 if n < below else 1.0,
            part="language",
            size="large",
            trained_on="multilingual",
            language=n,
        )
        for n in range(6)
    ]
    assert translation.beats_bilingual({"figure3": rows}).verdict is verdict


@pytest.mark.parametrize(
    ("bleu", "nll", "verdict"),
    [((1, 2, 3), (3, 2, 1), SMALL), ((1, 3, 2), (3, 2, 1), CONTRADICTED), ((1, 2, 3), (3, 1, 2), CONTRADICTED)],
)
def test_larger_batches(bleu: tuple[float, ...], nll: tuple[float, ...], verdict: Verdict) -> None:
    held = (["steps"], ["steps", "samples"], ["steps"])
    rows = [
        row(metric, value, batch_size=16 * 4**n, part="model", held_fixed=held[n])
        for metric, values in (("bleu", bleu), ("nll", nll))
        for n, value in enumerate(values)
    ]
    assert translation.larger_batch("steps", {"table5": rows}).verdict is verdict
    with pytest.raises(Missing, match="equal samples"):
        translation.larger_batch("samples", {"table5": rows})


@pytest.mark.parametrize(
    ("without", "steps", "cured", "verdict"),
    [(50.0, 40, 4.0, SMALL), (3.0, 12, 4.0, SMALL), (3.0, 40, 4.0, CONTRADICTED), (50.0, 40, 9.0, CONTRADICTED)],
)
def test_depth(without: float, steps: int, cured: float, verdict: Verdict) -> None:
    """At every learning rate; a run that ended early was no longer finite."""
    rows = []
    runs = (
        (1.5, None, 9.0, 40), (1.5, 10.0, 3.5, 40), (3.0, None, without, steps), (3.0, 10.0, cured, 40)
    )  # fmt: skip
    for rate, clip, loss, finite in runs:
        about: dict[str, Any] = {"part": "run", "learning_rate": rate, "scaled": clip is not None, "clip": clip}
        rows += [row("first_loss", 3.5, steps=finite, **about), row("largest_loss", loss, steps=finite, **about)]
    assert translation.unstable({"depth": rows}).verdict is verdict
    with pytest.raises(Missing, match="with both"):
        translation.unstable({"depth": rows[:2]})
