"""The planner against trying everything, closed forms, and what it says does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import UserError
from repro.planning.advice import least_memory, what_would_fit
from repro.planning.memory import LayerMemory, ModelMemory, OutputMemory
from repro.planning.planner import Plan, TooLarge, _least_seconds, list_choices, plan_choice, search
from repro.planning.problem import Choice, LayerCost, Problem, Space, Wire, divisors
from repro.planning.traffic import data_parallel, ring_all_reduce, tensor_parallel
from repro.schedules import gpipe_makespan

FREE = Wire("free", 0.0, math.inf)


def layers(sizes: list[int], rows: int, parameters: int = 10) -> ModelMemory:
    """A chain of layers whose outputs have ``sizes`` bytes a row; each keeps as much again."""
    made = tuple(LayerMemory(parameters, size * rows, (True,), (OutputMemory(size * rows),)) for size in sizes)
    return ModelMemory(made, (sizes[0] * rows,))


def problem(
    costs: list[float],
    *,
    sizes: list[int] | None = None,
    devices: int = 4,
    per_node: int | None = None,
    batch_size: int = 8,
    memory: int = 10**9,
    least_rows: int = 1,
    wire: Wire = FREE,
    node_wire: Wire = FREE,
) -> Problem:
    sizes = sizes or [100] * len(costs)
    return Problem(
        costs=tuple(LayerCost(cost, 2 * cost, 0.1, 0.2) for cost in costs),
        least_rows=least_rows,
        least=layers(sizes, least_rows),
        one_more=layers(sizes, least_rows + 1),
        returned=tuple(sizes[:-1]),
        batch_size=batch_size,
        devices=devices,
        per_node=per_node or devices,
        memory=memory,
        bytes_per_parameter=16,
        gradient_bytes=4,
        wire=wire,
        node_wire=node_wire,
    )


def gpipe(num_stages: int, num_micro_batches: int, remat: str = "always", replicas: int = 1) -> Choice:
    return Choice(num_stages, replicas, "gpipe", 1, num_micro_batches, remat)


def test_equal_layers_take_what_the_closed_form_says() -> None:
    made = plan_choice(problem([1.0] * 8), gpipe(4, 4))
    assert isinstance(made, Plan)
    # Two layers a stage and two rows a micro-batch.
    forward, backward = 2 * (0.1 + 2 * 1.0), 2 * (0.2 + 2 * 2.0)
    expected = gpipe_makespan(4, 4, forward=forward, backward=backward, recompute=forward, remat="always")
    assert made.step_seconds == pytest.approx(float(expected))
    assert made.partition == (2, 2, 2, 2)
    assert made.reduce_seconds == 0


def test_memory_is_that_of_states_and_activations() -> None:
    made = plan_choice(problem([1.0] * 4), gpipe(2, 4, "never"))
    assert isinstance(made, Plan)
    # Two layers of 10 parameters; 4 micro-batches of 2 rows: the input, two internals, what is between, and an output
    # that is sent on.
    rows = 2
    assert made.rank_bytes == (2 * 10 * 16 + 4 * rows * 500, 2 * 10 * 16 + 4 * rows * 400)


def test_bytes_over_boundaries() -> None:
    made = plan_choice(problem([1.0] * 4), gpipe(2, 4))
    assert isinstance(made, Plan)
    assert made.boundary_bytes == (8 * 100 * 2,)  # all rows, there and back
    assert made.sent_bytes == (8 * 100, 8 * 100)
    v_shaped = plan_choice(problem([1.0] * 4), Choice(2, 1, "zb-v", 2, 4, "never"))
    assert isinstance(v_shaped, Plan)
    assert v_shaped.boundary_bytes == (1600, 0, 1600)  # stages 1 and 2 share a rank


def test_messages_and_gradients_take_time() -> None:
    wire = Wire("slow", 0.5, 1000.0)
    alone = problem([1.0] * 4, devices=2, wire=wire)
    there = 0.5 + 2 * 100 / 1000
    free = plan_choice(replace(alone, wire=FREE), gpipe(2, 4))
    slow = plan_choice(alone, gpipe(2, 4))
    assert isinstance(free, Plan) and isinstance(slow, Plan)
    assert slow.step_seconds - free.step_seconds == pytest.approx(2 * there)
    replicas = plan_choice(alone, gpipe(1, 4, replicas=2))
    assert isinstance(replicas, Plan)
    assert replicas.reduce_seconds == pytest.approx(2 * 0.5 + 40 * 4 / 1000)


@pytest.mark.parametrize(
    ("num_stages", "per_node", "between", "replicas"),
    [
        (4, 4, ["in", "in", "in"], "out"),
        (8, 4, ["in", "in", "in", "out"], None),
        (2, 4, ["in"], "out"),
        (4, 8, ["in", "in", "in"], "in"),
        (4, 2, ["in", "out", "in"], "out"),
    ],
)
def test_wires_between_nodes(num_stages: int, per_node: int, between: list[str], replicas: str | None) -> None:
    made = problem([1.0] * 8, devices=8, per_node=per_node, wire=Wire("in", 0, 2), node_wire=Wire("out", 0, 1))
    found = [made.wire_between(num_stages, rank, rank + 1).name for rank in range(len(between))]
    assert found == between
    if replicas is not None:
        assert made.wire_of_replicas(num_stages, 0).name == replicas


def test_what_is_the_same_is_listed_once() -> None:
    space = Space(schedules=("gpipe", "1f1b"), num_micro_batches=(1, 2))
    made, _ = list_choices(problem([1.0] * 6), space)
    single = [choice for choice in made if choice.num_micro_batches == 1]
    assert {(choice.schedule, choice.remat) for choice in single} == {("gpipe", "always"), ("gpipe", "never")}
    alone, _ = list_choices(problem([1.0] * 6), replace(space, schedules=("1f1b",)))
    assert {choice.num_micro_batches for choice in alone} == {1, 2}


def test_what_cannot_be_is_counted_by_reason() -> None:
    space = Space(num_stages=(2, 3, 4), schedules=("gpipe", "zb-v"), remats=("never",), num_micro_batches=(1, 3, 4, 16))
    made, refused = list_choices(problem([1.0] * 6, least_rows=2), space)
    assert refused == {
        "4 devices are no multiple of K=3": 1,
        "more stages (K x V) than layers (6)": 4,  # zb-v with K = 4
        "M does not divide the rows of a replica": 3,
        "more micro-batches than rows": 3,
        "micro-batches of fewer than 2 rows: BatchNorm cannot train": 2,  # K = 2 has two replicas of 4 rows
    }
    assert {(choice.num_stages, choice.num_micro_batches) for choice in made} == {(2, 1), (4, 1), (4, 4)}


def test_no_equal_shares() -> None:
    _, refused = list_choices(problem([1.0] * 6, devices=3, batch_size=8), Space(num_stages=(1,)))
    assert refused == {"the mini-batch of 8 rows has no D equal shares": 1}


_PROBLEMS = st.builds(
    problem,
    costs=st.lists(st.floats(0.0, 5.0), min_size=5, max_size=7),
    devices=st.sampled_from([2, 4]),
    batch_size=st.sampled_from([4, 8]),
    memory=st.integers(400, 20_000),
    wire=st.sampled_from([FREE, Wire("slow", 0.1, 1000.0)]),
)


@settings(max_examples=15, deadline=None)
@given(_PROBLEMS, st.integers(1, 4))
def test_search_finds_what_trying_everything_finds(made: Problem, keep: int) -> None:
    space = Space(num_virtual_stages=(2,))
    choices, _ = list_choices(made, space)
    best: dict[tuple[int, str, int], float] = {}
    too_large = 0
    for choice in choices:
        plan = plan_choice(made, choice)
        if isinstance(plan, TooLarge):
            too_large += 1
            assert plan.excess > 0
            continue
        assert plan.largest <= made.memory
        assert _least_seconds(made, choice) <= plan.step_seconds * (1 + 1e-9)
        assert sum(plan.partition) == made.num_layers
        best[choice.family] = min(best.get(choice.family, math.inf), plan.step_seconds)
    found = search(made, space, keep=keep)
    assert [plan.step_seconds for plan in found.plans] == pytest.approx(sorted(best.values())[:keep])
    assert found.considered == len(choices) + sum(found.refused.values())
    assert len(found.too_large) <= too_large


def test_the_partition_gives_way_to_memory() -> None:
    # By cost the first stage would take three layers, but their outputs are large.
    made = problem([1.0, 1.0, 1.0, 3.0], sizes=[900, 900, 100, 100], devices=2, batch_size=2)
    free = plan_choice(made, gpipe(2, 1, "never"))
    assert isinstance(free, Plan) and free.partition == (3, 1)
    tight = plan_choice(replace(made, memory=free.largest - 1), gpipe(2, 1, "never"))
    assert isinstance(tight, Plan) and tight.partition != (3, 1)
    assert tight.largest < free.largest


def test_parameters_alone() -> None:
    found = plan_choice(problem([1.0] * 4, memory=100), gpipe(2, 4))
    assert found == TooLarge(gpipe(2, 4), 4 * 10 * 16 // 2 - 100, parameters_alone=True)


def test_a_given_partition_is_kept_though_it_does_not_fit() -> None:
    made = plan_choice(problem([1.0] * 4, memory=100), gpipe(2, 4), [1, 3])
    assert isinstance(made, Plan) and made.partition == (1, 3) and made.largest > 100


class TestWhatWouldFit:
    """Two devices, six layers, 8 rows."""

    def small(self, memory: int) -> Problem:
        return problem([1.0] * 6, devices=2, memory=memory)

    def test_remat(self) -> None:
        space = Space(num_stages=(2,), schedules=("gpipe",), remats=("never",), num_micro_batches=(8,))
        needed, choice = least_memory(self.small(1), replace(space, remats=("always",))) or (0, None)
        made = self.small(needed)
        assert choice is not None and choice.remat == "always"
        assert not search(made, space).plans
        changes = [one.change.split(":")[0] for one in what_would_fit(made, space)]
        assert "re-materialization" in changes

    def test_smaller_micro_batches(self) -> None:
        space = Space(num_stages=(2,), schedules=("1f1b",), remats=("always",), num_micro_batches=(1,))
        needed, _ = least_memory(self.small(1), replace(space, num_micro_batches=(8,))) or (0, None)
        made = self.small(needed)
        assert not search(made, space).plans
        changes = {one.change.split(":")[0]: one for one in what_would_fit(made, space)}
        assert changes["smaller micro-batches"].choice.num_micro_batches == 8

    def test_more_stages_and_no_fewer(self) -> None:
        space = Space()
        needed, _ = least_memory(replace(self.small(1), devices=4), replace(space, num_stages=(4,))) or (0, None)
        made = self.small(needed)
        assert not search(made, space).plans
        (found,) = what_would_fit(made, space)
        assert found.change.startswith("more stages: 4 devices") and found.needed == needed
        fewer, _ = least_memory(replace(made, devices=3), replace(space, num_stages=(3,))) or (0, None)
        assert fewer > needed

    def test_everything_that_is_suggested_fits(self) -> None:
        space = Space(num_stages=(1,), schedules=("gpipe",), remats=("never",), num_micro_batches=(1,))
        for memory in (600, 1000, 1500, 2500):
            made = self.small(memory)
            for one in what_would_fit(made, space):
                devices = one.choice.num_stages * one.choice.data_parallel_size
                found = plan_choice(replace(made, devices=devices), one.choice)
                assert isinstance(found, Plan), one
                assert one.needed <= memory

    def test_nothing_at_all(self) -> None:
        assert what_would_fit(self.small(10), Space()) == []


def test_divisors() -> None:
    assert [divisors(number) for number in (1, 12, 49)] == [(1,), (1, 2, 3, 4, 6, 12), (1, 7, 49)]


@pytest.mark.parametrize(("option", "value"), [("devices", 0), ("per_node", -1), ("batch_size", 0), ("memory", 0)])
def test_numbers_out_of_range(option: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{option}={value}"):
        replace(problem([1.0]), **{option: value})


def test_traffic() -> None:
    assert ring_all_reduce(100, 1) == 0
    assert ring_all_reduce(100, 4) == 150
    # Narayanan et al. 2021, section 3.2: 8 b s h (t - 1) / t numbers for a layer.
    batch, length, width, devices = 2, 16, 64, 8
    numbers = 8 * batch * length * width * (devices - 1) / devices
    assert tensor_parallel([2 * batch * length * width], devices) == 2 * numbers
    assert data_parallel(1000, 4, 2) == 4000
