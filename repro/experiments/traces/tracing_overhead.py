"""What tracing costs: steps of emulated stages with and without it, in turns."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from ..sweeps.ranks import Tell

TRACED, PLAIN = "traced", "not traced"
_REPEATS = 2000


@dataclass(frozen=True)
class OverheadPlan:
    """Emulated equal stages whose actions all take as long.

    Attributes:
        rounds: of both ways.
        num_stages: K.
        num_micro_batches: M.
        seconds_of_action: of F and of B.
    """

    rounds: int
    num_stages: int = 2
    num_micro_batches: int = 32
    seconds_of_action: float = 0.001

    @property
    def label(self) -> str:
        """For rows."""
        return f"equal stages of timed waits ({1000 * self.seconds_of_action:g} ms an action)"

    @property
    def seconds(self) -> float:
        """Of all rounds, about."""
        return 2.2 * (self.rounds + 2) * (self.num_micro_batches + 1) * 2 * self.seconds_of_action * 1.2


def recorder_cost() -> float:
    """Seconds of processor time that recording one action, the receive before it and the send after it takes."""
    import torch

    from repro.gpipe.tracing import HostClock, Recorder
    from repro.schedules import Action, Kind, Message

    message, action = Message("activation", 0, 1, 0), Action(Kind.FORWARD, 1, 0)
    tensors = (torch.zeros(1024),)

    def seconds(recorder: Recorder) -> float:
        begun = time.thread_time()
        for _ in range(_REPEATS):
            with recorder.receiving(1, message) as carried:
                carried.note(tensors)
            with recorder.running(1, action):
                pass
            with recorder.sending(1, message) as carried:
                carried.note(tensors)
        return (time.thread_time() - begun) / _REPEATS

    differences = [seconds(Recorder([HostClock()] * 2)) - seconds(Recorder()) for _ in range(5)]
    return statistics.median(differences)


def time_tracing(rank: int, tell: Tell, plan: OverheadPlan) -> dict[str, Any]:
    """Runs on K ranks.

    Returns:
        ``seconds``: by way, of a step with and without tracing in each round. ``cost``: of one action, see
        ``recorder_cost``.
    """
    import torch
    import torch.distributed as dist

    from repro.gpipe import Engine
    from repro.gpipe.mesh import PipelineMesh

    from ..emulation.layers import boundary_rows, equal_stage, sum_of_outputs
    from ..sweeps.timers import sharpen_timers
    from ..sweeps.turns import Step, time_in_turns

    sharpen_timers()
    dist.init_process_group("gloo")
    mesh = PipelineMesh(plan.num_stages)
    stage = equal_stage(plan.seconds_of_action, plan.seconds_of_action)
    batch = (boundary_rows(plan.num_micro_batches, 4096), torch.zeros(plan.num_micro_batches, 1))
    inputs, targets = batch if rank == 0 else (None, None)
    engines: list[Engine] = []

    def way(trace: bool) -> Step:
        engine = Engine(
            {rank: stage},
            [1] * plan.num_stages,
            num_micro_batches=plan.num_micro_batches,
            loss=sum_of_outputs,
            remat="never",
            mesh=mesh,
            trace=trace,
        )
        engines.append(engine)

        def step() -> None:
            engine.train_step(inputs, targets, batch_counter=0).accumulate()

        return step

    try:
        seconds = time_in_turns({PLAIN: way(False), TRACED: way(True)}, tell, rounds=plan.rounds, repeats=1, warm_up=2)
        return {"seconds": seconds, "cost": recorder_cost()}
    finally:
        for engine in engines:
            engine.close()
        mesh.close()
