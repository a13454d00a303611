"""Every config loads, makes its model and data, and says where each value comes from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.gpipe import GPipeStrategy
from repro.tasks.cli import ReproCLI, quiet

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OVERLAYS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.name != "base.yaml")
PLAIN = ["--trainer.accelerator", "cpu", "--trainer.logger", "false"]


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


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_overlay_loads_and_fits_together(overlay: Path) -> None:
    cli = load(overlay.parent / "base.yaml", overlay)
    strategy = cli.trainer.strategy
    assert isinstance(strategy, GPipeStrategy)
    strategy.check(cli.model)
    data = cli.config.data.init_args
    model = cli.config.model.init_args
    assert data.batch_size >= strategy.num_micro_batches
    for shared in ("image_size", "vocab_size"):
        if shared in data:
            assert data[shared] == model[shared]
    if model.schedule != "constant":
        assert model.warmup_steps < cli.trainer.max_steps


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_value_has_its_source_or_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if re.match(r"\s*[\w]+: *[^\s#]", line) and "class_path:" not in line:
            assert re.search(r" # \w", line), f"{path.name}:{number} has a value without a comment: {line}"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_overlays_repeat_nothing(overlay: Path) -> None:
    base = yaml.safe_load((overlay.parent / "base.yaml").read_text())

    def repeated(small: dict[str, Any], large: dict[str, Any], where: str) -> list[str]:
        found = []
        for key, value in small.items():
            if isinstance(value, dict):
                found += repeated(value, large.get(key, {}), f"{where}{key}.")
            elif key in large and large[key] == value and type(large[key]) is type(value):
                found.append(where + key)
        return found

    assert repeated(yaml.safe_load(overlay.read_text()), base, "") == []
