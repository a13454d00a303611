from __future__ import annotations

from hypothesis import given

from repro.schedules import (
    Action,
    Kind,
    Message,
    Remat,
    Schedule,
    edges,
    forward_only,
    incoming,
    make_schedule,
    merged_order,
    validate,
)

from .strategies import needs, schedules
from .test_validate import parse


def test_gpipe_sends_forwards_down_and_gradients_up_in_reverse() -> None:
    schedule = make_schedule("gpipe", num_stages=3, num_micro_batches=2, remat="always")
    assert incoming(schedule, 0) == {
        (1, "gradient"): (Message("gradient", 1, 0, 1), Message("gradient", 1, 0, 0)),
    }
    assert incoming(schedule, 1) == {
        (0, "activation"): (Message("activation", 0, 1, 0), Message("activation", 0, 1, 1)),
        (2, "gradient"): (Message("gradient", 2, 1, 1), Message("gradient", 2, 1, 0)),
    }
    assert incoming(schedule, 2) == {
        (1, "activation"): (Message("activation", 1, 2, 0), Message("activation", 1, 2, 1)),
    }


def test_two_stages_on_one_rank_need_no_message() -> None:
    v_shape = parse("F0@0 F0@3 B0@3 B0@0", "F0@1 F0@2 B0@2 B0@1", placement=((0,), (1,), (1,), (0,)))
    assert edges(v_shape) == {
        (0, 1, "activation"): (Message("activation", 0, 1, 0),),
        (1, 0, "activation"): (Message("activation", 2, 3, 0),),
        (0, 1, "gradient"): (Message("gradient", 3, 2, 0),),
        (1, 0, "gradient"): (Message("gradient", 1, 0, 0),),
    }
    assert edges(make_schedule("gpipe", num_stages=1, num_micro_batches=3, num_virtual_stages=4)) == {}


def test_the_order_is_the_senders() -> None:
    schedule = parse("F0 F1 B1 B0", "F1 F0 B0 B1")
    assert [message.micro_batch for message in incoming(schedule, 1)[0, "activation"]] == [0, 1]
    assert [message.micro_batch for message in incoming(schedule, 0)[1, "gradient"]] == [0, 1]


def test_several_stages_share_a_channel_in_program_order() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=2, num_virtual_stages=2)
    assert incoming(schedule, 1)[0, "activation"] == (
        Message("activation", 0, 1, 0),
        Message("activation", 0, 1, 1),
        Message("activation", 2, 3, 0),
        Message("activation", 2, 3, 1),
    )


def test_with_copies_of_a_stage_messages_go_to_the_rank_that_runs_the_micro_batch() -> None:
    both_ways = parse("F0@0 F1@1 B1@1 B0@0", "F1@0 F0@1 B0@1 B1@0", placement=((0, 1), (1, 0)))
    assert edges(both_ways) == {
        (0, 1, "activation"): (Message("activation", 0, 1, 0),),
        (1, 0, "activation"): (Message("activation", 0, 1, 1),),
        (0, 1, "gradient"): (Message("gradient", 1, 0, 1),),
        (1, 0, "gradient"): (Message("gradient", 1, 0, 0),),
    }


@given(schedules())
def test_every_crossing_is_one_message(schedule: Schedule) -> None:
    owner = {action: rank for rank, actions in enumerate(schedule.actions) for action in actions}
    expected = set()
    for action, rank in owner.items():
        for needed in needs(action, schedule.total_stages, set(owner)):
            if owner[needed] != rank:
                direction = "activation" if needed.kind is Kind.FORWARD else "gradient"
                message = Message(direction, needed.stage, action.stage, action.micro_batch)
                expected.add((owner[needed], rank, message))
    found = [
        (source, rank, message)
        for rank in range(schedule.num_stages)
        for (source, direction), messages in incoming(schedule, rank).items()
        for message in messages
        if message.direction == direction
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected


@given(schedules())
def test_forward_only_keeps_every_forward_in_order(schedule: Schedule) -> None:
    evaluation = forward_only(schedule)
    for before, after in zip(schedule.actions, evaluation.actions, strict=True):
        assert [action for action in before if action.kind is Kind.FORWARD] == list(after)
    assert evaluation.remat is Remat.NEVER
    assert evaluation.placement == schedule.placement
    activations = {key: value for key, value in edges(schedule).items() if key[2] == "activation"}
    assert edges(evaluation) == activations


@given(schedules())
def test_merged_order_runs_everything_after_what_it_needs(schedule: Schedule) -> None:
    validate(schedule)
    for plan in (schedule, forward_only(schedule)):
        order = merged_order(plan)
        for rank, actions in enumerate(plan.actions):
            assert [action for of_rank, action in order if of_rank == rank] == list(actions)
        kinds = {action for _, action in order}
        done: set[Action] = set()
        for _, action in order:
            assert set(needs(action, plan.total_stages, kinds)) <= done
            done.add(action)


def test_merged_order_follows_the_clock() -> None:
    schedule = make_schedule("gpipe", num_stages=2, num_micro_batches=2)
    assert [f"{rank}:{action}" for rank, action in merged_order(schedule)] == (
        ["0:F0@0", "0:F1@0", "1:F0@1", "1:F1@1", "1:B1@1", "0:B1@0", "1:B0@1", "0:B0@0"]
    )


def test_gradients_come_from_whole_and_split_backwards() -> None:
    schedule = parse("F0 F1 B0 B1", "F0 B0 F1 I1 W1")
    assert [message.micro_batch for message in incoming(schedule, 0)[1, "gradient"]] == [0, 1]
