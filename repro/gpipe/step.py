"""One mini-batch on its way through the stages of a process, action by action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repro.schedules import Action, Kind, Message, Remat

from .microbatch import Boundary, MicroBatches, elements
from .results import Totals
from .rng import StepKey
from .stage import MicroBatchReport, Stage
from .transport import LocalTransport


class Mode(StrEnum):
    """What a step is for."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


class Step:
    """Runs actions, and keeps what the first and the last stage need and make.

    Args:
        mode: what the step is for.
        stages: those of this process, by number.
        transport: brings messages.
        running: around the arithmetic of each action (the recorder).
        last: number of the last stage.
        rows: rows of each micro-batch.
        key: of all randomness.
        remat: which micro-batches drop their activations.
        seed: gradient of each micro-batch's loss sum, from which B starts.
    """

    def __init__(
        self,
        mode: Mode,
        stages: Mapping[int, Stage],
        transport: LocalTransport,
        running: Callable[[int, Action], AbstractContextManager[None]],
        *,
        last: int,
        rows: tuple[int, ...],
        key: StepKey,
        remat: Remat,
        seed: float,
    ) -> None:
        self._mode = mode
        self._stages = stages
        self._transport = transport
        self._running = running
        self._last = last
        self._key = key
        self._drops = [remat.recomputes(micro_batch, len(rows)) for micro_batch in range(len(rows))]
        self._seed = seed
        # Layers leave autocast as they find it, so one look does for all actions.
        kinds = {"cpu", *(stage.device.type for stage in stages.values())}
        self._autocast = any(torch.is_autocast_enabled(kind) for kind in kinds)
        self._wanted: dict[tuple[int, int], bool] = {}
        self._reports: dict[int, MicroBatchReport] = {}
        self.inputs: MicroBatches | None = None
        self.targets: MicroBatches | None = None
        self.outputs: dict[int, Boundary] = {}

    def prepare(self, actions: Iterable[Action]) -> None:
        """Prepares each F whose inputs are here or on their way.

        All at once, before the first action: one by one between the actions it takes several times as long, and where
        the first inputs are still on their way it takes no time.
        """
        if self._mode is Mode.TRAIN:
            for action in actions:
                if action.kind is Kind.FORWARD:
                    self._prepare(action)

    def execute(self, rank: int, action: Action) -> None:
        """Waits for what ``action`` needs, runs it, and sends what it made."""
        if action.kind is Kind.FORWARD:
            self._forward(rank, action)
        elif action.kind is Kind.RECOMPUTE:
            with self._running(rank, action):
                self._forget_casts()
                self._stages[action.stage].recompute(action.micro_batch)
        elif action.kind is Kind.WEIGHT_GRADIENT:
            stage = self._stages[action.stage]
            with self._running(rank, action), self._without_autocast(stage.device):
                stage.backward_weights(action.micro_batch)
        else:
            self._backward(rank, action)

    def totals(self) -> Totals:
        """Sums over the micro-batches that the last stage has seen here."""
        totals = Totals()
        for report in self._reports.values():
            metrics = {name: (float(value), float(count)) for name, (value, count) in report.metrics.items()}
            totals += Totals(float(report.loss_sum.detach()), float(report.count), metrics)
        return totals

    def _prepare(self, action: Action) -> None:
        _, index, micro_batch = action
        message = Message("activation", index - 1, index, micro_batch)
        coming = self._transport.coming_activation(message) if index else self._first_inputs(micro_batch)
        if coming is not None:
            self._stages[index].prepare(micro_batch, coming, self._key, drop=self._drops[micro_batch])

    def _first_inputs(self, micro_batch: int) -> Boundary:
        assert self.inputs is not None
        return self.inputs[micro_batch]

    def _forward(self, rank: int, action: Action) -> None:
        _, index, micro_batch = action
        stage = self._stages[index]
        if index == 0:
            inputs = self._first_inputs(micro_batch)
        else:
            if self._mode is Mode.TRAIN and not stage.is_prepared(micro_batch):
                self._prepare(action)
            inputs = self._transport.receive_activation(Message("activation", index - 1, index, micro_batch))
        targets = None
        if index == self._last and self.targets is not None:
            targets = partial(self.targets.__getitem__, micro_batch)
        with self._running(rank, action):
            self._forget_casts()
            if self._mode is Mode.TRAIN:
                outputs, report = stage.forward(micro_batch, inputs, targets, self._key, drop=self._drops[micro_batch])
            else:
                outputs, report = stage.infer(micro_batch, inputs, targets, self._key)
        if index < self._last:
            training = self._mode is Mode.TRAIN
            flags = stage.wanted(micro_batch) if training else (False,) * len(elements(outputs))
            self._wanted[index, micro_batch] = any(flags)
            self._transport.send_activation(Message("activation", index, index + 1, micro_batch), outputs, flags)
        elif report is not None:
            self._reports[micro_batch] = report
        elif self._mode is Mode.PREDICT:
            self.outputs[micro_batch] = outputs

    def _backward(self, rank: int, action: Action) -> None:
        kind, index, micro_batch = action
        stage = self._stages[index]
        gradients: tuple[Tensor | None, ...]
        if index == self._last:
            loss_sum = self._reports[micro_batch].loss_sum
            gradients = (torch.full_like(loss_sum, self._seed),)
        elif self._wanted[index, micro_batch]:
            gradients = self._transport.receive_gradient(Message("gradient", index + 1, index, micro_batch))
        else:
            gradients = ()
        with self._running(rank, action), self._without_autocast(stage.device):
            run = stage.backward_inputs if kind is Kind.INPUT_GRADIENT else stage.backward
            input_gradients = run(micro_batch, gradients)
        if index > 0 and any(pair is not None for pair in input_gradients):
            self._transport.send_gradient(Message("gradient", index, index - 1, micro_batch), input_gradients)

    def _forget_casts(self) -> None:
        # A weight that autocast has cast without grad mode (F under remat) must not be taken for R's.
        if self._autocast:
            torch.clear_autocast_cache()

    def _without_autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, enabled=False) if self._autocast else nullcontext()
