"""How ``repro plan`` shows what it found: lines for people, plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from repro.planning.advice import Suggestion
from repro.planning.planner import Plan, Search, TooLarge
from repro.planning.problem import Problem
from repro.planning.traffic import data_parallel, ring_all_reduce, tensor_parallel

GIB = 2**30
_HEADERS = ("", "K x D", "schedule", "V", "M", "rows", "remat", "step", "rows/s", "bubble", "GiB", "boundary")


def configured_lines(plan: Plan, problem: Problem) -> list[str]:
    """The configuration's own numbers: memory of every rank, and whether it fits."""
    excess = plan.largest - problem.memory
    verdict = "fits" if excess <= 0 else f"does not fit: {excess / GIB:.2f} GiB too much on its largest rank"
    return [
        f"as configured    {plan.choice}",
        f"                 {verdict}; GiB by rank {_gib(plan.rank_bytes)}; partition {_counts(plan.partition)}",
        f"                 predicted step {seconds(plan.step_seconds)}, bubble {100 * plan.bubble:.1f}%",
    ]


def plan_lines(plans: Sequence[Plan], problem: Problem) -> list[str]:
    """The best plans as a table, and partition and memory of each."""
    rows: list[Sequence[str]] = [_HEADERS]
    for number, plan in enumerate(plans, start=1):
        choice = plan.choice
        micro_batch = problem.batch_size // (choice.data_parallel_size * choice.num_micro_batches)
        rows.append(
            (
                str(number),
                f"{choice.num_stages} x {choice.data_parallel_size}",
                choice.schedule,
                str(choice.num_virtual_stages),
                str(choice.num_micro_batches),
                str(micro_batch),
                choice.remat,
                seconds(plan.step_seconds),
                f"{problem.batch_size / plan.step_seconds:.4g}",
                f"{100 * plan.bubble:.1f}%",
                f"{plan.largest / GIB:.2f}",
                size(max(plan.boundary_bytes, default=0)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for number, plan in enumerate(plans, start=1):
        lines.append(f"{number}  layers by stage {_counts(plan.partition)}; GiB by rank {_gib(plan.rank_bytes)}")
    return lines


def traffic_lines(plan: Plan, problem: Problem) -> list[str]:
    """Bytes of a step of the best plan, beside those of tensor and data parallelism on as many devices."""
    figures = traffic(plan, problem)
    devices = problem.devices
    return [
        "bytes that a device sends in a step",
        f"  this plan             {size(figures['pipeline'])} across its boundaries, on the rank that sends most"
        + (f"; {size(figures['all_reduce'])} of gradients" if figures["all_reduce"] else ""),
        f"  tensor parallelism    {size(figures['tensor_parallel'])} at least, with every layer split over {devices} "
        "devices: 4 x 2 n (N - 1) / N for a layer's output of n bytes",
        "                        (Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2)",
        f"  data parallelism      {size(figures['data_parallel'])} with the whole model on each of {devices} devices: "
        "2 n (N - 1) / N for n bytes of gradients",
        "                        (ring all-reduce, Patarasuk and Yuan 2009)",
    ]


def traffic(plan: Plan, problem: Problem) -> dict[str, float]:
    """Bytes that a device sends in a step."""
    choice = plan.choice
    row = problem.model(1)
    # What a layer hands on without a change is no output of its own; the last one's are reduced in the loss.
    outputs = [
        problem.batch_size * sum(output.size for output in layer.outputs if output.passes is None)
        for layer in row.layers[:-1]
    ]
    largest = max(stage.parameters for stage in row.stages(plan.partition))
    return {
        "pipeline": max(plan.sent_bytes, default=0),
        "all_reduce": ring_all_reduce(largest * problem.gradient_bytes, choice.data_parallel_size),
        "tensor_parallel": tensor_parallel(outputs, problem.devices),
        "data_parallel": data_parallel(problem.parameters, problem.gradient_bytes, problem.devices),
    }


def fallen_lines(found: Search) -> list[str]:
    """Why the others fell out, in groups."""
    lines = [f"why the others fell out (of {found.considered} choices)"]
    groups = dict(found.refused)
    if found.slower:
        groups["fit, but are slower than another M or remat of the same layout, or than all plans shown"] = found.slower
    if found.pruned:
        groups["not replayed: even a lower bound of their time is slower than what was found"] = found.pruned
    hopeless = [one for one in found.too_large if one.parameters_alone]
    tried = [one for one in found.too_large if not one.parameters_alone]
    if hopeless:
        stages = sorted({one.choice.num_stages for one in hopeless})
        text = f"out of memory by the parameters alone, with K = {', '.join(map(str, stages))}"
        groups[f"{text}: at least {gib(min(one.excess for one in hopeless))} too much"] = len(hopeless)
    if tried:
        closest = min(tried, key=lambda one: one.excess)
        most = max(one.excess for one in tried)
        text = f"out of memory, by {gib(closest.excess)} to {gib(most)}; closest: {closest.choice}"
        groups[text] = len(tried)
    width = max((len(str(count)) for count in groups.values()), default=0)
    return [*lines, *(f"  {count:>{width}}  {reason}" for reason, count in groups.items())]


def advice_lines(
    problem: Problem, needed: int | None, suggestions: Sequence[Suggestion], others: list[str]
) -> list[str]:
    """What would fit."""
    lines = ["nothing fits. What would:"]
    lines += [f"  {one.change} (needs {gib(one.needed)} of {gib(problem.memory)})" for one in suggestions]
    lines += [f"  {one}" for one in others]
    if needed is not None:
        lines.append(f"  devices with {gib(needed)} or more to plan with, where these have {gib(problem.memory)}")
    if len(lines) == 1:
        lines.append("  none of more stages, re-materialization and smaller micro-batches: take a smaller model")
    return lines


def plan_json(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Plain values."""
    return {
        **asdict(plan.choice),
        "partition": list(plan.partition),
        "micro_batch_rows": -(-problem.batch_size // (plan.choice.data_parallel_size * plan.choice.num_micro_batches)),
        "provenance": "simulated",
        "step_seconds": plan.step_seconds,
        "reduce_seconds": plan.reduce_seconds,
        "rows_per_second": problem.batch_size / plan.step_seconds,
        "bubble": plan.bubble,
        "rank_bytes": list(plan.rank_bytes),
        "boundary_bytes": list(plan.boundary_bytes),
        "fits": plan.largest <= problem.memory,
        "bytes_sent": traffic(plan, problem),
    }


def fallen_json(found: Search) -> dict[str, Any]:
    """Plain values."""
    closest: TooLarge | None = min(found.too_large, key=lambda one: one.excess, default=None)
    return {
        "considered": found.considered,
        "refused": found.refused,
        "slower": found.slower,
        "pruned": found.pruned,
        "out_of_memory": len(found.too_large),
        "closest": None if closest is None else {**asdict(closest.choice), "excess": closest.excess},
    }


def gib(nbytes: float) -> str:
    """Bytes as GiB."""
    return f"{nbytes / GIB:.2f} GiB"


def size(nbytes: float) -> str:
    """Bytes in a unit that is easy to read."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} B"


def seconds(value: float) -> str:
    """Seconds or milliseconds."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _gib(sizes: Sequence[int]) -> str:
    shown = [f"{value / GIB:.2f}" for value in sizes]
    return " ".join(shown if len(shown) <= 16 else [*shown[:8], "...", *shown[-4:]])


def _counts(counts: Sequence[int]) -> str:
    """Layer counts, runs of equal ones together: 3 x 4 means three stages of 4."""
    words: list[str] = []
    position = 0
    while position < len(counts):
        run = 1
        while position + run < len(counts) and counts[position + run] == counts[position]:
            run += 1
        words.append(str(counts[position]) if run == 1 else f"{run} x {counts[position]}")
        position += run
    return ", ".join(words)
