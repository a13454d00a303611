from __future__ import annotations

import pytest

from repro.schedules import Remat, Schedule, make_schedule


def rows(schedule: Schedule) -> list[str]:
    """One line per rank, like ``F0 F1 B1 B0``; with several stages per rank, like ``F0@2``."""
    virtual = schedule.num_virtual_stages > 1
    return [
        " ".join(str(action) if virtual else str(action).split("@")[0] for action in actions)
        for actions in schedule.actions
    ]


@pytest.mark.parametrize(
    ("sizes", "remat", "expected"),
    [
        ((3, 2, 1), "never", ["F0 F1 B1 B0"] * 3),
        ((2, 3, 1), "always", ["F0 F1 F2 R2 B2 R1 B1 R0 B0"] * 2),
        ((2, 3, 1), "except_last", ["F0 F1 F2 B2 R1 B1 R0 B0"] * 2),
        ((2, 1, 1), "never", ["F0 B0"] * 2),
        ((2, 1, 1), "except_last", ["F0 B0"] * 2),
        ((1, 2, 1), "never", ["F0 F1 B1 B0"]),
        (
            (2, 2, 2),
            "never",
            [
                "F0@0 F1@0 F0@2 F1@2 B1@2 B0@2 B1@0 B0@0",
                "F0@1 F1@1 F0@3 F1@3 B1@3 B0@3 B1@1 B0@1",
            ],
        ),
    ],
)
def test_order(sizes: tuple[int, int, int], remat: str, expected: list[str]) -> None:
    num_stages, num_micro_batches, num_virtual_stages = sizes
    schedule = make_schedule(
        "gpipe",
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
    )
    assert rows(schedule) == expected
    assert schedule.total_stages == num_stages * num_virtual_stages
    assert schedule.placement == tuple((stage % num_stages,) for stage in range(schedule.total_stages))


@pytest.mark.parametrize(
    ("remat", "recomputed"),
    [(Remat.ALWAYS, [True, True, True]), (Remat.EXCEPT_LAST, [True, True, False]), (Remat.NEVER, [False] * 3)],
)
def test_remat_names_the_micro_batches(remat: Remat, recomputed: list[bool]) -> None:
    assert [remat.recomputes(micro_batch, 3) for micro_batch in range(3)] == recomputed


def test_every_size_passes_the_validator() -> None:
    for num_stages in range(1, 9):
        for num_micro_batches in range(1, 17):
            for num_virtual_stages in range(1, 4):
                for remat in Remat:
                    make_schedule(
                        "gpipe",
                        num_stages=num_stages,
                        num_micro_batches=num_micro_batches,
                        num_virtual_stages=num_virtual_stages,
                        remat=remat,
                    )
