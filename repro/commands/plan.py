"""``repro plan``: how to lay a configured model over devices, and whether it fits."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.arguments import ArgumentParser, suggest
from repro.errors import UserError
from repro.experiments.costs.accelerators import accelerator_names, find_accelerator, find_link, link_names
from repro.planning.memory import OPTIMIZER_STATES, bytes_per_parameter
from repro.planning.problem import SCHEDULES, Choice, Problem, Space, Wire
from repro.schedules import Remat

if TYPE_CHECKING:
    from repro.planning.planner import Plan, Search

    from .plan_model import Configured

_DESCRIPTION = """\
Search for the fastest way to train a configured model on a number of equal devices: stages x replicas (K x D),
schedule, micro-batches, re-materialization and partition, such that every rank fits into its memory. The model is read
on the meta device: nothing of its size is allocated, and no data is read."""

_EPILOG = """\
How it predicts. Memory: what autograd keeps of every layer, counted without computing, times what the schedule holds at
a time, and parameters with their gradients and optimizer states. Time: the schedule replayed with the costs of its
stages, messages, and the all-reduce of the gradients after the last backward; the optimizer's arithmetic is left out.
Costs are FLOPs at the rate that an accelerator is assumed to reach (data/hardware/) and a fixed time a layer, or with
--costs profile the seconds of each layer on this machine. The order of plans is worth more than their seconds.

The mini-batch is that of all replicas together: by default the configuration's batch_size x data_parallel_size, the
same for all plans. Other options are those of repro fit.

exit code: 0 there are plans, 1 nothing fits (what would is said), 2 a mistake

