"""Every config loads, makes its model and data, and says where each value comes from."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.datasets.image_sets import REAL_SETS
from repro.datasets.paper import published
from repro.gpipe import GPipeStrategy
from repro.gpipe.building import choose_partition, make_skeletons
from repro.tasks.cli import ReproCLI, quiet
from repro.tasks.image_classification import ImageClassification

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OVERLAYS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.name != "base.yaml")
PLAIN = ["--trainer.accelerator", "cpu", "--trainer.logger", "false"]


# What a model's layers, and so its partition, do not depend on (the classifier has hardly a cost).
OF_TRAINING = {
    "optimizer", "learning_rate", "weight_decay", "momentum", "second_momentum", "epsilon", "schedule", "warmup_steps",
    "decay_rate", "decay_steps", "label_smoothing", "bn_momentum", "dropout", "drop_path", "init_from", "num_classes",
}  # fmt: skip


def stack(overlay: Path) -> list[Path]:
    """The files that an overlay says that it goes on top of, and itself."""
    found = re.search(r"[Oo]n top of (\w+\.yaml)(?: and (\w+\.yaml))?", overlay.read_text())
    assert found, f"{overlay} does not say what it goes on top of"
    return [overlay.parent / name for name in found.groups() if name] + [overlay]


def load(*paths: Path, devices: str | None = None) -> ReproCLI:
    words = [word for path in paths for word in ("--config", str(path))]
    with quiet():
        return ReproCLI([*words, *PLAIN, *(["--trainer.devices", devices] if devices else [])], run=False)


@pytest.mark.parametrize("base", sorted(CONFIGS.glob("*/base.yaml")), ids=lambda path: path.parent.name)
def test_base_loads(base: Path) -> None:
    cli = load(base, devices="1")
    strategy = cli.trainer.strategy
    assert isinstance(strategy, GPipeStrategy)
    strategy.check(cli.model)


@pytest.fixture(scope="module")
def partitioned() -> set[str]:
    """Models and numbers of stages that have been cut already."""
    return set()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_overlay_loads_and_fits_together(overlay: Path, partitioned: set[str]) -> None:
    cli = load(*stack(overlay))
    strategy = cli.trainer.strategy
    assert isinstance(strategy, GPipeStrategy)
    strategy.check(cli.model)
    data = cli.config.data.init_args
    model = cli.config.model.init_args
    rows = data.batch_size
    if data.get("batch_tokens") is not None:  # of the longest rows, each with an end piece on both sides
        rows = data.batch_tokens // (data.max_source + data.max_target + 2)
    assert rows >= strategy.num_micro_batches
    of_layers = {name: value for name, value in vars(model).items() if name not in OF_TRAINING}
    options = cli.config.trainer.strategy.init_args
    cut = repr((type(cli.model), of_layers, strategy.num_stages, options.num_virtual_stages))
    if cut not in partitioned:
        partitioned.add(cut)
        check_partition(cli)
    for shared in ("image_size", "vocab_size"):
        if shared in data:
            assert data[shared] == model[shared]
    if model.schedule != "constant" and cli.trainer.max_steps > 0:
        assert model.warmup_steps < cli.trainer.max_steps


def check_partition(cli: ReproCLI) -> None:
    """The model is made on the meta device, and its layers are cut into the configured stages."""
    strategy = cli.trainer.strategy
    skeletons = make_skeletons(cli.model.layers())
    assert all(parameter.is_meta for skeleton in skeletons for parameter in skeleton.parameters())
    options = cli.config.trainer.strategy.init_args
    chosen, _, _ = choose_partition(
        options.partition,
        skeletons,
        strategy.num_stages * options.num_virtual_stages,
        example=cli.model.example_inputs,
        timed=lambda inputs: [1.0] * len(skeletons),
    )
    assert sum(chosen) == len(skeletons) and min(chosen) >= 1


@pytest.mark.parametrize("name", sorted(REAL_SETS))
def test_runs_by_epochs_count_their_steps(name: str) -> None:
    """ImageNet and the sets to fine-tune on: as many classes and steps as Table 4's sizes make."""
    stem = "imagenet_557m" if name == "imagenet" else name.replace("-", "_")
    config = load(*stack(CONFIGS / "amoebanet" / f"{stem}.yaml")).config
    model, data = config.model.init_args, config.data.init_args
    (row,) = (row for row in published("table4") if row["dataset"] == REAL_SETS[name].title)
    assert (data.dataset, model.num_classes, model.in_channels) == (name, row["classes"], 3)
    steps = math.ceil((row["train_images"] - data.validation) / data.batch_size)
    assert (model.warmup_steps, model.decay_steps) == (3 * steps, 2 * steps)
    assert config.trainer.max_epochs > 3


def test_amoebanet_of_table_4_has_its_size() -> None:
    """557 million without the auxiliary classifier, which the paper does not count."""
    cli = load(*stack(CONFIGS / "amoebanet/imagenet_557m.yaml"))
    layers = ImageClassification(**{**cli.config.model.init_args, "aux_head": False}).layers()
    parameters = sum(parameter.numel() for layer in make_skeletons(layers) for parameter in layer.parameters())
    (paper,) = (row for row in published("partitions") if row["model"] == "AmoebaNet-B (18, 512)")
    assert parameters == pytest.approx(paper["parameters"], rel=1e-3)
    assert cli.trainer.strategy.num_stages == paper["num_partitions"]


@pytest.mark.parametrize(
    ("overlay", "model"),
    [
        ("400m", "T(6, 8192, 16)"),
        ("1_3b_wide", "T(12, 16384, 32)"),
        ("1_3b_deep", "T(24, 8192, 16)"),
        ("3b", "T(32, 16384, 32)"),
        ("6b", "T(64, 16384, 32)"),
    ],
)
def test_transformers_of_the_paper_have_its_size_and_partitions(overlay: str, model: str) -> None:
    folder = CONFIGS / "transformer"
    cli = load(folder / "base.yaml", folder / f"{overlay}.yaml")
    found = sum(parameter.numel() for made in make_skeletons(cli.model.layers()) for parameter in made.parameters())
    (counted,) = (
        row
        for row in published("transformer_counts")
        if row["model"] == model and row["kind"] == "two embedding tables"
    )
    assert found == pytest.approx(counted["parameters"], rel=0.01)
    partitions = [row["num_partitions"] for row in published("partitions") if row["model"] == model]
    assert [cli.trainer.strategy.num_stages] == (partitions or [1])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_value_has_its_source_or_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if re.match(r"\s*[\w]+: *[^\s#]", line) and "class_path:" not in line:
            assert re.search(r" # \w", line), f"{path.name}:{number} has a value without a comment: {line}"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_overlays_repeat_nothing(overlay: Path) -> None:
    below: dict[str, Any] = {}
    for path in stack(overlay)[:-1]:
        below = merged(below, yaml.safe_load(path.read_text()))

    def repeated(small: dict[str, Any], large: dict[str, Any], where: str) -> list[str]:
        found = []
        for key, value in small.items():
            if isinstance(value, dict):
                found += repeated(value, large.get(key, {}), f"{where}{key}.")
            elif key in large and large[key] == value and type(large[key]) is type(value):
                found.append(where + key)
        return found

    assert repeated(yaml.safe_load(overlay.read_text()), below, "") == []


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = merged(below[key], above[key])
    return both
