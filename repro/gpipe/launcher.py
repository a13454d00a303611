"""Lightning's script launcher, which looks first for errors that can be known in advance."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.signal_connector import _get_sigkill_signal
from typing_extensions import override

_PERIOD = 1.0
"""Seconds between two looks at the processes."""
_GRACE = 7.0
"""Seconds that the ranks have to tell a failure and end; the watchdog of each takes up to 6."""


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
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            threading.Thread(target=self._observe, name="gpipe-launcher", daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def _observe(self) -> None:
        """Ends everything where a process that was started has failed and the ranks did not end by themselves.

        Lightning's own observer kills all processes at once, before they can say what happened.
        """
        while all(process.poll() in (None, 0) for process in self.procs):
            if all(process.poll() == 0 for process in self.procs):
                return
            time.sleep(_PERIOD)
        time.sleep(_GRACE)
        failed = next(process for process in self.procs if process.poll() not in (None, 0))
        print(f"process {failed.pid} ended with exit code {failed.returncode}; ends all others", file=sys.stderr)
        self.kill(_get_sigkill_signal())
        os._exit(1)
