from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.schedules import Action, Kind, Remat, Schedule, ScheduleError, validate

from .strategies import schedules


def parse(*rows: str, remat: str = "never", placement: tuple[tuple[int, ...], ...] | None = None) -> Schedule:
    """A schedule from one line per rank; ``F0@1`` is F of micro-batch 0 on stage 1, ``F0`` on the rank's own stage."""

    def action(word: str, rank: int) -> Action:
        micro_batch, _, stage = word[1:].partition("@")
        return Action(Kind(word[0]), int(stage or rank), int(micro_batch))

    actions = tuple(tuple(action(word, rank) for word in row.split()) for rank, row in enumerate(rows))
    return Schedule(
        name="hand-made",
        num_stages=len(rows),
        num_micro_batches=1 + max(action.micro_batch for row in actions for action in row),
        num_virtual_stages=1 if placement is None else len(placement) // len(rows),
        remat=Remat(remat),
        placement=placement or tuple((rank,) for rank in range(len(rows))),
        actions=actions,
    )


@pytest.mark.parametrize(
    "schedule",
    [
        parse("F0 F1 B0 B1", "F0 B0 F1 B1"),
        # One rank sends in another order than the next one uses: receives follow the sends, so nothing hangs.
        parse("F0 F1 B1 B0", "F1 F0 B0 B1"),
        # Zero bubble: W of both micro-batches after the last I.
        parse("F0 F1 I0 I1 W0 W1", "F0 I0 F1 I1 W0 W1"),
        # A whole B on one stage, a split one on the other.
        parse("F0 I0 W0", "F0 B0"),
        parse("F0 R0 B0", "F0 R0 B0", remat="always"),
        parse("F0 F1 R0 B0 B1", "F0 R0 B0 F1 B1", remat="except_last"),
        # V shape: the last stage is on rank 0, and its message to itself needs no channel.
        parse("F0@0 F0@3 B0@3 B0@0", "F0@1 F0@2 B0@2 B0@1", placement=((0,), (1,), (1,), (0,))),
        # Two ranks hold copies of both stages, one micro-batch goes down and the other one up.
        parse("F0@0 F1@1 B1@1 B0@0", "F1@0 F0@1 B0@1 B1@0", placement=((0, 1), (1, 0))),
    ],
)
def test_valid(schedule: Schedule) -> None:
    validate(schedule)


@given(schedules())
def test_accepts_every_order_that_runs(schedule: Schedule) -> None:
    validate(schedule)


