"""The GPipe strategy: stages, micro-batches, schedules and re-materialization for PyTorch Lightning.

Importing this package registers ``Trainer(strategy="gpipe")``.
"""

from __future__ import annotations

from lightning.pytorch.strategies import StrategyRegistry

from .averaging import ExponentialMovingAverage
from .engine import Engine
from .failure import PipelineError, StageError
from .microbatch import BatchError
from .pipeline_module import PipelineModule
from .results import StepResult, Totals
from .stage import is_recomputing
from .strategy import GPipeStrategy
from .trace_files import TraceWriter
from .tracing import Event, Trace, Transfer
from .verification import Verification, verify

__all__ = [
    "BatchError",
    "Engine",
    "Event",
    "ExponentialMovingAverage",
    "GPipeStrategy",
    "PipelineError",
    "PipelineModule",
    "StageError",
    "StepResult",
    "Totals",
    "Trace",
    "TraceWriter",
    "Transfer",
    "Verification",
    "is_recomputing",
    "verify",
]

GPipeStrategy.register_strategies(StrategyRegistry)
