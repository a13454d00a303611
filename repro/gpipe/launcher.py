"""Lightning's script launcher, which looks first for errors that can be known in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from typing_extensions import override


class CheckingLauncher(_SubprocessScriptLauncher):
    """Checks the module before it starts processes, so that an error is told once.

    Args:
        check: raises where the module cannot run.
        environment: of the cluster.
        num_processes: on this machine.
        num_nodes: machines.
    """

    def __init__(
        self,
        check: Callable[[pl.LightningModule], None],
        environment: ClusterEnvironment,
        num_processes: int,
        num_nodes: int,
    ) -> None:
        super().__init__(environment, num_processes, num_nodes)
        self._check = check

    @override
    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        if trainer is not None and trainer.lightning_module is not None:
            self._check(trainer.lightning_module)
        return super().launch(function, *args, trainer=trainer, **kwargs)
