"""One training run from config files, with what a comparison needs of it: losses, gradient norms, metrics, a trace."""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from repro.errors import UserError
from repro.gpipe import Event, GPipeStrategy
from repro.tasks.cli import ReproCLI

from ..sweeps.ranks import Tell

WARM_UP = 3
"""Steps at the start of a run that do not count as its speed, nor for its trace."""

_CURVES = ("losses", "gradient_norms", "seconds")


@dataclass(frozen=True)
class TrainingPlan:
    """A run of a fixed number of steps.

    Attributes:
        configs: files of ``repro fit``, later ones over earlier ones.
        num_stages: K.
        num_micro_batches: M; None takes that of the files.
        processes: whether each stage has a process of its own; else all are in one (``virtual stages``).
        steps: optimizer steps; None takes the ``max_steps`` of the files.
        seed: of weights, order of the data, and dropout.
        device: ``cpu``, or ``cuda:N`` (several separated by commas for processes).
        overrides: options of ``repro fit`` that differ from the files.
        trace: steps at the end whose trace is kept.
        plain: train with Lightning's own strategy instead: one process, whole mini-batches, no pipeline.
    """

    configs: tuple[str, ...]
    num_stages: int
    num_micro_batches: int | None
    processes: bool
    steps: int | None
    seed: int = 0
    device: str = "cpu"
    overrides: tuple[str, ...] = ()
    trace: int = 0
    plain: bool = False

    @property
    def world_size(self) -> int:
        """Processes of the run."""
        return self.num_stages if self.processes else 1

    def options(self) -> list[str]:
        """The command line after ``repro fit`` that this run is."""
        cpu = self.device == "cpu"
        numbers = [name.partition(":")[2] or "0" for name in self.device.split(",")][: self.world_size]
        return [
            *(f"--config={path}" for path in self.configs),
            f"--seed_everything={self.seed}",
            f"--trainer.accelerator={'cpu' if cpu else 'gpu'}",
            f"--trainer.devices={self.world_size if cpu else '[' + ','.join(numbers) + ']'}",
            *self._strategy(),
            *([] if self.steps is None else [f"--trainer.max_steps={self.steps}"]),
            "--trainer.max_epochs=-1",
            "--trainer.logger=false",
            "--trainer.enable_checkpointing=false",
            "--trainer.enable_progress_bar=false",
            "--trainer.enable_model_summary=false",
            "--trainer.num_sanity_val_steps=0",
            "--trainer.limit_val_batches=0",
            "--trainer.val_check_interval=null",
            *self.overrides,
        ]

    def _strategy(self) -> list[str]:
        if self.plain:
            return ["--trainer.strategy=auto"]
        words = [f"num_stages={self.num_stages}", f"trace={'true' if self.trace else 'false'}"]
        if self.num_micro_batches is not None:
            words.append(f"num_micro_batches={self.num_micro_batches}")
        return [f"--trainer.strategy.{word}" for word in words]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for keys and rows."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def train(rank: int, tell: Tell, plan: TrainingPlan) -> dict[str, Any]:
    """Trains, then evaluates on the held-out part; JSON values, the same on every rank but for the trace (rank 0).

    Returns:
        ``losses`` and ``gradient_norms`` (one a step), ``held_out`` (metrics by name), ``step_seconds`` (median without
        the first steps), ``fit_seconds``, ``partition``, ``num_parameters`` (of all stages), ``batch_size``,
        ``num_micro_batches``, ``schedule``, ``remat`` (None without a pipeline) and ``events`` (one list of ``Event``
        fields a traced step).
    """
    quiet()
    if plan.trace and plan.device != "cpu":
        # Launches return at once, so the clock would see them and not the work; read when CUDA starts.
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    tell(0.0, "loading")
    recorder = Recorder(plan, tell)
    cli = ReproCLI(plan.options(), run=False)
    trainer: pl.Trainer = cli.trainer
    trainer.callbacks.append(recorder)  # type: ignore[attr-defined]
    begun = time.monotonic()
    trainer.fit(cli.model, datamodule=cli.datamodule)
    seconds = time.monotonic() - begun
    return evaluate(cli, recorder, tell) | {"fit_seconds": seconds, "events": recorder.events}


