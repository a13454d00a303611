"""The recorder: what ran, in the order of the schedule, on a clock that all ranks share."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from repro.gpipe import Event
from repro.gpipe.mesh import PipelineMesh
from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, make_engine
from tests.helpers.ranks import Pools


def trace(rank: int, world_size: int, remat: str, local: bool = False) -> tuple[list[Event], list[list[tuple]]]:
    """The events of the second of two steps, and the schedule's actions by rank."""
    mesh = None if local else PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 4, remat), spec.layers(), mesh, trace=True)
    for counter in range(2):
        engine.train_step(*(spec.batch(8, counter) if rank == 0 else (None, None)), batch_counter=counter)
    actions = [[(str(a.kind), a.stage, a.micro_batch) for a in actions] for actions in engine.schedule().actions]
    engine.close()
    if mesh is not None:
        mesh.close()
    return engine.events, actions


@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
@pytest.mark.parametrize("way", ["local", "processes"])
def test_events_are_the_actions_of_the_schedule_in_order(way: str, remat: str, pools: Pools) -> None:
    by_rank = [trace(0, 3, remat, True)] if way == "local" else pools(3).run(trace, remat)
    events = [event for seen, _ in by_rank for event in seen]
    for rank, actions in enumerate(by_rank[0][1]):
        own = [event for event in events if event.rank == rank]
        assert [(event.kind, event.stage, event.micro_batch) for event in own] == actions
        assert all(event.start <= event.end and event.waited >= 0 for event in own)
        assert all(first.end <= second.start for first, second in pairwise(own))
    # Across ranks too nothing starts before what it needs has ended: the clock is one.
    ended = {(event.kind, event.stage, event.micro_batch): event.end for event in events}
    for event in events:
        if event.kind == "F" and event.stage > 0:
            assert ended["F", event.stage - 1, event.micro_batch] <= event.start
        if event.kind == "B" and event.stage < 2:
            assert ended["B", event.stage + 1, event.micro_batch] <= event.start


def test_events_are_plain_data() -> None:
    events, _ = trace(0, 2, "always", True)
    assert json.loads(json.dumps(events[0].as_dict()))["kind"] == "F"


def test_nothing_is_recorded_unless_asked() -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 4), spec.layers())
    engine.train_step(*spec.batch(8, 0), batch_counter=0)
    assert engine.events == []
