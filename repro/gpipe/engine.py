"""Executes a schedule: one rank's actions, or, in one process, those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.planning import check_partition
from repro.schedules import (
    Action,
    Generator,
    Kind,
    Remat,
    Schedule,
    forward_only,
    make_schedule,
    merged_order,
    require_executable,
)

from .batches import Batches
from .failure import PipelineError, StageError, describe
from .mailbox import receive_boundary
from .mesh import PipelineMesh
from .microbatch import Boundary, gather, micro_batch_rows
from .process_transport import ProcessTransport
from .results import StepResult, Totals
from .rng import StepKey, generator
from .sender import Sender
from .stage import Loss, Metrics, Stage
from .step import Mode, Step
from .tracing import Event, Recorder, clocks_for
from .transport import LocalTransport
from .wire import ConnectionLost


class Engine:
    """Runs training, evaluation and prediction steps of a model that is cut into stages.

    Without a mesh all stages run in this process (``local``); with one, this rank's stages do, and every rank of the
    mesh must call the same steps.

    Args:
        layers: the layers by global index; with a mesh, those of this rank's stages are enough.
        partition: layers of each stage, K x V numbers.
        num_micro_batches: M; a batch with fewer rows runs with as many micro-batches as it has rows.
        schedule: a name of ``repro.schedules`` or a function with its signature.
        num_virtual_stages: V, stages a rank.
        remat: ``"always"``, ``"except_last"`` or ``"never"``.
        loss: ``loss(outputs, targets) -> (sum, count)`` of one micro-batch.
        metrics: ``metrics(outputs, targets) -> {name: (sum, count)}``, without gradient.
        mesh: the ranks; None runs everything here.
        devices: device of every stage (local), or of this rank (a single one, with a mesh); the CPU by default.
        seed: of the keyed randomness.
        trace: record when each action runs.

    Raises:
        UserError: the partition, the schedule or their numbers cannot be.
    """

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        partition: Sequence[int],
        *,
        num_micro_batches: int,
        loss: Loss,
        metrics: Metrics | None = None,
        schedule: str | Generator = "gpipe",
        num_virtual_stages: int = 1,
        remat: str | Remat = "always",
        mesh: PipelineMesh | None = None,
        devices: Sequence[torch.device] | None = None,
        seed: int = 0,
        trace: bool = False,
    ) -> None:
        total_stages = len(partition)
        check_partition(partition, sum(partition) if mesh else len(layers), total_stages)
        if num_virtual_stages < 1 or total_stages % num_virtual_stages:
            raise UserError(
                f"a partition of {total_stages} stages cannot give each rank num_virtual_stages={num_virtual_stages} "
                "of them"
            )
        self.seed = seed
        self.num_micro_batches = num_micro_batches
        self.partition = tuple(partition)
        self.mesh = mesh
        self._build = lambda num_micro_batches: make_schedule(
            schedule,
            num_stages=total_stages // num_virtual_stages,
            num_micro_batches=num_micro_batches,
            num_virtual_stages=num_virtual_stages,
            remat=remat,
        )
        self._plans: dict[tuple[int, bool], tuple[Schedule, tuple[tuple[int, Action], ...]]] = {}
        planned = self.schedule(num_micro_batches)
        require_executable(planned)
        self._remat, placement = planned.remat, planned.placement
        self._last_rank = placement[-1][0]
        here = (
            range(total_stages)
            if mesh is None
            else [s for s in range(total_stages) if mesh.pipeline_rank in placement[s]]
        )
        placed = list(devices) if devices is not None else [torch.device("cpu")]
        by_stage = placed if len(placed) == total_stages else [placed[0]] * total_stages
        ends = list(accumulate(partition))
        self.stages = {
            stage: Stage(
                stage,
                {index: layers[index] for index in range(ends[stage] - partition[stage], ends[stage])},
                by_stage[stage],
                loss=loss if stage == total_stages - 1 else None,
                metrics=metrics if stage == total_stages - 1 else None,
            )
            for stage in here
        }
        self._parameters = [p for stage in self.stages.values() for p in stage.parameters()]
        self._last = total_stages - 1
        self._device = by_stage[here[0]]
        self._generators = [generator(device) for device in dict.fromkeys(by_stage[stage] for stage in here)]
        self.recorder = Recorder(clocks_for(by_stage) if trace else None)
        self._sender = Sender()
        self._transport = (
            LocalTransport(by_stage)
            if mesh is None
            else ProcessTransport(mesh, self._device, total_stages, self._sender)
        )
        self._batches = Batches(mesh, self._sender, self.stages, placement)

    @property
    def events(self) -> list[Event]:
        """The actions of the last step of this rank (all ranks when local), with their times, if ``trace`` is on."""
        return self.recorder.events

    def schedule(self, num_micro_batches: int | None = None) -> Schedule:
        """The training schedule for M micro-batches, as it is executed."""
        return self._plan(num_micro_batches or self.num_micro_batches, forward=False)[0]

    def train_step(
        self, inputs: Boundary | None, targets: Boundary | None, *, batch_counter: int, loss_scale: float = 1.0
    ) -> StepResult:
        """Runs the whole schedule on one mini-batch.

        Args:
            inputs: the mini-batch, on the rank that reads data; None on the others, and where a replica has no rows.
            targets: likewise.
            batch_counter: mini-batches of the run before this one; part of the key of all randomness.
            loss_scale: B starts from it (16-bit training); it is taken out again by ``StepResult.accumulate``.

        Returns:
            Loss and metrics, and gradients set aside: ``.grad`` is as before.

        Raises:
            BatchError: the mini-batch cannot be cut, or a layer's output cannot travel.
            StageError: a layer, the loss or the metrics raised; the original exception is the cause.
            PipelineError: another rank failed.
        """
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        try:
            totals, rows, _ = self._step(Mode.TRAIN, inputs, targets, batch_counter, loss_scale)
            stash = {p: p.grad for p in self._parameters if p.grad is not None}
        finally:
            for parameter, gradient in zip(self._parameters, before, strict=True):
                parameter.grad = gradient
        correction = rows / totals.count / loss_scale if totals.count else float("nan")
        return StepResult(totals, stash, correction, rows)

    @torch.no_grad()
    def evaluate(self, inputs: Boundary | None, targets: Boundary | None, *, batch_counter: int = 0) -> Totals:
        """Forward only; returns loss and metrics, equal on every rank. Arguments and errors as for ``train_step``."""
        return self._step(Mode.EVALUATE, inputs, targets, batch_counter)[0]

    @torch.no_grad()
    def predict(self, inputs: Boundary | None, *, batch_counter: int = 0) -> Boundary | None:
        """Forward only; returns the outputs in order on the rank that reads data, None on the others."""
        return self._step(Mode.PREDICT, inputs, None, batch_counter)[2]

    def holds(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all ``parameters`` are those of this rank's layers, as they were when the engine was made."""
        own = {id(parameter) for parameter in self._parameters}
        return all(id(parameter) in own for parameter in parameters)

    def close(self) -> None:
        """Waits until what was sent has arrived; a failure ends that too."""
        self._sender.drain()

    def _plan(self, num_micro_batches: int, *, forward: bool) -> tuple[Schedule, tuple[tuple[int, Action], ...]]:
        known = self._plans.get((num_micro_batches, forward))
        if known is None:
            schedule = self._build(num_micro_batches)
            if forward:
                schedule = forward_only(schedule)
            rank = None if self.mesh is None else self.mesh.pipeline_rank
            plan = (
                merged_order(schedule) if rank is None else tuple((rank, action) for action in schedule.actions[rank])
            )
            known = self._plans[num_micro_batches, forward] = (schedule, plan)
        return known

    def _step(
        self, mode: Mode, inputs: Boundary | None, targets: Boundary | None, batch_counter: int, loss_scale: float = 1.0
    ) -> tuple[Totals, int, Boundary | None]:
        """Totals, rows and predictions; random generators are as before, and a failed step leaves nothing behind."""
        states = [drawn_from.get_state() for drawn_from in self._generators]
        try:
            return self._run(mode, inputs, targets, batch_counter, loss_scale)
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            for drawn_from, state in zip(self._generators, states, strict=True):
                drawn_from.set_state(state)
            self._transport.forget()
            for stage in self.stages.values():
                stage.forget()

    def _run(
        self, mode: Mode, inputs: Boundary | None, targets: Boundary | None, batch_counter: int, loss_scale: float
    ) -> tuple[Totals, int, Boundary | None]:
        coming, batch_counter = self._batches.agree(mode, inputs, targets, batch_counter)
        parts = micro_batch_rows(coming.rows, self.num_micro_batches)
        step = Step(
            mode,
            self.stages,
            self._transport,
            self.recorder.running,
            last=self._last,
            rows=parts,
            key=StepKey(self.seed, batch_counter, self.mesh.replica if self.mesh else 0),
            remat=self._remat,
            seed=loss_scale / coming.rows if coming.rows else 0.0,
        )
        self.recorder.clear()
        if parts:
            schedule, plan = self._plan(len(parts), forward=mode is not Mode.TRAIN)
            step.inputs = self._batches.micro_batches(inputs, coming.inputs, 0, parts)
            self._batches.hand_out(inputs, 0)
            # After the inputs: NCCL would hold them back behind a receive from the same rank.
            self._transport.begin(schedule, parts, self.recorder, (mode, coming.rows, coming.inputs))
            step.targets = self._batches.micro_batches(targets, coming.targets, self._last, parts)
        if self.mesh is not None and self.mesh.reads_data:
            # Not before: the others, once they know, take time from this rank where they share its cores.
            self._batches.announce(coming, batch_counter)
        if parts:
            for position, (rank, action) in enumerate(plan):
                try:
                    if position == 0:
                        step.prepare(planned for _, planned in plan)
                    step.execute(rank, action)
                    if position == 0 and self.mesh is not None and self.mesh.reads_data:
                        # Not before: the next stage waits for the first action.
                        self._batches.hand_out(targets, self._last)
                        self.mesh.mail.post()
                except (StageError, PipelineError):
                    raise
                except Exception as error:
                    raise self._located(error, rank, action) from error
            self._transport.finish()
        totals = Totals() if mode is Mode.PREDICT else self._share(step.totals())
        outputs = self._collect(step.outputs) if mode is Mode.PREDICT and parts else None
        if mode is Mode.TRAIN:
            reduce = self.mesh.sum_over_replicas if self.mesh and self.mesh.data_parallel_size > 1 else None
            for stage in self.stages.values():
                stage.batch_norm.update(reduce)
        return totals, coming.rows, outputs

    def _collect(self, outputs: dict[int, Boundary]) -> Boundary | None:
        """Brings predictions from the last stage to the rank that reads data."""
        mesh = self.mesh
        here = mesh is None or mesh.pipeline_rank == self._last_rank
        whole = gather([outputs[part] for part in sorted(outputs)]) if here else None
        if mesh is None or self._last_rank == 0:
            return whole
        outward = mesh.channel("activation", self._last_rank, 0)
        if whole is not None:
            self._sender.send_boundary(whole, mesh.rank_of(0), mesh.control, outward)
            self._transport.finish()
            return None
        if mesh.reads_data:
            return receive_boundary(mesh.rank_of(self._last_rank), mesh.mail, outward, self._device)
        return None

    def _share(self, totals: Totals) -> Totals:
        """Brings the last stage's totals, summed over the replicas, to every rank."""
        mesh = self.mesh
        if mesh is None:
            return totals
        if mesh.pipeline_rank != self._last_rank:
            return Totals.unpacked(*mesh.mail.receive_known(mesh.rank_of(self._last_rank)))
        if mesh.data_parallel_size > 1:
            gathered: list[Totals] = [Totals()] * mesh.data_parallel_size
            mesh.gather_over_replicas(gathered, totals)
            totals = sum(gathered, Totals())
        names, numbers = totals.packed()
        for peer in range(mesh.num_stages):
            if peer != mesh.pipeline_rank:
                self._sender.send_known(names, numbers, mesh.rank_of(peer), mesh.control)
        return totals

    def _located(self, error: Exception, rank: int, action: Action) -> Exception:
        """The error with the place where it arose."""
        where = (
            f"rank {self.mesh.global_rank if self.mesh else rank}, stage {action.stage}, micro-batch "
            f"{action.micro_batch}, {Kind(action.kind).name.lower().replace('_', ' ')}"
        )
        if isinstance(error, ConnectionLost):
            return ConnectionLost(error.peer, where)
        if isinstance(error, UserError):
            return type(error)(f"{where}: {error}")
        return StageError(f"{where}: {describe(error)}")

    def _tell(self, error: BaseException) -> None:
        """Tells the other ranks that this one has failed, where they do not know."""
        if self.mesh is None or isinstance(error, PipelineError):
            return
        if isinstance(error, ConnectionLost):
            raise self.mesh.explained(error) from error
        self.mesh.watchdog.report(
            str(error)
            if isinstance(error, StageError | UserError)
            else f"rank {self.mesh.global_rank}: {describe(error)}"
        )