def evaluate(cli: ReproCLI, recorder: Recorder, tell: Tell) -> dict[str, Any]:
    """Tests the model that was trained; with what was recorded, as ``train`` returns it."""
    tell(1.0, "evaluating on held-out data")
    (held_out,) = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)
    return {
        "losses": recorder.losses,
        "gradient_norms": recorder.gradient_norms,
        "held_out": {name.removeprefix("test_"): float(value) for name, value in held_out.items()},
        "step_seconds": statistics.median(recorder.seconds[WARM_UP:] or recorder.seconds),
        "partition": recorder.partition,
        "num_parameters": recorder.num_parameters,
        "batch_size": cli.datamodule.batch_size,
        "num_micro_batches": recorder.num_micro_batches,
        "remat": recorder.remat,
        "schedule": recorder.schedule,
    }


def examine(rank: int, tell: Tell, configs: tuple[str, ...]) -> tuple[str | None, int]:
    """What is missing of the data that these config files name (None: nothing), and how many layers the model has."""
    quiet()
    cli = ReproCLI([f"--config={path}" for path in configs], run=False)
    try:
        cli.datamodule.check()
    except UserError as error:
        return str(error), len(cli.model.layers())
    return None, len(cli.model.layers())


def quiet() -> None:
    """Lightning's remarks on hardware and loaders are noise in a log."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*used alongside.*")


class Recorder(Callback):
    """Keeps the loss and the gradient norm of every step, and the trace of the last ones."""

    def __init__(self, plan: TrainingPlan, tell: Tell) -> None:
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []
        self.seconds: list[float] = []
        self.events: list[list[list[Any]]] = []
        self.partition: list[int] = []
        self.num_parameters = 0
        self.num_micro_batches = 1
        self.remat: str | None = None
        self.schedule: str | None = None
        self._plan = plan
        self._tell = tell
        self._begun = 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        strategy = trainer.strategy
        if isinstance(strategy, GPipeStrategy):
            schedule = strategy.engine.schedule()
            self.partition = list(strategy.partition)
            self.num_micro_batches = schedule.num_micro_batches
            self.remat, self.schedule = schedule.remat.value, schedule.name
        self.num_parameters = sum(parameter.numel() for parameter in pl_module.parameters())

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: list(getattr(self, name)) for name in _CURVES}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in _CURVES:
            setattr(self, name, list(state_dict[name]))

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self._begun = time.perf_counter()

    @override
    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        gradients = [p.grad.double() for p in pl_module.parameters() if p.grad is not None]
        total = sum((gradient.square().sum() for gradient in gradients), torch.zeros((), dtype=torch.float64))
        total = total.to(trainer.strategy.root_device)
        if self._plan.world_size > 1:
            dist.all_reduce(total)
        self.gradient_norms.append(math.sqrt(float(total)))

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        self.losses.append(float(outputs["loss"]))
        done, steps = len(self.losses), trainer.max_steps
        strategy = trainer.strategy
        if isinstance(strategy, GPipeStrategy) and done > steps - self._plan.trace:
            self.events.append([event_fields(event) for event in strategy.gather_trace()])
        if trainer.is_global_zero:
            self._tell(done / steps, f"step {done} of {steps}, loss {self.losses[-1]:.3f}")


def event_fields(event: Event) -> list[Any]:
    """An event as a list that JSON knows."""
    return [event.rank, event.kind, event.stage, event.micro_batch, event.waited, event.start, event.end]


def to_event(fields: list[Any]) -> Event:
    """What ``event_fields`` wrote."""
    return Event(*fields)
