"""The recorder: what ran, in the order of the schedule, on a clock that all ranks share."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
import torch

from repro.gpipe import Event, Transfer
from repro.gpipe.clocks import gather_trace
from repro.gpipe.mesh import PipelineMesh
from repro.gpipe.tracing import CudaClock, HostClock, Recorder, clocks_for
from repro.schedules import Action, Kind, Message
from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, make_engine
from tests.helpers.ranks import Pools

Actions = list[list[tuple[str, int, int]]]


def trace(rank: int, world_size: int, remat: str, local: bool = False) -> tuple[list[Event], Actions]:
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


def transfers(rank: int, world_size: int) -> tuple[list[Transfer], list[Event]]:
    """Both sides of all messages of a step, and its actions, on the first rank."""
    mesh = PipelineMesh(world_size)
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 4, "always"), spec.layers(), mesh, trace=True)
    for counter in range(2):
        engine.train_step(*(spec.batch(8, counter) if rank == 0 else (None, None)), batch_counter=counter)
    found = gather_trace(engine.recorder, mesh)
    engine.close()
    mesh.close()
    return list(found.transfers), list(found.actions)


def test_both_sides_of_every_message_are_recorded(pools: Pools) -> None:
    (moved, actions), *others = pools(3).run(transfers)
    assert others == [([], [])] * 2
    expected = {("activation", stage, stage + 1, part) for stage in range(2) for part in range(4)}
    expected |= {("gradient", stage + 1, stage, part) for stage in range(2) for part in range(4)}
    sent = {transfer.message: transfer for transfer in moved if transfer.side == "send"}
    received = {transfer.message: transfer for transfer in moved if transfer.side == "receive"}
    assert set(sent) == set(received) == expected
    assert len(moved) == 2 * len(expected)
    ran = {(event.kind, event.stage, event.micro_batch): event for event in actions}
    for message, transfer in sent.items():
        direction, source, target, part = message
        arrival = received[message]
        kind = "F" if direction == "activation" else "B"
        assert (transfer.rank, arrival.rank) == (source, target)
        # Two rows of six float64.
        assert transfer.num_bytes == arrival.num_bytes == 2 * 6 * 8
        assert ran[kind, source, part].end <= transfer.start <= transfer.end
        assert transfer.start <= arrival.end <= ran[kind, target, part].start
        assert arrival.start <= arrival.end


class Stub:
    """A CUDA event of a device whose clock runs in milliseconds, and starts somewhere else than the host's."""

    now = 5000.0

    def __init__(self) -> None:
        self.at: float | None = None
        self.waited_for = False

    def record(self, stream: object) -> None:
        self.at = Stub.now

    def synchronize(self) -> None:
        self.waited_for = True

    def elapsed_time(self, later: Stub) -> float:
        assert self.at is not None and later.at is not None and later.waited_for
        return later.at - self.at


def test_marks_of_a_gpu_are_placed_on_the_clock_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 70.0)
    stopped: list[torch.device] = []
    device = torch.device("cpu")
    clock = CudaClock(device, Stub, stopped.append)
    recorder = Recorder([clock, clock])
    recorder.clear()
    assert stopped == [device]  # once for both stages
    message = Message("activation", 0, 1, 3)
    with recorder.receiving(1, message) as carried:
        carried.note((torch.zeros(3), None))
        Stub.now += 2.0
    with recorder.running(1, Action(Kind.FORWARD, 1, 3)):
        Stub.now += 4.0
    with recorder.sending(1, Message("activation", 1, 2, 3)):
        Stub.now += 1.0
    (event,) = recorder.events
    assert (event.rank, event.kind, event.stage, event.micro_batch) == (1, "F", 1, 3)
    assert [event.waited, event.start, event.end] == pytest.approx([0.002, 70.002, 70.006])
    received, sent = recorder.transfers
    assert (received.side, received.num_bytes, sent.side) == ("receive", 12, "send")
    assert [received.start, received.end, sent.start, sent.end] == pytest.approx([70.0, 70.002, 70.006, 70.007])


def test_stages_on_the_same_device_share_a_clock() -> None:
    cpu, first, second = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    clocks = clocks_for([cpu, first, second, first])
    assert clocks[1] is clocks[3]
    assert len({id(clock) for clock in clocks}) == 3
    assert [type(clock) for clock in clocks] == [HostClock, CudaClock, CudaClock, CudaClock]


def test_what_fails_is_not_recorded() -> None:
    recorder = Recorder([HostClock()])
    with pytest.raises(KeyError), recorder.running(0, Action(Kind.FORWARD, 0, 0)):
        raise KeyError
    assert recorder.events == []


def test_events_are_plain_data() -> None:
    events, _ = trace(0, 2, "always", True)
    assert json.loads(json.dumps(events[0].as_dict()))["kind"] == "F"


def test_nothing_is_recorded_unless_asked() -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", 2, 4), spec.layers())
    engine.train_step(*spec.batch(8, 0), batch_counter=0)
    assert engine.events == []
    assert engine.recorder.transfers == []
