from __future__ import annotations

import pytest

from repro.report.timeline import draw
from repro.schedules import make_schedule, simulate


def lines(width: int = 160, costs: tuple[float, float, float] = (1, 2, 1), **sizes: object) -> list[str]:
    arguments = {"num_stages": 2, "num_micro_batches": 2, **sizes}
    return draw(simulate(make_schedule("gpipe", **arguments), *costs), width).splitlines()


def test_labels_where_there_is_room() -> None:
    assert lines(remat="always") == [
        "rank 0  F0 F1 R1 .........B1--- R0 B0--- ",
        "rank 1  ...F0 F1 R1 B1--- R0 B0--- ......",
    ]


def test_letters_tell_virtual_stages_apart() -> None:
    assert lines(num_micro_batches=1, num_virtual_stages=2, costs=(1, 1, 1)) == [
        "rank 0  F0a ....F0b ........B0b ....B0a ",
        "rank 1  ....F0a ....F0b B0b ....B0a ....",
    ]


def test_kinds_only_where_there_is_not() -> None:
    assert lines(width=8 + 9) == [
        "rank 0  FF...BBBB",
        "rank 1  .FFBBBB..",
    ]


def test_the_width_is_kept() -> None:
    for width in range(20, 200, 7):
        for row in lines(width=width, num_stages=3, num_micro_batches=7):
            assert len(row) <= width


@pytest.mark.parametrize("width", [17, 200])
def test_unequal_costs_are_drawn_to_scale(width: int) -> None:
    schedule = make_schedule("gpipe", num_stages=1, num_micro_batches=1)
    row = draw(simulate(schedule, forward=3, backward=6), width)
    body = row.removeprefix("rank 0  ")
    assert body.index("B") * 2 == len(body) - body.index("B")


def test_actions_without_cost_are_not_drawn() -> None:
    assert lines(num_stages=1, remat="always", costs=(1, 2, 0)) == ["rank 0  F0 F1 B1--- B0--- "]
    assert lines(width=30, num_stages=1, costs=(0, 0, 0)) == ["rank 0  " + "." * 22]


def test_rank_names_are_aligned() -> None:
    rows = lines(num_stages=11, num_micro_batches=1, width=200)
    assert rows[9].startswith("rank 9   ")
    assert rows[10].startswith("rank 10  ")
    assert len({len(row) for row in rows}) == 1
