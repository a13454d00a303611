"""What a checkpoint of a pipeline holds, and how it comes back: the unsplit state, for any K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from .batch_count import BatchCount, open_batch
from .gathering import OptimizerLayout, gather_gradients, gather_module_state, load_module_state
from .pipeline_module import PipelineModule
from .ranked_strategy import RankedStrategy
from .reading import Resumption
from .schedulers import due_steps, make_up_for

_CHECKPOINT_KEY = "gpipe"


class CheckpointedStrategy(RankedStrategy):
    """Gathers the state of all ranks where a checkpoint is saved, and deals it out where one is loaded."""

    def __init__(self, *args: Any, **lightning: Any) -> None:
        super().__init__(*args, **lightning)
        self._seed = 0
        self._last_rank = 0
        self._layouts: list[OptimizerLayout] = []
        self._count = BatchCount()
        self._resume: dict[str, Any] = {}
        self._resumption = Resumption()

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        return self.module_state_dict(self._module)

    def module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """The unsplit state dict of the module that is trained or of a copy of it, on the first rank; empty elsewhere.

        Every rank must call it.
        """
        if self._has_failed:
            return {}
        with self._connected() as mesh:
            return gather_module_state(module, mesh, self._last_rank)

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        if self._has_failed:
            return {}
        plain = getattr(optimizer, "_optimizer", optimizer)
        with self._connected() as mesh:
            which = self.optimizers.index(plain)
            self._layouts[which] = self._layouts[which].with_new_groups(plain)
            return self._layouts[which].gather(plain, mesh)

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None) -> None:
        if self._has_failed:
            rank_zero_warn(
                f"{filepath} is not saved: an exception has ended the run, so not all {self._num_ranks} processes are "
                "there to give their part of the state"
            )
            return
        loops = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        state = {
            "seed": self._seed,
            **self._count.state(self._module.trainer),
            # Plain Lightning refuses the state of a loader that it does not have, so it is kept here.
            "loaders": loops.pop("combined_loader", []),
            "gradients": self._window_gradients(),
            "due_steps": due_steps(self._module.trainer),
        }
        checkpoint[_CHECKPOINT_KEY] = state
        super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: _PATH, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._resume = checkpoint.get(_CHECKPOINT_KEY, {})
        self._resumption = Resumption(self._resume.get("loaders", ()))
        return checkpoint

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        load_module_state(self._module, checkpoint["state_dict"], strict=strict)

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, layout, state in zip(
            self.optimizers, self._layouts, checkpoint["optimizer_states"], strict=True
        ):
            layout.load(optimizer, state)
        _optimizers_to_device(self.optimizers, self.root_device)

    @override
    def on_train_start(self) -> None:
        gradients = self._resume.get("gradients", {})
        make_up_for(self._resume.get("due_steps", {}), self._module.trainer)
        self._resume = {}
        if self._mesh is not None and self._mesh.replica != 0:
            return  # they are the sum over the replicas
        for name, parameter in self._module.named_parameters():
            if name in gradients and not parameter.is_meta:
                parameter.grad = gradients[name].to(parameter.device, parameter.dtype)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # At the end of an epoch that was resumed Lightning leaves schedulers that follow a metric alone, in case that
        # the metric is not there; once the epoch has gone on it is.
        self._module.trainer.fit_loop._restarting = False

    def _window_gradients(self) -> dict[str, Tensor]:
        """The gradients of an accumulation window that is open, on the first rank."""
        trainer = self._module.trainer
        if trainer.state.fn != TrainerFn.FITTING or not (trainer.fit_loop._should_accumulate() or open_batch(trainer)):
            return {}
        with self._connected() as mesh:
            return gather_gradients(self._module, mesh)

    @property
    def _module(self) -> PipelineModule:
        module = self.lightning_module
        assert isinstance(module, PipelineModule)
        return module
