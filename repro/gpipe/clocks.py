"""One clock for the trace of all ranks: machines that differ are compared by messages to and fro."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from .gathering import gather_dicts
from .mesh import PipelineMesh
from .tracing import Event, Recorder, Trace, Transfer

_Timed = TypeVar("_Timed", Event, Transfer)
_ROUNDS = 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Offset:
    """How to read a rank's clock on the first rank.

    Attributes:
        seconds: added to a time of this rank it gives the time of pipeline rank 0.
        uncertainty: the true value is within ``seconds`` plus or minus this: half of the fastest exchange.
    """

    seconds: float = 0.0
    uncertainty: float = 0.0


def clock_offset(
    mesh: PipelineMesh, clock: Callable[[], float] = time.perf_counter, machine: str | None = None
) -> Offset:
    """The offset of this rank's clock from that of pipeline rank 0 of its replica; all its ranks call it.

    Processes of one machine share the monotonic clock: no offset. Otherwise rank 0 asks every rank for its time a few
    times; the answer of the fastest exchange was given in its middle, give or take half its length (Cristian 1989).

    Args:
        clock: what is compared, seconds.
        machine: name of the clock's machine; by default that of the running kernel.
    """
    names = [""] * mesh.num_stages
    dist.all_gather_object(names, machine or _machine(), group=mesh.control)
    if len(set(names)) == 1:
        return Offset()
    own = Offset()
    for peer in range(1, mesh.num_stages):
        if mesh.pipeline_rank == 0:
            _ask(mesh, mesh.rank_of(peer), clock)
        elif mesh.pipeline_rank == peer:
            own = _answer(mesh, clock)
    return own


def gather_trace(recorder: Recorder, mesh: PipelineMesh | None) -> Trace:
    """The last step of all ranks of this replica on the clock of its first rank, there; elsewhere an empty trace.

    All ranks of the replica call it.
    """
    if mesh is None:
        return Trace(tuple(recorder.events), tuple(recorder.transfers))
    offset = clock_offset(mesh).seconds
    own = moved(Trace(tuple(recorder.events), tuple(recorder.transfers)), offset)
    parts: Sequence[Trace] = list(gather_dicts({mesh.pipeline_rank: own}, mesh).values())
    return Trace(
        tuple(event for part in parts for event in part.actions),
        tuple(transfer for part in parts for transfer in part.transfers),
    )


def moved(trace: Trace, seconds: float) -> Trace:
    """The trace with ``seconds`` added to all its times."""
    if not seconds:
        return trace

    def move(one: _Timed) -> _Timed:
        return replace(one, start=one.start + seconds, end=one.end + seconds)

    return Trace(tuple(map(move, trace.actions)), tuple(map(move, trace.transfers)))


def _ask(mesh: PipelineMesh, peer: int, clock: Callable[[], float]) -> None:
    answer = torch.empty(1, dtype=torch.float64)
    best = Offset(0.0, float("inf"))
    for _ in range(_ROUNDS):
        asked = clock()
        dist.send(answer, peer, group=mesh.control)
        dist.recv(answer, peer, group=mesh.control)
        got = clock()
        if got - asked < 2 * best.uncertainty:
            best = Offset((asked + got) / 2 - float(answer), (got - asked) / 2)
    dist.send(torch.tensor([best.seconds, best.uncertainty], dtype=torch.float64), peer, group=mesh.control)


def _answer(mesh: PipelineMesh, clock: Callable[[], float]) -> Offset:
    first = mesh.rank_of(0)
    question = torch.empty(1, dtype=torch.float64)
    for _ in range(_ROUNDS):
        dist.recv(question, first, group=mesh.control)
        dist.send(torch.tensor([clock()], dtype=torch.float64), first, group=mesh.control)
    told = torch.empty(2, dtype=torch.float64)
    dist.recv(told, first, group=mesh.control)
    return Offset(*told.tolist())


def _machine() -> str:
    """A name that differs between machines, and between two starts of one."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
