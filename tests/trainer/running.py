"""Runs a Trainer, in this process or on the ranks of a pool, and tells what came out of it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision
from torch.utils.data import DataLoader, Dataset

from repro.gpipe import GPipeStrategy
from tests.helpers.ranks import Pools
from tests.trainer.modules import Points, Regression

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@dataclass(frozen=True)
class Pipeline:
    """How the stages run. ``num_stages`` 0 is plain Lightning without a strategy."""

    num_stages: int
    num_micro_batches: int = 4
    num_virtual_stages: int = 1
    data_parallel_size: int = 1
    local: bool = False
    remat: str = "always"
    partition: tuple[int, ...] | str | None = None
    schedule: str = "gpipe"

    @property
    def processes(self) -> int:
        """Ranks of the Trainer."""
        return 1 if self.local else max(self.num_stages, 1) * self.data_parallel_size

    def strategy(self) -> GPipeStrategy | str:
        """What the Trainer is given."""
        if self.num_stages == 0:
            return "auto"
        partition = self.partition
        return GPipeStrategy(
            num_stages=self.num_stages,
            num_micro_batches=self.num_micro_batches,
            schedule=self.schedule,
            num_virtual_stages=self.num_virtual_stages,
            data_parallel_size=self.data_parallel_size,
            remat=self.remat,
            partition=list(partition) if isinstance(partition, tuple) else partition,
        )

    def __str__(self) -> str:
        if self.num_stages == 0:
            return "plain"
        parts = [f"K{self.num_stages}"]
        parts += [f"V{self.num_virtual_stages}"] if self.num_virtual_stages > 1 else []
        parts += [f"D{self.data_parallel_size}"] if self.data_parallel_size > 1 else []
        parts += ["local"] if self.local else []
        parts += [self.schedule] if self.schedule != "gpipe" else []
        return "-".join(parts)


PLAIN = Pipeline(0, local=True)
ONE = Pipeline(1, local=True)


@dataclass(frozen=True)
class Run:
    """A fit.

    Attributes:
        batch_size: rows of a mini-batch over all replicas.
        spike: a row whose inputs are a thousand times larger.
        save_at: batches after which ``<directory>/<batches>.ckpt`` is saved.
        resume: the checkpoint to go on from.
        callbacks: what makes further callbacks, which are called after the recorder.
        prebuilt: make the layers, in double precision, before the Trainer has the module.
        kind: the class of the module.
        module: its arguments.
        trainer: arguments of the Trainer; precision "16-scaled" is 16-mixed with a gradient scaler, which Lightning
            itself has on GPUs only.
    """

    rows: int = 18
    batch_size: int = 4
    spike: int | None = None
    shuffle: bool = True
    workers: int = 0
    checkpoint: Mapping[str, Any] | None = None
    stopping: Mapping[str, Any] | None = None
    save_at: tuple[int, ...] = ()
    resume: str | None = None
    callbacks: tuple[Callable[[], pl.Callback], ...] = ()
    prebuilt: bool = False
    kind: type[Regression] = Regression
    module: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Run:
        """The same run with some things changed."""
        return dataclasses.replace(self, **changes)


class Recorder(pl.Callback):
    """Keeps what is logged per step, and saves checkpoints."""

    def __init__(self, directory: Path, save_at: tuple[int, ...]) -> None:
        self.directory = directory
        self.save_at = save_at
        self.batches = 0
        self.steps: list[float] = []
        self.scales: list[float] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        self.batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed + 1
        self.steps.append(trainer.callback_metrics["train_loss_step"].item())
        if scaler := getattr(trainer.precision_plugin, "scaler", None):
            self.scales.append(scaler.get_scale())
        if self.batches in self.save_at:
            trainer.save_checkpoint(self.directory / f"{self.batches}.ckpt")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.epochs.append({name: value.item() for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.directory / "final.ckpt")


@contextmanager
def untouched() -> Iterator[None]:
    """Leaves the generator, the default dtype and the filters of warnings as they were."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_rng_state(state)
        torch.set_default_dtype(dtype)