examples:
  repro plan configs/transformer/base.yaml --devices 8 --memory 16GiB
  repro plan configs/amoebanet/base.yaml --devices 8 --memory 8GiB --accelerator tpu-v2 --optimizer rmsprop-momentum
  repro plan configs/transformer/base.yaml configs/transformer/laptop.yaml --devices 2 --memory 4GiB --costs profile
  repro plan configs/transformer/base.yaml --devices 16 --per-node 8 --memory 16GiB --write plan.yaml
  repro fit --config configs/transformer/base.yaml --config plan.yaml"""


def main(argv: Sequence[str]) -> int:
    """Runs ``repro plan`` with ``argv``; returns 0 where something fits, else 1."""
    parser = _parser()
    options, others = parser.parse_known_args(argv)
    stray = [word for word in others if word.startswith("-") and not re.match(r"--(model|data|trainer)\b", word)]
    if stray:
        parser.error(f"unknown option {stray[0]}{suggest(stray[0], parser._option_string_actions)}")
    _check(options)
    from .plan_model import read_config

    configured = read_config(options.config, others, options.tokens)
    problem, space = _problem(options, configured), _space(options)
    from repro.planning.possible import require_choices

    require_choices(problem, space)
    return _Command(options, configured, problem, space).run()


class _Command:
    """What is searched, and how it is told."""

    def __init__(self, options: argparse.Namespace, configured: Configured, problem: Problem, space: Space) -> None:
        self._options = options
        self._configured = configured
        self._problem = problem
        self._space = space

    def run(self) -> int:
        """Searches, prints, writes."""
        from repro.planning.planner import search

        from .progress import Counting

        with Counting("choices", quiet=self._options.json) as counting:
            found = search(self._problem, self._space, keep=self._options.top, tell=counting)
        if self._options.json:
            print(json.dumps(self._as_json(found)))
        else:
            print("\n".join(self._as_text(found)))
        if not found.plans:
            return 1
        if self._options.write is not None:
            self._write(found.plans[0])
        return 0

    def _write(self, plan: Plan) -> None:
        from .plan_overlay import overlay, write
        from .plan_text import gib, seconds

        why = (
            f"Predicted: {seconds(plan.step_seconds)} a step, bubble {100 * plan.bubble:.1f}%, {gib(plan.largest)} on "
            "the largest rank."
        )
        path, problem = self._options.write, self._problem
        tokens = self._configured.tokens_of_row
        write(path, overlay(plan, batch_size=problem.batch_size, tokens=tokens, per_node=problem.per_node, why=why))
        if not self._options.json:
            print(f"\nwritten  {path}")

    def _as_text(self, found: Search) -> list[str]:
        from .plan_text import advice_lines, configured_lines, fallen_lines, plan_lines, traffic_lines

        lines = self._about()
        own = self._own_plan()
        if own is not None:
            lines += ["", *configured_lines(*own)]
        if found.plans:
            lines += ["", "best plans (predicted), one for each K, schedule and V"]
            lines += plan_lines(found.plans, self._problem)
            lines += ["", *traffic_lines(found.plans[0], self._problem)]
            return [*lines, "", *fallen_lines(found)]
        needed, suggestions, others = self._advice()
        return [*lines, "", *advice_lines(self._problem, needed, suggestions, others), "", *fallen_lines(found)]

    def _about(self) -> list[str]:
        from .plan_text import gib

        options, problem = self._options, self._problem
        nodes = "" if problem.per_node >= problem.devices else f", {problem.per_node} a node"
        if options.costs == "profile":
            costs = f"profiled on {options.device}"
        else:
            share = 100 * _efficiency(options, self._configured)
            costs = (
                f"estimated: FLOPs at {share:.3g}% of the peak of {options.accelerator}, and {options.overhead:g} us a "
                "layer (both assumed)"
            )
        room = f"{gib(options.memory)} each, {gib(problem.memory)} to plan with"
        each = f"{problem.bytes_per_parameter} bytes a parameter, its gradient among them"
        return [
            f"model            {self._configured.name}, {problem.num_layers} layers, {problem.parameters:,} "
            f"parameters; mini-batch of {problem.batch_size} rows; activations in {_word(self._configured.dtype)}",
            f"devices          {problem.devices}{nodes}; {room}",
            f"optimizer        {_optimizer(options, self._configured)}: {each}",
            f"costs            {costs}; links {problem.wire.name}"
            + (f", between nodes {problem.node_wire.name}" if nodes else ""),
        ]

    def _own_plan(self) -> tuple[Plan, Problem] | None:
        """What the configuration itself asks for, on as many devices as it asks for."""
        from repro.planning.planner import plan_choice

        strategy = self._configured.strategy
        if not strategy.get("num_stages"):
            return None
        stages, replicas = int(strategy["num_stages"]), int(strategy.get("data_parallel_size") or 1)
        choice = Choice(
            num_stages=stages,
            data_parallel_size=replicas,
            schedule=strategy.get("schedule") or "gpipe",
            num_virtual_stages=int(strategy.get("num_virtual_stages") or 1),
            num_micro_batches=int(strategy.get("num_micro_batches") or 4 * stages),
            remat=strategy.get("remat") or "always",
        )
        problem = replace(self._problem, devices=stages * replicas)
        given = strategy.get("partition")
        found = plan_choice(problem, choice, given if isinstance(given, list) else _by_cost(problem, choice))
        return found, problem  # type: ignore[return-value]

    def _advice(self) -> tuple[int | None, list[Any], list[str]]:
        from repro.planning.advice import least_memory, what_would_fit

        least = least_memory(self._problem, self._space)
        others = []
        if least is not None:
            for name in OPTIMIZER_STATES:
                fewer = bytes_per_parameter(name, size=self._configured.parameter_size, gradients=True)
                if fewer >= self._problem.bytes_per_parameter:
                    continue
                with_fewer = least_memory(replace(self._problem, bytes_per_parameter=fewer), self._space)
                if with_fewer is not None and with_fewer[0] <= self._problem.memory:
                    others.append(f"--optimizer {name}: {fewer} bytes a parameter; {with_fewer[1]}")
                    break
        return None if least is None else least[0], what_would_fit(self._problem, self._space), others

    def _as_json(self, found: Search) -> dict[str, Any]:
        from .plan_text import fallen_json, plan_json

        problem, own = self._problem, self._own_plan()
        made: dict[str, Any] = {
            "model": self._configured.name,
            "num_layers": problem.num_layers,
            "parameters": problem.parameters,
            "batch_size": problem.batch_size,
            "devices": problem.devices,
            "per_node": problem.per_node,
            "memory": problem.memory,
            "bytes_per_parameter": problem.bytes_per_parameter,
            "costs": "profile" if self._options.costs else self._options.accelerator,
            "as_configured": None if own is None else plan_json(*own),
            "plans": [plan_json(plan, problem) for plan in found.plans],
            "fallen": fallen_json(found),
        }
        if not found.plans:
            needed, suggestions, others = self._advice()
            made["would_fit"] = {
                "memory": needed,
                "changes": [{"change": one.change, "needed": one.needed} for one in suggestions],
                "other": others,
            }
        return made


def _problem(options: argparse.Namespace, configured: Configured) -> Problem:
    from .plan_model import estimated_costs, memory_of, profiled_costs, returned_bytes

    accelerator = find_accelerator(options.accelerator)
    if options.costs == "profile":
        costs = profiled_costs(configured, options.device)
    else:
        costs = estimated_costs(
            configured, accelerator.peak * _efficiency(options, configured), 1e-6 * options.overhead
        )
    least_rows, least, one_more = memory_of(configured)
    configured_batch = configured.rows
    replicas = int(configured.strategy.get("data_parallel_size") or 1)
    batch_size = options.batch or (configured_batch and configured_batch * replicas)
    if not batch_size:
        raise UserError(
            "the data of this configuration has no batch_size: give the rows of the mini-batch with --batch"
        )
    devices = options.devices or int(configured.strategy.get("num_stages") or 1) * replicas
    per_node = options.per_node or devices
    if devices > per_node and devices % per_node:
        raise UserError(f"--devices {devices} is no multiple of --per-node {per_node}: give whole nodes")
    return Problem(
        costs=costs,
        least_rows=least_rows,
        least=least,
        one_more=one_more,
        returned=returned_bytes(configured),
        batch_size=batch_size,
        devices=devices,
        per_node=per_node,
        memory=int(options.memory * (1 - options.reserve)),
        bytes_per_parameter=bytes_per_parameter(
            _optimizer(options, configured), size=configured.parameter_size, gradients=True
        ),
        gradient_bytes=configured.parameter_size,
        wire=_wire(options.link or accelerator.link),
        node_wire=_wire(options.node_link),
    )


def _space(options: argparse.Namespace) -> Space:
    space = Space()
    changes = {
        "num_stages": options.num_stages,
        "schedules": options.schedules,
        "num_virtual_stages": options.num_virtual_stages,
        "remats": options.remat,
        "num_micro_batches": options.num_micro_batches,
    }
    return replace(space, **{name: tuple(given) for name, given in changes.items() if given is not None})


def _by_cost(problem: Problem, choice: Choice) -> list[int]:
    """The partition of a run whose configuration gives no layer counts: by FLOPs."""
    from repro.planning import partition

    return partition([cost.forward for cost in problem.costs], choice.total_stages)


def _optimizer(options: argparse.Namespace, configured: Configured) -> str:
    name = options.optimizer or configured.optimizer
    if name is None:
        raise UserError(f"{configured.name} names no optimizer: give one with --optimizer")
    return str(name)


def _efficiency(options: argparse.Namespace, configured: Configured) -> float:
    if options.efficiency is not None:
        return float(options.efficiency)
    shares = find_accelerator(options.accelerator).efficiency
    return shares[configured.family] if configured.family else min(shares.values())


def _wire(name: str) -> Wire:
    link = find_link(name)
    return Wire(link.name, link.latency, link.bandwidth)


def _check(options: argparse.Namespace) -> None:
    """Raises ``UserError`` for numbers out of range and unknown words."""
    for option in ("devices", "per_node", "batch", "top"):
        value = getattr(options, option)
        if value is not None and value < 1:
            raise UserError(f"--{option.replace('_', '-')} {value}: give at least 1")
    for option in ("num_stages", "num_micro_batches", "num_virtual_stages"):
        for value in getattr(options, option) or ():
            if value < 1:
                raise UserError(f"--{option.replace('_', '-')} {value}: give whole numbers of at least 1")
    for name in options.schedules or ():
        if name not in SCHEDULES:
            raise UserError(f"--schedules {name}: unknown{suggest(name, SCHEDULES)} (one of {', '.join(SCHEDULES)})")
    if not 0 <= options.reserve < 1:
        raise UserError(f"--reserve {options.reserve:g}: give a share from 0 to below 1, for example 0.1")
    if not (math.isfinite(options.overhead) and options.overhead >= 0):
        raise UserError(f"--overhead {options.overhead:g}: give microseconds, 0 or more")
    if options.efficiency is not None and not 0 < options.efficiency <= 1:
        raise UserError(f"--efficiency {options.efficiency:g}: give a share of the peak above 0, at most 1")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro plan", _DESCRIPTION, _EPILOG)
    parser.add_argument("config", nargs="+", metavar="CONFIG", help="configuration files; later ones overlay")
    parser.add_argument("--devices", type=int, metavar="N", help="devices, K x D (default: as many as configured)")
    parser.add_argument("--per-node", type=int, metavar="N", help="devices of a node (default: all)")
    parser.add_argument(
        "--memory", type=_bytes, default=_bytes("16GiB"), metavar="SIZE", help="of a device (default: 16GiB)"
    )
    parser.add_argument(
        "--reserve",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the memory, kept for the allocator, workspaces and messages (default: 0.1)",
    )
    parser.add_argument(
        "--accelerator",
        default="v100",
        metavar="NAME",
        help=f"whose speed is assumed: {', '.join(accelerator_names())} (default: v100)",
    )
    parser.add_argument(
        "--efficiency", type=float, metavar="SHARE", help="of its peak that is reached (default: the table's)"
    )
    parser.add_argument(
        "--overhead",
        type=float,
        default=200.0,
        metavar="US",
        help="microseconds that a layer's F takes however few its rows; B twice as many (default: 200)",
    )
    parser.add_argument("--costs", choices=("profile",), help="profile: time each layer on this machine instead")
    parser.add_argument("--device", default="cpu", help="that it is timed on: cpu, cuda (default: cpu)")
    parser.add_argument(
        "--link", metavar="NAME", help=f"within a node: {', '.join(link_names())} (default: the accelerator's)"
    )
    parser.add_argument(
        "--node-link", default="ethernet-100g", metavar="NAME", help="between nodes (default: ethernet-100g)"
    )
    parser.add_argument(
        "--optimizer",
        metavar="NAME",
        help=f"{', '.join(OPTIMIZER_STATES)} (default: the configuration's)",
    )
    parser.add_argument("--batch", type=int, metavar="ROWS", help="mini-batch over all replicas")
    parser.add_argument("--tokens", type=_pair, metavar="S,T", help="pieces of a row (default: the data's limits)")
    parser.add_argument("-K", "--num-stages", type=int, nargs="+", metavar="K", help="only these (default: all)")
    parser.add_argument("-M", "--num-micro-batches", type=int, nargs="+", metavar="M", help="only these")
    parser.add_argument(
        "-V", "--num-virtual-stages", type=int, nargs="+", metavar="V", help="of interleaved, only these"
    )
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help=f"only these of {', '.join(SCHEDULES)}")
    parser.add_argument("--remat", nargs="+", choices=[r.value for r in Remat], help="only these (default: all)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many plans (default: 5)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the best plan as an overlay for repro fit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|MiB|MB|)", text.strip(), re.IGNORECASE)
    units = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6, "": 2**30}
    number = float(found[1]) * units[found[2].lower()] if found else 0.0
    if not (math.isfinite(number) and number >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give one like 16GiB, 16GB or 512MiB")
    return int(number)


def _pair(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:,(\d+))?", text)
    numbers = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give the pieces of source and target, like 128,128")
    return numbers


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
