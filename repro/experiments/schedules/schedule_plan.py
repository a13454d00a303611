"""Which schedules run on emulated equal stages, and what the simulator says of each: plain numbers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from repro.schedules import GENERATORS, SIMULATED_ONLY, Schedule, Timeline, make_schedule, simulate

_VIRTUAL_STAGES = {"interleaved": 2, "zb-v": 2}


@dataclass(frozen=True)
class Order:
    """A schedule with its V.

    Attributes:
        schedule: its name.
        num_virtual_stages: V stages of each rank, which share the work of the rank equally.
    """

    schedule: str
    num_virtual_stages: int

    @property
    def label(self) -> str:
        """What a person reads."""
        return self.schedule + (f" (V = {self.num_virtual_stages})" if self.num_virtual_stages > 1 else "")


ORDERS = tuple(Order(name, _VIRTUAL_STAGES.get(name, 1)) for name in GENERATORS if name not in SIMULATED_ONLY)
"""All that the engine executes."""


@dataclass(frozen=True)
class SchedulePlan:
    """Emulated steps of all orders on K processes, in turns.

    Attributes:
        num_stages: K ranks.
        micro_batches: M, of one row each; one after the other.
        remat: which micro-batches are recomputed.
        forward: t_F, seconds of a micro-batch on all layers of a rank; R takes as long.
        backward: t_B, likewise; I and W take half of it each.
        rounds: each runs one step of every order.
        orders: what runs.
    """

    num_stages: int
    micro_batches: tuple[int, ...]
    remat: str
    forward: float
    backward: float
    rounds: int
    orders: tuple[Order, ...] = ORDERS

    @property
    def label(self) -> str:
        """The model, for rows."""
        waits = f"{1000 * self.forward:g} and {1000 * self.backward:g} ms a micro-batch and rank"
        return f"equal stages of timed waits ({waits})"

    def schedule(self, order: Order, num_micro_batches: int) -> Schedule:
        """As it is executed."""
        return make_schedule(
            order.schedule,
            num_stages=self.num_stages,
            num_micro_batches=num_micro_batches,
            num_virtual_stages=order.num_virtual_stages,
            remat=self.remat,
        )

    def simulated(self, order: Order, num_micro_batches: int) -> Timeline:
        """The same step with messages and engine free, in seconds.

        The first stage has its whole backward in W, as in execution: its input needs no gradient.
        """
        forward, backward = self.forward / order.num_virtual_stages, self.backward / order.num_virtual_stages
        later = self.num_stages * order.num_virtual_stages - 1
        return simulate(
            self.schedule(order, num_micro_batches),
            forward=forward,
            backward=backward,
            recompute=forward,
            weight=[backward, *[backward / 2] * later],
        )

    @property
    def seconds(self) -> float:
        """Of all steps, from the simulator."""
        return self.rounds * sum(
            float(self.simulated(order, number).makespan) for order in self.orders for number in self.micro_batches
        )