def own_seed(seed: int) -> None:
    """Seeds with ``seed`` on rank 0 and with another one on each other rank, as where nobody seeds everything."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(seed + 100 * rank)


def trainer(pipeline: Pipeline, **arguments: Any) -> pl.Trainer:
    """A quiet Trainer on the CPU for ``pipeline``."""
    return pl.Trainer(
        accelerator="cpu", devices=pipeline.processes, strategy=pipeline.strategy(), **{**QUIET, **arguments}
    )


def loader(data: Dataset[Any], batch_size: int, *, pipeline: Pipeline, workers: int = 0, **arguments: Any) -> Any:
    """A loader of ``data``, with ``batch_size`` rows over all replicas."""
    # In a rank of a pool workers come from a fresh server by default, which would import torch for each.
    context = "fork" if workers else None
    batch_size //= pipeline.data_parallel_size
    return DataLoader(data, batch_size, num_workers=workers, multiprocessing_context=context, **arguments)


def fit(pipeline: Pipeline, run: Run, directory: str) -> dict[str, Any]:
    """One fit; says what was logged, and where things are. Every rank calls it.

    A run that resumes has another seed, and each rank its own: only that of rank 0 of the first run may matter.
    """
    folder = Path(directory)
    with untouched():
        own_seed(5 if run.resume is None else 6)
        recorder = Recorder(folder, run.save_at)
        callbacks: list[pl.Callback] = [recorder, *(make() for make in run.callbacks)]
        best = None
        if run.checkpoint is not None:
            best = ModelCheckpoint(folder / "kept", filename="{epoch}-{step}", **run.checkpoint)
            callbacks.append(best)
        if run.stopping is not None:
            callbacks.append(EarlyStopping(**run.stopping))
        arguments = {"max_epochs": 3, "precision": "64-true", "num_sanity_val_steps": 0, **run.trainer}
        if arguments["precision"] == "16-scaled":
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
            arguments["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
            del arguments["precision"]
        dtype = torch.float64 if arguments.get("precision") == "64-true" else torch.float32
        data = Points(run.rows, dtype=dtype)
        if run.spike is not None:
            data.inputs[run.spike] *= 1000.0
        train = loader(data, run.batch_size, pipeline=pipeline, shuffle=run.shuffle, workers=run.workers)
        validate = loader(Points(7, dtype=dtype), run.batch_size, pipeline=pipeline)
        runner = trainer(
            pipeline, callbacks=callbacks, enable_checkpointing=best is not None, default_root_dir=folder, **arguments
        )
        module = run.kind(**run.module)
        if run.prebuilt:
            with DoublePrecision().module_init_context():
                module.configure_model()
        runner.fit(module, train, validate, ckpt_path=run.resume, weights_only=False)
        return {
            "metrics": {name: value.item() for name, value in runner.callback_metrics.items()},
            "steps": recorder.steps,
            "scales": recorder.scales,
            "epochs": recorder.epochs,
            "stopped_at": (runner.current_epoch, runner.global_step),
            "best": None if best is None else (best.best_model_path, float(best.best_model_score or 0.0)),
            "kept": sorted(path.name for path in (folder / "kept").glob("*.ckpt")),
            "read": train.dataset.read,
        }


def _fit_on_rank(rank: int, world_size: int, jobs: list[tuple[Pipeline, Run, str]]) -> list[dict[str, Any]]:
    return [fit(*job) for job in jobs]


@dataclass(frozen=True)
class Outcome:
    """What every rank says of a run, and the checkpoint at its end."""

    ranks: list[dict[str, Any]]
    directory: Path

    @property
    def final(self) -> dict[str, Any]:
        """The checkpoint at the end."""
        return load(self.directory / "final.ckpt")

    @property
    def best(self) -> dict[str, Any]:
        """The best checkpoint by the monitored metric."""
        return load(self.ranks[0]["best"][0])


def load(path: str | Path) -> dict[str, Any]:
    """A checkpoint, with whatever is in it."""
    return torch.load(path, weights_only=False)


def fit_all(pools: Pools, jobs: list[tuple[Pipeline, Run]], directory: Path) -> list[Outcome]:
    """Runs fits, those that need the same ranks in one call, and returns what came out in order."""
    outcomes: dict[int, Outcome] = {}
    folders = [directory / f"{number}-{pipeline}" for number, (pipeline, _) in enumerate(jobs)]
    for folder in folders:
        folder.mkdir()
    for processes in sorted({pipeline.processes for pipeline, _ in jobs}):
        numbers = [number for number, (pipeline, _) in enumerate(jobs) if pipeline.processes == processes]
        work = [(*jobs[number], str(folders[number])) for number in numbers]
        by_rank = [_fit_on_rank(0, 1, work)] if processes == 1 else pools(processes).run(_fit_on_rank, work)
        for position, number in enumerate(numbers):
            outcomes[number] = Outcome([said[position] for said in by_rank], folders[number])
    return [outcomes[number] for number in range(len(jobs))]


def assert_same(got: Any, wanted: Any, where: str = "", tolerance: float = 1e-10) -> None:
    """Compares nested containers of tensors and numbers, and names what differs."""
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(wanted, Mapping):
        assert sorted(map(str, got)) == sorted(map(str, wanted)), f"{where}: {list(got)} != {list(wanted)}"
        for key in wanted:
            assert_same(got[key], wanted[key], f"{where}[{key!r}]", tolerance)
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), f"{where}: {got} != {wanted}"
        for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{where}[{number}]", tolerance)
    elif isinstance(wanted, float):
        assert abs(got - wanted) <= tolerance or (got != got and wanted != wanted) or got == wanted, (
            f"{where}: {got} != {wanted}"
        )
    else:
        assert got == wanted, f"{where}: {got!r} != {wanted!r}"
