from __future__ import annotations

import pytest

from repro.datasets.paper import published
from repro.errors import UserError
from repro.experiments.costs.accelerators import accelerator_names, find_accelerator, find_link, link_names
from repro.experiments.costs.full_models import amoebanet_d
from repro.experiments.costs.layer_costs import counted_flops


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_says_where_its_numbers_come_from(name: str) -> None:
    accelerator = find_accelerator(name)
    assert accelerator.name == name and accelerator.description and accelerator.source and accelerator.efficiency_source
    assert accelerator.link in link_names()
    for family in ("amoebanet", "transformer"):
        assert 0 < accelerator.rate(family) <= accelerator.peak


@pytest.mark.parametrize("name", link_names())
def test_every_link_can_carry_something(name: str) -> None:
    link = find_link(name)
    assert (link.name, link.latency > 0) == (name, True)
    assert link.occupancy(link.bandwidth) == pytest.approx(1.0)


def test_a_number_of_the_user_takes_the_place_of_the_table() -> None:
    link = find_link("pcie3", bandwidth=2.0, latency=3.0)
    assert (link.name, link.bandwidth, link.latency) == ("pcie3, changed", 2e9, pytest.approx(3e-6))


def test_the_efficiency_of_the_p40_is_that_of_torchgpipe() -> None:
    """Every row costs F and B, and for 31 of 32 micro-batches R; 1 of 33 slots of each GPU is idle."""
    cell = next(row for row in published("torchgpipe_speed") if row["configuration"] == "n=2 m=32")
    costs = counted_flops(amoebanet_d(256, "p40"))
    flops = sum(costs.forward) * (1 + 31 / 32) + sum(costs.backward)
    reached = float(cell["samples_per_second"] or 0) * flops / 2 * 33 / 32
    p40 = find_accelerator("p40")
    assert reached / p40.peak == pytest.approx(p40.efficiency["amoebanet"], abs=0.01)


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [("accelerator", "tpu-v9", "did you mean tpu-v"), ("link", "nvlink", "did you mean nvlink")],
)
def test_unknown_names_are_told_with_the_nearest_known_one(option: str, name: str, words: str) -> None:
    find = find_accelerator if option == "accelerator" else find_link
    with pytest.raises(UserError, match=f"--{option} {name}: unknown; {words}"):
        find(name)
