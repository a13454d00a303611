"""A model of the link between two accelerators, and schedules replayed with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repro.errors import UserError
from repro.schedules import Action, Kind, Schedule, simulate


@dataclass(frozen=True)
class Link:
    """A full-duplex link: a message occupies its direction for bytes / bandwidth, and arrives a latency later.

    Attributes:
        name: as users call it.
        latency: seconds.
        bandwidth: bytes a second, each way.

    Raises:
        UserError: a bandwidth that is not above 0, or a latency below 0.
    """

    name: str
    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise UserError(
                f"--bandwidth: the link {self.name!r} has {self.bandwidth / 1e9:g} GB/s; give a number above 0"
            )
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise UserError(
                f"--latency: the link {self.name!r} has {self.latency * 1e6:g} microseconds; give 0 or more"
            )

    def occupancy(self, nbytes: float) -> float:
        """Seconds for which a message keeps its direction of the link from others."""
        return nbytes / self.bandwidth


def with_links(schedule: Schedule) -> Schedule:
    """The schedule with each link as one more stage, so that the simulator lets one message pass at a time.

    A link between stages s and s + 1 is stage 2 s + 1: its F and B carry the messages of both directions in the order
    in which they are sent. In GPipe's schedule the last F of s + 1 comes before its first B, so the directions never
    meet, and one rank stands for both.

    Raises:
        UserError: another schedule, or virtual stages.
    """
    if schedule.name != "gpipe" or schedule.num_virtual_stages != 1:
        raise UserError(
            f"links are modelled for schedule='gpipe' with num_virtual_stages=1, not for {schedule.name!r} with "
            f"{schedule.num_virtual_stages}"
        )
    actions: list[tuple[Action, ...]] = []
    for stage, own in enumerate(schedule.actions):
        actions.append(tuple(Action(action.kind, 2 * stage, action.micro_batch) for action in own))
        if stage < schedule.num_stages - 1:
            carried = (action for action in own if action.kind is not Kind.RECOMPUTE)
            actions.append(tuple(Action(action.kind, 2 * stage + 1, action.micro_batch) for action in carried))
    total = len(actions)
    return Schedule(
        name=schedule.name,
        num_stages=total,
        num_micro_batches=schedule.num_micro_batches,
        num_virtual_stages=1,
        remat=schedule.remat,
        placement=tuple((stage,) for stage in range(total)),
        actions=tuple(actions),
    )


def step_seconds(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    *,
    occupancy: Sequence[float],
    latency: float,
) -> float:
    """Seconds of a step over links, from the simulator.

    Args:
        schedule: GPipe's, of K stages.
        forward: seconds of F of one micro-batch on each stage; R takes the same.
        backward: likewise of B.
        occupancy: seconds for which one message keeps each of the K - 1 links.
        latency: seconds from there to its arrival.
    """
    if len(occupancy) != schedule.num_stages - 1:
        raise ValueError(f"{len(occupancy)} links between {schedule.num_stages} stages")
    forwards, backwards = _between(forward, occupancy), _between(backward, occupancy)
    timeline = simulate(
        with_links(schedule),
        forward=forwards,
        backward=backwards,
        recompute=_between(forward, [0.0] * len(occupancy)),
        # Half on each side of the link, so that both directions have the whole of it.
        transfer=latency / 2,
    )
    return float(timeline.makespan)


def _between(stages: Sequence[float], links: Sequence[float]) -> list[float]:
    mixed: list[float] = []
    for stage, cost in enumerate(stages):
        mixed += [cost, links[stage]] if stage < len(links) else [cost]
    return mixed
