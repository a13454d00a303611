"""From pixels to inputs."""

from __future__ import annotations

import pytest
import torch

from repro.datasets.transforms import Cutout, Preparation


def prepared(preparation: Preparation, image: torch.Tensor, *, training: bool = False) -> torch.Tensor:
    found: torch.Tensor = preparation.each_time(training=training)(preparation.fixed(training=training)(image))
    return found


def test_what_is_scaled_is_what_division_gives() -> None:
    """Bit for bit: committed results come from it."""
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    found = prepared(Preparation(16, fit="pad", mean=(0.2860,), std=(0.3530,)), image)
    assert torch.equal(found, (image / 255 - 0.2860) / 0.3530)


def test_each_channel_has_its_own_statistics() -> None:
    image = torch.full((3, 4, 4), 51, dtype=torch.uint8)
    found = prepared(Preparation(4, mean=(0.0, 0.1, 0.2), std=(1.0, 2.0, 4.0)), image)
    assert found[:, 0, 0].tolist() == [pytest.approx(0.2), pytest.approx(0.05), pytest.approx(0.0)]


def test_resizing_stretches_and_cropping_keeps_the_centre() -> None:
    image = torch.zeros(1, 64, 128, dtype=torch.uint8)
    image[:, :, 32:96] = 255  # the middle half is white
    options = {"mean": (0.0,), "std": (1.0,)}
    stretched = prepared(Preparation(32, fit="resize", **options), image)
    assert stretched.shape == (1, 32, 32)
    assert [stretched[0, 16, column].item() for column in (2, 16, 29)] == [0.0, 1.0, 0.0]
    assert prepared(Preparation(32, fit="crop", **options), image).min() == 1.0
    torch.manual_seed(0)
    cut = [prepared(Preparation(32, fit="crop", **options), image, training=True) for _ in range(8)]
    assert {tuple(part.shape) for part in cut} == {(1, 32, 32)}
    assert len({part.mean().item() for part in cut}) > 1


def test_cutout_blanks_one_square_that_may_reach_over_the_border() -> None:
    torch.manual_seed(0)
    rows, areas = torch.zeros(12, dtype=torch.bool), set()
    for _ in range(300):
        blank = Cutout(4)(torch.ones(2, 12, 12)) == 0
        assert torch.equal(blank[0], blank[1])
        down, across = blank[0].any(dim=1), blank[0].any(dim=0)
        assert torch.equal(blank[0], down[:, None] & across[None, :])
        area = int(blank[0].sum())
        areas.add(area)
        rows |= down
    assert rows.all() and max(areas) == 16 and min(areas) == 4, "at a corner a quarter of it is left"


def test_cutout_and_mirroring_are_for_training() -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    image[:, :, 0] = 255
    preparation = Preparation(8, augment=True, cutout=4)
    torch.manual_seed(0)
    assert len({prepared(preparation, image).sum().item() for _ in range(8)}) == 1
    found = [prepared(preparation, image, training=True) for _ in range(40)]
    left, right = (sum(bool((part[0, :, side] == 1.0).any()) for part in found) for side in (0, -1))
    assert left > 5 and right > 5 and all((part == 0.0).any() for part in found)
