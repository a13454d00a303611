"""Clocks of ranks that differ are read as that of the first rank."""

from __future__ import annotations

import time

import pytest

from repro.gpipe import Event, Trace, Transfer
from repro.gpipe.clocks import Offset, clock_offset, moved
from repro.gpipe.mesh import PipelineMesh
from tests.helpers.ranks import Pools

AHEAD = 1000.0


def offset(rank: int, world_size: int, machines: int) -> Offset:
    """What a rank finds whose clock is ``AHEAD`` seconds a rank ahead, with the ranks on so many machines."""
    mesh = PipelineMesh(world_size)
    try:
        return clock_offset(mesh, lambda: time.perf_counter() + AHEAD * rank, f"machine {rank % machines}")
    finally:
        mesh.close()


def test_processes_of_one_machine_share_its_clock(pools: Pools) -> None:
    assert pools(3).run(offset, 1) == [Offset(), Offset(), Offset()]


def test_the_offset_of_another_machine_is_within_what_it_says(pools: Pools) -> None:
    first, *others = pools(3).run(offset, 3)
    assert first == Offset()
    for rank, found in enumerate(others, 1):
        assert found.uncertainty > 0
        # The true one; exchanges take milliseconds, the clocks differ by a thousand seconds.
        assert found.seconds == pytest.approx(-AHEAD * rank, abs=found.uncertainty + 1e-9)


def test_all_times_of_a_trace_move_together() -> None:
    trace = Trace(
        (Event(1, "F", 1, 0, 0.5, 10.0, 11.0),), (Transfer(1, "receive", "activation", 0, 1, 0, 8, 9.5, 10.0),)
    )
    assert moved(trace, 0.0) is trace
    later = moved(trace, -9.0)
    assert (later.actions[0].start, later.actions[0].end, later.actions[0].waited) == (1.0, 2.0, 0.5)
    assert (later.transfers[0].start, later.transfers[0].end) == (0.5, 1.0)
