"""What ``repro reproduce`` runs, in order: groups of parts, each part a job whose result is kept in a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..accuracy.scales import TASKS, Scale, Task
from ..accuracy.training import TrainingPlan, train
from ..costs.workload import SpeedPlan, Workload
from ..peers.speed import time_ways
from ..sweeps.cells import Cell
from ..sweeps.ranks import Job


@dataclass(frozen=True)
class TrainingPart:
    """One training run of a task."""

    task: Task
    plan: TrainingPlan
    kind: str

    @property
    def name(self) -> str:
        """Names its cell and its log."""
        return f"{self.kind}-{self.task.name}-K{self.plan.num_stages}"

    @property
    def title(self) -> str:
        """What a person reads."""
        verb = {"learning": "learns", "plain": "beside plain Lightning"}.get(self.kind, "compared")
        if self.plan.plain:
            return f"{self.task.model}, plain Lightning"
        where = "processes" if self.plan.processes else "one process"
        return f"{self.task.model} {verb}, K={self.plan.num_stages} ({where})"

    @property
    def cell(self) -> Cell:
        """Its result depends on the plan and on what the config files say."""
        texts = [Path(path).read_text(encoding="utf-8") for path in self.plan.configs]
        return Cell(self.name, self.plan.as_dict() | {"configs": texts})

    def job(self, logs: Path) -> Job:
        """On as many processes as it has ranks; what the run itself writes goes below ``logs``."""
        root = f"--trainer.default_root_dir={logs / self.name}"
        plan = replace(self.plan, overrides=(*self.plan.overrides, root))
        return Job(self.title, train, (plan,), logs / f"{self.name}.log", world_size=plan.world_size)


@dataclass(frozen=True)
class SpeedPart:
    """The comparison of step times, always on CPU processes of one thread."""

    workload: Workload
    plan: SpeedPlan
    name: str = "speed"
    title: str = "step times beside the peers"
    task: None = None

    @property
    def cell(self) -> Cell:
        """Its result depends on the work and on how long it is timed."""
        return Cell(self.name, {"workload": asdict(self.workload), "plan": asdict(self.plan)})

    def job(self, logs: Path) -> Job:
        """On two processes."""
        return Job(self.title, time_ways, (self.workload, self.plan), logs / f"{self.name}.log", world_size=2)


Part = TrainingPart | SpeedPart


@dataclass(frozen=True)
class Group:
    """Parts that run at the same time, and their expected seconds."""

    parts: tuple[Part, ...]
    seconds: float

    @property
    def task(self) -> Task | None:
        """Whose data they need."""
        return self.parts[0].task


@dataclass(frozen=True)
class Plan:
    """Everything that a run does.

    Attributes:
        compared: by task, the runs that must agree: the reference with K = 1, then the others.
        plain: by task, a run without a pipeline, and one with K stages that must agree with it.
        learning: by task, the longer run.
    """

    compared: dict[str, tuple[TrainingPart, ...]]
    plain: dict[str, tuple[TrainingPart, TrainingPart]]
    learning: dict[str, TrainingPart]
    speed: SpeedPart
    groups: tuple[Group, ...]


def make_plan(
    scale: Scale, device: str, num_stages: int, num_micro_batches: int | None, tasks: Sequence[Task] = TASKS
) -> Plan:
    """The plan of a scale.

    Runs in one process need one core each and are not timed: two of them run at the same time.

    Args:
        scale: sizes.
        device: ``cpu``, or CUDA devices separated by commas; with fewer devices than stages all stages share the first.
        num_stages: K of the pipeline; the local run has 2 K.
        num_micro_batches: M; None takes that of the scale, and for the longer runs that of their config.
    """
    workload = scale.workload
    if num_micro_batches is not None:
        workload = replace(workload, num_micro_batches=num_micro_batches)
    separate = num_stages > 1 and (device == "cpu" or len(device.split(",")) >= num_stages)
    compared: dict[str, tuple[TrainingPart, ...]] = {}
    plain: dict[str, tuple[TrainingPart, TrainingPart]] = {}
    learning: dict[str, TrainingPart] = {}
    groups: list[Group] = []
    for task in tasks:
        one = TrainingPlan(
            configs=task.configs(scale.overlay),
            num_stages=1,
            num_micro_batches=workload.num_micro_batches,
            processes=False,
            steps=scale.agreement_steps,
            device=device,
            overrides=task.agreement,
        )
        several = replace(one, num_stages=num_stages, processes=separate)
        # On CUDA a trace has the times of launches; only one process that waits for each has those of the work.
        traced = 0 if separate and device != "cpu" else scale.traced_steps
        longer = replace(several, num_micro_batches=num_micro_batches, steps=scale.learning_steps, overrides=())
        reference, pipeline, local = (
            TrainingPart(task, plan, "compared")
            for plan in (
                one,
                replace(several, trace=traced),
                replace(one, num_stages=2 * num_stages, trace=scale.traced_steps),
            )
        )
        compared[task.name] = (reference, pipeline, local)
        exact = replace(
            one,
            num_micro_batches=task.plain_micro_batches or one.num_micro_batches,
            overrides=(*task.agreement, *task.plain),
        )
        plain[task.name] = (
            TrainingPart(task, replace(exact, plain=True), "plain"),
            TrainingPart(task, replace(exact, num_stages=max(2, num_stages)), "plain"),
        )
        learning[task.name] = TrainingPart(task, longer, "learning")
        groups += [
            Group((reference, local), scale.seconds["compared"]),
            Group((pipeline,), scale.seconds["compared"]),
            Group(plain[task.name], scale.seconds["compared"]),
        ]
    speed = SpeedPart(workload, scale.speed)
    groups += [Group((part,), scale.seconds[name]) for name, part in learning.items()]
    groups.append(Group((speed,), scale.seconds["speed"]))
    return Plan(compared, plain, learning, speed, tuple(groups))
