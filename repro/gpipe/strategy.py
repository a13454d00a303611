"""The Lightning strategy: stages, data and optimizers of a pipeline.

Methods stand in the order of Lightning's ``ParallelStrategy`` and ``DDPStrategy``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.strategies import _StrategyRegistry
from lightning.fabric.utilities.data import _auto_add_worker_init_fn, sized_len
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from repro.errors import UserError
from repro.schedules import Schedule, make_schedule

from .batch_count import open_batch
from .building import Measure, build_layers
from .checkpointed_strategy import CheckpointedStrategy
from .checks import check_module, check_options, check_parameters, check_replicas, check_run
from .clocks import gather_trace
from .decisions import announce_decisions
from .engine import Engine
from .gathering import MetricStates, OptimizerLayout, share_weights
from .gradients import clip_grad_norm, share_overflow, sum_over_replicas
from .launcher import CheckingLauncher
from .microbatch import Boundary, check_boundary, gather
from .pipeline_module import PipelineModule, PipelineRunner
from .profiling import micro_batch_rows_of
from .reading import (
    FollowingLoader,
    Progress,
    RandomState,
    ReadingLoader,
    Resumption,
    announcer,
    deal_out,
    is_placeholder,
)
from .results import StepResult, Totals
from .sender import Sender
from .stage_memory import StageLimit
from .tracing import Event
from .workers import end_workers_with_rank


class GPipeStrategy(CheckpointedStrategy, PipelineRunner):
    """Trains a ``PipelineModule`` as a pipeline of stages over micro-batches (GPipe, arXiv 1811.06965).

    With as many processes as K x D, each stage has a process (V stages with virtual stages); with one process
    (``Trainer(devices=1)``) all stages run in it.

    Args:
        num_stages: K, stages of the pipeline. None: the number of processes divided by ``data_parallel_size``.
        num_micro_batches: M, slices of each mini-batch. None: 4K, from which on the paper finds the bubble negligible.
        schedule: order of the actions, a name (``"gpipe"``) or a function with the signature of
            ``repro.schedules.Generator``.
        num_virtual_stages: V, stages that each rank holds.
        remat: which micro-batches drop their activations and compute them again: ``"always"`` (the paper),
            ``"except_last"`` or ``"never"``.
        partition: how layers become stages: ``"flops"`` (needs ``example_inputs``), ``"parameters"``, ``"time"``
            (measured on the reading rank), ``"uniform"``, or layer counts such as ``[3, 2, 4]``. None: ``"flops"``
            where there are example inputs, else ``"parameters"``.
        stage_memory: GiB that each stage may take at most: parameters, gradients and two optimizer states (Adam's), and
            its activations at their peak. Restricts the partition that a rule chooses; layer counts are checked.
            Needs ``example_inputs``, data with a ``batch_size``, and one stage a rank.
        data_parallel_size: D, replicas of the pipeline; each reads its share of every batch.
        virtual_devices: with one process, the device of every stage, such as ``["cuda:0", "cuda:0"]``; None: the
            Trainer's device for all.
        trace: record when each action of the last step ran (``strategy.gather_trace()``).
        seed: of initial weights and of all randomness in layers. None: that of ``seed_everything``.
        timeout: of the process groups.

    Raises:
        UserError: an option, or options together, that cannot be; before any work starts.
    """

    def __init__(
        self,
        num_stages: int | None = None,
        num_micro_batches: int | None = None,
        schedule: str | Callable[..., Schedule] = "gpipe",
        num_virtual_stages: int = 1,
        remat: str = "always",
        partition: str | list[int] | None = None,
        stage_memory: float | None = None,
        data_parallel_size: int = 1,
        virtual_devices: list[str] | None = None,
        trace: bool = False,
        seed: int | None = None,
        accelerator: pl.accelerators.Accelerator | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            num_stages,
            data_parallel_size,
            timeout,
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        check_options(
            schedule,
            num_stages=num_stages,
            num_micro_batches=num_micro_batches,
            num_virtual_stages=num_virtual_stages,
            remat=remat,
            partition=partition,
            data_parallel_size=data_parallel_size,
            stage_memory=stage_memory,
        )
        self._asked_micro_batches = num_micro_batches
        self._schedule = schedule
        self._num_virtual_stages = num_virtual_stages
        self._remat = remat
        self._rule = partition
        self._stage_memory = stage_memory
        self._virtual_devices = virtual_devices
        self._trace = trace
        self._asked_seed = seed
        self._engine: Engine | None = None
        self._sender = Sender()
        self._partition: tuple[int, ...] | None = None
        self._own: tuple[int, ...] = ()
        self._accumulating = False
        self._announced = False

    @property
    def num_micro_batches(self) -> int:
        """M."""
        return self._asked_micro_batches or 4 * self.num_stages

    @property
    def engine(self) -> Engine:
        """Executes the schedule; there from ``setup`` to ``teardown``."""
        if self._engine is None:
            raise RuntimeError("the engine exists only while the Trainer runs")
        return self._engine

    @property
    def traces(self) -> bool:
        """Whether steps are recorded."""
        return self._trace

    @property
    def partition(self) -> tuple[int, ...]:
        """Layers of each stage, once they are known."""
        if self._partition is None:
            raise RuntimeError("the partition is known only once the model is built")
        return self._partition

    @property
    @override
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        # Lightning injects no sampler: rows are dealt out by ``process_dataloader``, in the one-process order.
        return {"num_replicas": 1, "rank": 0}

    @property
    def is_distributed(self) -> bool:
        """Whether Lightning should inject a distributed sampler; never, see ``process_dataloader``."""
        return False

    @override
    def connect(self, model: pl.LightningModule) -> None:
        self.check(model)
        super().connect(model)

    @override
    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if self._num_ranks > 1 or self.cluster_environment.creates_processes_externally:
            self._launcher = CheckingLauncher(self.check, self.cluster_environment, self.num_processes, self.num_nodes)

    def check(self, model: pl.LightningModule) -> None:
        """Everything that can be known before processes start work.

        Raises:
            UserError: the model is no pipeline, or the numbers do not fit it or each other.
        """
        if self._layer_sync is not None:
            raise UserError(
                "Trainer(sync_batchnorm=True) is not supported: each micro-batch is normalised with its own "
                "statistics, and the running ones are pooled over micro-batches and replicas already; use "
                "sync_batchnorm=False"
            )
        check_run(
            check_module(model),
            num_stages=self.num_stages,
            num_virtual_stages=self._num_virtual_stages,
            data_parallel_size=self._data_parallel_size,
            processes=self._num_ranks,
            partition=self._rule,
            virtual_devices=self._virtual_devices,
        )

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        seed = torch.initial_seed() if self._asked_seed is None else self._asked_seed
        self._seed = int(self.broadcast(seed))

    @override
    def build(self, module: PipelineModule) -> None:
        """Makes this rank's layers of ``module``; those of other ranks stay on the meta device.

        Raises:
            UserError: the layers cannot be cut as asked, or the module was built for other stages.
        """
        schedule = make_schedule(
            self._schedule,
            num_stages=self.num_stages,
            num_micro_batches=self.num_micro_batches,
            num_virtual_stages=self._num_virtual_stages,
            remat=self._remat,
        )
        self._last_rank = schedule.placement[-1][0]
        rank = None if self._mesh is None else self._mesh.pipeline_rank
        limit = self._stage_limit(module, schedule)
        built = build_layers(
            module.layers(),
            module.model,
            rule=self._rule,
            here=[rank is None or rank in ranks for ranks in schedule.placement],
            seed=self._seed,
            example=lambda: _example(module),
            timed=self._timed,
            limit=limit,
        )
        module.model, self._partition, self._own = built.model, built.partition, built.own
        if self.is_global_zero and not self._announced:
            self._announced = True
            announce_decisions(
                schedule=self._schedule,
                num_stages=self.num_stages,
                num_micro_batches=self.num_micro_batches,
                num_virtual_stages=self._num_virtual_stages,
                remat=self._remat,
                data_parallel_size=self._data_parallel_size,
                processes=self._num_ranks,
                partition=built.partition,
                costs=built.costs,
                rule=built.rule,
                stage_bytes=built.stage_bytes,
                limit=None if limit is None else limit.gib,
            )

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        module = self._module
        fitting = trainer.state.fn == TrainerFn.FITTING
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(module)
        self.model_to_device()
        if self._mesh is not None and self._data_parallel_size > 1:
            if fitting:
                check_replicas(module)
            with self._mesh.explaining():
                share_weights(module, self._mesh)
        check_parameters(module)  # again: configure_model may have made some
        assert module.model is not None
        if fitting:
            self._count.resume(self._resume)
            self._seed = int(self._resume.get("seed", self._seed))
        self._engine = Engine(
            {index: module.model[index] for index in self._own},
            self.partition,
            num_micro_batches=self.num_micro_batches,
            loss=module.loss,
            metrics=module.metrics,
            schedule=self._schedule,
            num_virtual_stages=self._num_virtual_stages,
            remat=self._remat,
            mesh=self._mesh,
            devices=[self.root_device] if self._mesh is not None else self._stage_devices,
            seed=self._seed,
            trace=self._trace,
        )
        if fitting:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if fitting:
            _optimizers_to_device(self.optimizers, self.root_device)
        # The Trainer clips through the precision plugin; the norm is over all stages, and the same for every K.
        self.precision_plugin.clip_grad_by_norm = self._clip_grad_by_norm  # type: ignore[method-assign]
        if self._mesh is not None:
            self.precision_plugin.clip_grad_by_value = self._clip_grad_by_value  # type: ignore[method-assign]
            MetricStates.of(self._mesh, self._last_rank).attach(module)
        # Loss and metrics are equal on every rank already.
        warnings.filterwarnings(
            "ignore", message=r".*It is recommended to use `self\.log\('(train|val|test)_.*sync_dist=True"
        )

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        self._layouts = [OptimizerLayout.drop_foreign(optimizer) for optimizer in self.optimizers]
        learns = [
            any(p.requires_grad for g in optimizer.param_groups for p in g["params"]) for optimizer in self.optimizers
        ]
        if self._scaler is not None and not all(learns):
            raise UserError(
                f"rank {self.global_rank} holds no parameter that learns, which precision='16-mixed' cannot have; use "
                "bf16-mixed, or a partition that gives each stage a layer with such parameters"
            )

    @override
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        which = self.optimizers.index(optimizer)
        added = optimizer.param_groups[len(self._layouts[which].groups) :]
        if added:
            if not self.engine.holds(p for group in added for p in group["params"] if not p.is_meta):
                raise UserError(
                    "add_param_group was given a parameter that no layer had when the fit began: the pipeline does not "
                    "train it. Make it in layers() or configure_model(), and let it learn later (requires_grad_)"
                )
            self._layouts[which] = self._layouts[which].with_new_groups(optimizer)
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        return batch if self.is_placeholder(batch) else super().batch_to_device(batch, device, dataloader_idx)

    @override
    def model_to_device(self) -> None:
        with self._without_layers() as layers:
            self._module.to(self.root_device)
            assert self._partition is not None
            devices = [
                device for device, count in zip(self._stage_devices, self._partition, strict=True) for _ in range(count)
            ]
            for index in self._own:
                layers[index].to(devices[index])

    @override
    def process_dataloader(self, dataloader: object) -> object:
        """The reading rank gets its replica's share of the loader, the others a loader of placeholders."""
        mesh = self._mesh
        assert isinstance(dataloader, Iterable)
        if mesh is not None and not mesh.reads_data:
            with mesh.explaining():
                length = mesh.mail.receive(mesh.rank_of(0))
            return FollowingLoader(mesh, length)
        share = deal_out(dataloader, mesh.replica if mesh else 0, self._data_parallel_size)
        _auto_add_worker_init_fn(share, self.global_rank)
        if mesh is not None:
            end_workers_with_rank(share)
            for peer in range(1, mesh.num_stages):
                self._sender.send_object(sized_len(share), mesh.rank_of(peer), mesh.control)
        batch_size = getattr(dataloader, "batch_size", None)
        loader = ReadingLoader(
            share,
            announcer(mesh, self._sender),
            self._progress,
            self._agree_on_random_state,
            self._resumption,
            None if batch_size is None else batch_size * self._data_parallel_size,
        )
        # Not left to Lightning, which loads no loader's state from a checkpoint at the end of an epoch.
        if self._module.trainer.training:
            self._resumption.add(loader)
        return loader

    @override
    def is_placeholder(self, batch: object) -> bool:
        return is_placeholder(batch)

    @override
    def run_training_step(self, batch: Any) -> StepResult:
        inputs, targets = self._split(batch)
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        with self._in_pipeline():
            return self._count.run(
                self._module.trainer,
                lambda count: self.engine.train_step(inputs, targets, batch_counter=count, loss_scale=scale),
            )

    @override
    def run_evaluation_step(self, batch: Any, batch_idx: int) -> Totals:
        inputs, targets = self._split(batch)
        with self._in_pipeline():
            return self.engine.evaluate(inputs, targets, batch_counter=batch_idx)

    @override
    def run_prediction_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, _ = self._split(batch)
        with self._in_pipeline():
            outputs = self.engine.predict(inputs, batch_counter=batch_idx)
        mesh = self._mesh
        if mesh is None or self._data_parallel_size == 1 or not mesh.reads_data:
            return outputs
        shares: list[Any] = [None] * self._data_parallel_size
        mesh.gather_over_replicas(shares, outputs)
        return gather([share for share in shares if share is not None]) if self.is_global_zero else None

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        if self._accumulating:
            return  # the reduction over replicas happens once per optimizer step
        if self._mesh is not None:
            parameters = [p for stage in self.engine.stages.values() for p in stage.parameters()]
            with self._mesh.explaining():
                sum_over_replicas(parameters, self._mesh)
                if self._scaler is not None:
                    share_overflow(parameters, self.root_device)

    @contextmanager
    @override
    def block_backward_sync(self) -> Generator[None, None, None]:
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clips this rank's gradients by the norm over all stages; see ``gradients.clip_grad_norm``."""
        with self._mesh_explaining():
            return clip_grad_norm(parameters, max_norm, norm_type, self._mesh)

    def gather_trace(self) -> list[Event]:
        """When each action of the last step ran, on all ranks of this replica, on its first rank (empty elsewhere).

        Needs ``trace=True``; every rank must call it. ``repro.gpipe.TraceWriter`` writes files, with the messages.
        """
        with self._explaining():
            return list(gather_trace(self.engine.recorder, self._mesh).actions)

    @override
    def teardown(self) -> None:
        for name in ("clip_grad_by_norm", "clip_grad_by_value"):
            self.precision_plugin.__dict__.pop(name, None)
        if self._lightning_module is not None:
            MetricStates.detach(self._lightning_module)
        with self._without_layers() as layers:
            super().teardown()
            for index in self._own:
                layers[index].cpu()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._resume, self._resumption = {}, Resumption()
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        strategy_registry.register(
            "gpipe", cls, description="Pipeline of stages over micro-batches (GPipe)", override=True
        )

    @property
    def _scaler(self) -> Any | None:
        return getattr(self.precision_plugin, "scaler", None)

    @property
    def _stage_devices(self) -> list[torch.device]:
        if self._mesh is None and self._virtual_devices is not None:
            return [torch.device(device) for device in self._virtual_devices]
        return [self.root_device] * (self.num_stages * self._num_virtual_stages)

    def _timed(self, measure: Measure) -> list[float]:
        """The seconds that the layers take on the first rank, on every rank."""
        if self.global_rank != 0:
            return self.broadcast([])
        return self.broadcast(measure(self.root_device, self.precision_plugin, self._micro_batch_rows))

    @property
    def _micro_batch_rows(self) -> int | None:
        return micro_batch_rows_of(self._module.trainer.fit_loop._data_source.instance, self.num_micro_batches)

    def _stage_limit(self, module: PipelineModule, schedule: Schedule) -> StageLimit | None:
        """What a stage may take, the same on every rank; None where nothing is kept for a backward."""
        if self._stage_memory is None:
            return None
        rows = self.broadcast(self._micro_batch_rows)
        if rows is None:
            if self._module.trainer.state.fn != TrainerFn.FITTING:
                return None
            raise UserError(
                f"stage_memory={self._stage_memory} needs the rows of a mini-batch, which the data does not tell; give "
                "a DataLoader or data module with a batch_size, or leave stage_memory out"
            )
        inputs, targets = module.example_batch()
        return StageLimit(
            self._stage_memory,
            schedule,
            rows,
            self.precision_plugin,
            module.loss,
            None if inputs is None else check_boundary(inputs, "the inputs of example_batch()"),
            None if targets is None else check_boundary(targets, "the targets of example_batch()"),
        )

    def _split(self, batch: Any) -> tuple[Boundary | None, Boundary | None]:
        if self.is_placeholder(batch):
            return None, None
        inputs, targets = self._module.split_batch(batch)
        return (
            check_boundary(inputs, "the inputs of split_batch(batch)"),
            None if targets is None else check_boundary(targets, "the targets of split_batch(batch)"),
        )

    @contextmanager
    def _in_pipeline(self) -> Generator[None, None, None]:
        self._module._in_pipeline = True
        try:
            yield
        finally:
            self._module._in_pipeline = False

    @contextmanager
    def _without_layers(self) -> Generator[nn.Sequential, None, None]:
        """What moves a whole module cannot move meta tensors: the layers are taken out meanwhile."""
        module = self._lightning_module
        layers = module.model if isinstance(module, PipelineModule) and module.model is not None else nn.Sequential()
        if isinstance(module, PipelineModule):
            module.model = None
        try:
            yield layers
        finally:
            if isinstance(module, PipelineModule):
                module.model = layers or None

    def _progress(self) -> Progress:
        loop = self._module.trainer.fit_loop
        fetched = len(getattr(loop._data_fetcher, "batches", ()))
        is_last = loop.epoch_loop.batch_progress.is_last_batch
        is_open = bool(open_batch(self._module.trainer))
        return Progress(fetched + is_open, is_last and not is_open)

    def _agree_on_random_state(self, state: RandomState) -> RandomState:
        if self._mesh is None or self._data_parallel_size == 1:
            return state
        states: list[Any] = [None] * self._data_parallel_size
        self._mesh.gather_over_replicas(states, state)
        first: RandomState = states[0]
        return first

    def _clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        self.clip_grad_norm(self.precision_plugin.main_params(optimizer), float(clip_val))

    def _clip_grad_by_value(self, optimizer: Optimizer, clip_val: int | float) -> None:
        # PyTorch refuses parameters none of which has a gradient, such as those of a frozen stage.
        used = [p for p in self.precision_plugin.main_params(optimizer) if p.grad is not None]
        if used:
            torch.nn.utils.clip_grad_value_(used, float(clip_val))


def _example(module: PipelineModule) -> Boundary | None:
    inputs = module.example_inputs()
    return None if inputs is None else check_boundary(inputs, "example_inputs()")
