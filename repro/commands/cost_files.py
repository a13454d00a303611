"""Costs of actions from a file: what a profile or a trace of a run says, or numbers of one's own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from repro.errors import UserError
from repro.planning import partition

Cost = float | tuple[float, ...]

_NAMES = ("forward", "backward", "recompute", "weight", "transfer")
_ACTION = re.compile(r"([FRBIW])(\d+)@(\d+)")


class Shape(NamedTuple):
    """K, M and K x V of a run."""

    num_stages: int
    num_micro_batches: int
    total_stages: int


def read_costs(path: Path, num_stages: int) -> dict[str, Cost]:
    """Costs for ``simulate`` from a JSON file, in the file's unit (a trace has microseconds).

    Understood are: an object with ``forward``, ``backward`` and perhaps ``recompute``, ``weight``, ``transfer``, each
    a number, a list with one value per stage, or a list with one value per layer; a profile of layers (``seconds`` of
    F and B together, of which F counts as a third); the output of ``repro schedule --json``; a trace in Chrome's
    format, whose medians per stage and kind count. Layers become stages by the partition with the smallest largest
    stage.

    Args:
        path: of the file.
        num_stages: K x V.

    Raises:
        UserError: the file cannot be read, or does not have what is needed.
    """
    data = _read(path)
    if "traceEvents" in data:
        return _of_trace(path, data["traceEvents"], num_stages)
    if "seconds" in data:
        seconds = _values(path, "seconds", data["seconds"])
        data = {"forward": [value / 3 for value in seconds], "backward": [2 * value / 3 for value in seconds]}
    found = data.get("costs", data)
    costs = {name: found[name] for name in _NAMES if isinstance(found, Mapping) and found.get(name) is not None}
    if not {"forward", "backward"} <= set(costs):
        raise UserError(f"--costs {path}: there is no forward and backward in it (known: {', '.join(_NAMES)})")
    return _by_stage(path, costs, num_stages)


def trace_shape(path: Path) -> Shape | None:
    """The numbers of the run that a trace is of; None for files of other kinds.

    Raises:
        UserError: the file cannot be read.
    """
    ranks, stages, micro_batches = set(), set(), set()
    for action, event in _actions(_read(path).get("traceEvents")):
        ranks.add(event.get("pid"))
        stages.add(action[3])
        micro_batches.add(action[2])
    return Shape(len(ranks), len(micro_batches), len(stages)) if stages else None


def _read(path: Path) -> dict[str, Any]:
    try:
        # Whole numbers as well: one that no float holds becomes infinite, and is refused as such.
        data = json.loads(path.read_text(encoding="utf-8"), parse_int=float)
    except OSError as error:
        raise UserError(f"--costs {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"--costs {path}: this is no JSON ({error})") from None
    if not isinstance(data, dict):
        raise UserError(f"--costs {path}: give an object with {', '.join(_NAMES)}, a profile, or a trace")
    return data


def _by_stage(path: Path, costs: Mapping[str, Any], num_stages: int) -> dict[str, Cost]:
    lists = {
        name: _values(path, name, value)
        for name, value in costs.items()
        if isinstance(value, Sequence) and name != "transfer"
    }
    per_stage: dict[str, Cost] = {}
    for name, value in costs.items():
        if name not in lists:
            values = _values(path, name, value if isinstance(value, Sequence) else [value])
            per_stage[name] = tuple(values) if isinstance(value, Sequence) else values[0]
    lengths = {len(values) for values in lists.values()}
    if len(lengths) > 1:
        counts = ", ".join(f"{name}: {len(values)}" for name, values in lists.items())
        raise UserError(f"--costs {path}: the lists have different lengths ({counts})")
    layers = max(lengths, default=num_stages)
    if layers < num_stages:
        raise UserError(f"--costs {path}: {layers} values are too few for {num_stages} stages (K x V)")
    sizes = [1] * num_stages
    if layers > num_stages:
        together = [lists.get("forward", [0.0] * layers), lists.get("backward", [0.0] * layers)]
        sizes = list(partition([sum(both) for both in zip(*together, strict=True)], num_stages))
    for name, values in lists.items():
        ends = [sum(sizes[: stage + 1]) for stage in range(num_stages)]
        per_stage[name] = tuple(sum(values[end - size : end]) for size, end in zip(sizes, ends, strict=True))
    return per_stage


def _of_trace(path: Path, events: object, num_stages: int) -> dict[str, Cost]:
    durations: dict[tuple[str, int], list[float]] = {}
    for action, event in _actions(events):
        if isinstance(event.get("dur"), int | float):
            durations.setdefault((action[1], int(action[3])), []).append(float(event["dur"]))
    stages = {stage for _, stage in durations}
    if stages != set(range(num_stages)):
        raise UserError(f"--costs {path}: the trace has actions of {len(stages)} stages, but K x V is {num_stages}")
    by_kind = {
        kind: tuple(median(durations.get((kind, stage), [0.0])) for stage in range(num_stages)) for kind in "FRBIW"
    }
    backward = tuple(max(b, i + w) for b, i, w in zip(by_kind["B"], by_kind["I"], by_kind["W"], strict=True))
    costs: dict[str, Cost] = {"forward": by_kind["F"], "backward": backward}
    if any(by_kind["R"]):
        costs["recompute"] = by_kind["R"]
    if any(by_kind["W"]):
        costs["weight"] = by_kind["W"]
    return costs


def _actions(events: object) -> Iterator[tuple[re.Match[str], dict[str, Any]]]:
    """The events of a trace that are actions: kind, micro-batch and stage, and the event."""
    for event in events if isinstance(events, list) else []:
        action = _ACTION.fullmatch(str(event.get("name"))) if isinstance(event, dict) else None
        if action:
            yield action, event


def _values(path: Path, name: str, values: Any) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise UserError(f"--costs {path}: {name} is not a number or a list of numbers")
    if not all(map(math.isfinite, values)):
        raise UserError(f"--costs {path}: {name} holds a number that is not finite, or too large")
    return [float(value) for value in values]
