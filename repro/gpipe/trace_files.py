"""Traces as files: Chrome's trace format, which Perfetto opens too, and a timeline as SVG."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from typing_extensions import override

from repro.errors import UserError
from repro.words import counted

from .clocks import gather_trace
from .strategy import GPipeStrategy
from .tracing import Event, Trace, Transfer

# Okabe and Ito: colour-blind readers can tell them apart.
COLOURS = {"F": "#56B4E9", "R": "#E69F00", "B": "#009E73", "I": "#009E73", "W": "#CC79A7"}
WORDS = {"F": "forward", "R": "recompute", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_COMPUTE, _MESSAGES = 0, 1
_ROW, _GAP, _MARGIN, _HEAD, _FOOT = 28, 8, 64, 52, 34


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """The trace in Chrome's JSON format (``chrome://tracing``, https://ui.perfetto.dev).

    Each rank is a process with a row of actions and a row of messages; arrows lead from a send to its receive. Times
    are microseconds from the first start.
    """
    origin = _origin(trace)
    ranks = sorted({one.rank for one in _everything(trace)})
    made: list[dict[str, Any]] = []
    for rank in ranks:
        made.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        made.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
        for row, name in ((_COMPUTE, "actions"), (_MESSAGES, "messages")):
            made.append({"ph": "M", "pid": rank, "tid": row, "name": "thread_name", "args": {"name": name}})
    for event in trace.actions:
        made.append(
            {
                **_span(event, origin, _COMPUTE),
                "name": f"{event.kind}{event.micro_batch}@{event.stage}",
                "cat": WORDS.get(event.kind, event.kind),
                "args": {
                    "stage": event.stage,
                    "micro-batch": event.micro_batch,
                    "waited (us)": round(1e6 * event.waited, 3),
                },
            }
        )
    numbers: dict[tuple[str, int, int, int], int] = {}
    for transfer in trace.transfers:
        span = _span(transfer, origin, _MESSAGES)
        words = f"{transfer.direction} {transfer.micro_batch}: {transfer.source_stage} to {transfer.target_stage}"
        made.append(
            {**span, "name": f"{transfer.side} {words}", "cat": transfer.side, "args": {"bytes": transfer.num_bytes}}
        )
        arrow = {"name": transfer.direction, "cat": "message", "pid": transfer.rank, "tid": _MESSAGES}
        arrow["id"] = numbers.setdefault(transfer.message, len(numbers))
        sent = transfer.side == "send"
        made.append(
            arrow | ({"ph": "s", "ts": span["ts"]} if sent else {"ph": "f", "bp": "e", "ts": span["ts"] + span["dur"]})
        )
    return {"traceEvents": made, "displayTimeUnit": "ms"}


def svg_timeline(actions: Sequence[Event], title: str, width: int = 960) -> str:
    """A picture of one step: ranks as rows, time from left to right, actions in colours, the bubble hatched.

    Args:
        actions: of one step.
        title: stands above; the share of the bubble is put behind it.
        width: pixels.
    """
    ranks = sorted({event.rank for event in actions})
    begun = min((event.start for event in actions), default=0.0)
    makespan = max((event.end for event in actions), default=0.0) - begun
    scale = (width - _MARGIN - 16) / makespan if makespan > 0 else 0.0
    busy = sum(event.end - event.start for event in actions)
    idle = 1 - busy / (len(ranks) * makespan) if makespan > 0 else 0.0
    height = _HEAD + len(ranks) * (_ROW + _GAP) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#F4F4F4"/><line x1="0" y1="0" x2="0" y2="6" stroke="#C4C4C4"/>'
        "</pattern></defs>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="18" font-size="13">{escape(title)}: bubble {idle:.1%}</text>',
        *_legend(dict.fromkeys(event.kind for event in actions)),
    ]
    tops = {rank: _HEAD + index * (_ROW + _GAP) for index, rank in enumerate(ranks)}
    for rank, top in tops.items():
        parts.append(f'<text x="8" y="{top + 18}">rank {rank}</text>')
        parts.append(
            f'<rect x="{_MARGIN}" y="{top}" width="{scale * makespan:.2f}" height="{_ROW}" fill="url(#idle)"/>'
        )
    for event in sorted(actions, key=lambda event: (event.rank, event.start)):
        left, wide, top = _MARGIN + scale * (event.start - begun), scale * (event.end - event.start), tops[event.rank]
        label = f"{event.kind}{event.micro_batch}"
        parts.append(
            f'<rect x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{_ROW}" fill="{COLOURS[event.kind]}" '
            f'stroke="white" stroke-width="0.6"><title>{label}, stage {event.stage}: '
            f"{1000 * (event.end - event.start):.2f} ms</title></rect>"
        )
        if wide > 7 * len(label):
            parts.append(f'<text x="{left + wide / 2:.2f}" y="{top + 18}" text-anchor="middle">{label}</text>')
    foot = height - 12
    parts.append(f'<text x="{_MARGIN}" y="{foot}">0</text>')
    parts.append(
        f'<text x="{_MARGIN + scale * makespan:.2f}" y="{foot}" text-anchor="end">{1000 * makespan:.1f} ms</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def write_trace(trace: Trace, folder: Path, name: str, title: str) -> tuple[Path, Path]:
    """Writes ``name.json`` (Chrome, Perfetto) and ``name.svg`` into ``folder``, each as a whole.

    Raises:
        UserError: nothing can be written there.
    """
    texts = {
        folder / f"{name}.json": json.dumps(chrome_trace(trace)),
        folder / f"{name}.svg": svg_timeline(trace.actions, title),
    }
    for path, text in texts.items():
        replace_file(path, text)
    made, drawn = texts
    return made, drawn


def replace_file(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` as a whole: a reader sees the old file or the new one.

    Raises:
        UserError: nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another folder") from error


class TraceWriter(Callback):
    """Writes the trace of one training step, which needs ``GPipeStrategy(trace=True)``.

    Args:
        folder: where ``trace.json`` (Chrome, Perfetto) and ``trace.svg`` go.
        step: the batch, counted from 0 over the whole run; the first ones also warm up. A run that ends before it warns
            that nothing was written.

    Raises:
        UserError: at the start, where the strategy does not trace.
    """

    def __init__(self, folder: str, step: int = 5) -> None:
        self._folder = Path(folder)
        self._step = step
        self._seen = 0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not isinstance(trainer.strategy, GPipeStrategy) or not trainer.strategy.traces:
            raise UserError("TraceWriter has nothing to write: use strategy=GPipeStrategy(trace=True)")

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        seen, self._seen = self._seen, self._seen + 1
        if seen != self._step:
            return
        strategy = trainer.strategy
        assert isinstance(strategy, GPipeStrategy)
        trace = gather_trace(strategy.engine.recorder, strategy.mesh)
        if trainer.is_global_zero:
            title = f"K = {strategy.num_stages}, M = {strategy.num_micro_batches}"
            write_trace(trace, self._folder, "trace", title)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._seen <= self._step:
            rank_zero_warn(
                f"TraceWriter(step={self._step}) wrote nothing into {self._folder}: it writes batch {self._step}, "
                f"counted from 0, and the run had {counted(self._seen, 'batch')}; give a smaller step"
            )


def _legend(kinds: dict[str, None]) -> list[str]:
    parts, left = [], _MARGIN
    for fill, words in [
        *((COLOURS[kind], f"{kind} {WORDS[kind]}") for kind in WORDS if kind in kinds),
        ("url(#idle)", "bubble (idle)"),
    ]:
        parts.append(f'<rect x="{left}" y="28" width="14" height="12" fill="{fill}"/>')
        parts.append(f'<text x="{left + 19}" y="38">{words}</text>')
        left += 36 + 7 * len(words)
    return parts


def _origin(trace: Trace) -> float:
    return min((one.start for one in _everything(trace)), default=0.0)


def _everything(trace: Trace) -> list[Event | Transfer]:
    return [*trace.actions, *trace.transfers]


def _span(one: Event | Transfer, origin: float, row: int) -> dict[str, Any]:
    start, duration = 1e6 * (one.start - origin), 1e6 * (one.end - one.start)
    return {"ph": "X", "pid": one.rank, "tid": row, "ts": round(start, 3), "dur": round(duration, 3)}