@pytest.mark.parametrize(
    ("schedule", "parts"),
    [
        (parse("F0 B0", "F0"), ["stage 1, micro-batch 0", "B is missing", "they are F"]),
        (parse("F0 F1 B1", "F0 F1 B1 B0"), ["stage 0, micro-batch 0", "B is missing"]),
        (parse("F1 B1", "F0 F1 B1 B0"), ["stage 0, micro-batch 0", "they are none"]),
        (parse("F0 I0", "F0 B0"), ["stage 0", "W is missing"]),
        (parse("F0 W0", "F0 B0"), ["stage 0", "I is missing"]),
        (parse("F0 B0", "F0 F0 B0"), ["stage 1", "F is there twice"]),
        (parse("F0 B0 B0", "F0 B0"), ["stage 0", "B is there twice"]),
        (parse("F0 B0 W0", "F0 B0"), ["stage 0", "W does not belong here"]),
        (parse("B0 F0", "F0 B0"), ["stage 0", "wrong order"]),
        (parse("F0 W0 I0", "F0 B0"), ["stage 0", "wrong order"]),
        (parse("F0 R0 B0", "F0 B0"), ["stage 0", "R does not belong here", "remat='never'"]),
        (parse("F0 R0 B0", "F0 B0", remat="always"), ["stage 1", "R is missing", "remat='always'"]),
        (parse("F0 B0 R0", "F0 R0 B0", remat="always"), ["stage 0", "wrong order"]),
        (parse("F0 R0 B0", "F0 R0 B0", remat="except_last"), ["R does not belong here", "remat='except_last'"]),
        (parse("F0 B0 F0@1", "B0"), ["rank 0", "F0@1", "does not hold stage 1"]),
        (parse("F0 B0", "F0 B0", placement=((0,), (2,))), ["stage 1", "[2]", "from 0 to 1"]),
        (parse("F0 B0", "F0 B0", placement=((0,), ())), ["stage 1", "[]"]),
        (parse("F0 B0@0", "B0@1", placement=((0, 1), (1, 0))), ["stage 1", "they are B", "F is missing"]),
        (parse("F0@0 F0@1 B0@1", "B0@0", placement=((0, 1), (0,))), ["micro-batch 0", "split over ranks 0 and 1"]),
        (parse("F0@2 B0@2", "F0 B0"), ["no action of 2 stages"]),
    ],
)
def test_broken(schedule: Schedule, parts: list[str]) -> None:
    with pytest.raises(ScheduleError) as caught:
        validate(schedule)
    for part in [*parts, "'hand-made'"]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "parts"),
    [
        # Rank 1 wants micro-batch 1 first, but rank 0 sends it only after the gradient of micro-batch 0.
        (
            parse("F0 B0 F1 B1", "F1 F0 B0 B1"),
            ["rank 0 at B0@0 waits for B0@1", "rank 1 at F1@1 waits for F1@0"],
        ),
        # The same in the other direction: the gradient of 1 is asked for first, made after F2 has come.
        (
            parse("F0 F1 B1 F2 B0 B2", "F0 B0 F1 F2 B1 B2"),
            ["rank 0 at B1@0 waits for B1@1", "rank 1 at F2@1 waits for F2@0"],
        ),
        # A split backward is named by its I.
        (
            parse("F0 B0 F1 B1", "F1 F0 I0 W0 I1 W1"),
            ["rank 0 at B0@0 waits for I0@1", "rank 1 at F1@1 waits for F1@0"],
        ),
        # Three ranks in a circle.
        (
            parse("F0 B0 F1 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"),
            ["rank 0 at B0@0 waits for", "rank 1 at F1@1 waits for F1@0", "rank 2 at F1@2 waits for F1@1"],
        ),
        # Two stages on one rank, the later one first.
        (parse("F0@1 F0@0 B0@1 B0@0", placement=((0,), (0,))), ["rank 0 at F0@1 waits for F0@0"]),
    ],
)
def test_deadlock(schedule: Schedule, parts: list[str]) -> None:
    with pytest.raises(ScheduleError, match="would hang") as caught:
        validate(schedule)
    for part in parts:
        assert part in str(caught.value)


@given(schedule=schedules(), data=st.data())
def test_no_action_can_be_left_out_or_repeated(schedule: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from([rank for rank, actions in enumerate(schedule.actions) if actions]))
    actions = schedule.actions[rank]
    index = data.draw(st.integers(0, len(actions) - 1))
    target = data.draw(st.integers(0, len(actions)))
    without = actions[:index] + actions[index + 1 :]
    repeated = (*actions[:target], actions[index], *actions[target:])
    for broken in (without, repeated):
        with pytest.raises(ScheduleError):
            validate(
                dataclasses.replace(schedule, actions=(*schedule.actions[:rank], broken, *schedule.actions[rank + 1 :]))
            )


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"num_stages": 3}, "actions for 2 ranks, but num_stages=3"),
        ({"num_virtual_stages": 2}, "places 2 stages, but num_stages=2 times num_virtual_stages=2 is 4"),
    ],
)
def test_sizes_that_contradict_each_other(change: dict[str, int], part: str) -> None:
    with pytest.raises(ScheduleError, match=part):
        validate(dataclasses.replace(parse("F0 B0", "F0 B0"), **change))


def test_a_kind_must_be_a_kind() -> None:
    broken = dataclasses.replace(parse("F0 B0"), actions=((("F", 0, 0), ("B", 0, 0)),))
    with pytest.raises(ScheduleError, match="kind one of F, R, B, I, W"):
        validate(broken)
