from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from repro.experiments.costs.link import Link
from repro.experiments.emulation import layers as emulation
from repro.experiments.emulation.layers import (
    Pace,
    boundary_rows,
    emulated_stage,
    equal_stage,
    sum_of_outputs,
)
from repro.experiments.sweeps.timers import wait_until
from repro.gpipe import Engine

LINK = Link("test", latency=0.004, bandwidth=1e6)


def seconds_of(function: object) -> float:
    begun = time.perf_counter()
    assert callable(function)
    function()
    return time.perf_counter() - begun


def local_engine(counts: list[int], forward: float, backward: float, remat: str, pace: Pace, link: Link) -> Engine:
    layers: dict[int, nn.Module] = {}
    total = sum(counts)
    for stage in range(len(counts)):
        made = emulated_stage(stage, counts, [forward] * total, [backward] * total, [1000.0] * total, link, pace)
        layers.update(made)
    return Engine(layers, counts, num_micro_batches=2, loss=sum_of_outputs, remat=remat)


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_a_timed_layer_takes_its_time_for_each_row_both_ways(pace: float) -> None:
    layer = equal_stage(0.002, 0.004)
    layer.pace.factor = pace
    inputs = boundary_rows(3, 64).requires_grad_()
    outputs: list[Tensor] = []
    assert seconds_of(lambda: outputs.append(layer(inputs))) >= 3 * 0.002 * pace
    assert seconds_of(outputs[0].sum().backward) >= 3 * 0.004 * pace
    assert torch.equal(outputs[0], inputs) and inputs.grad is not None and bool((inputs.grad == 1).all())


def test_layers_of_a_stage_run_after_one_another_and_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def counted(moment: float) -> None:
        waits.append(moment)
        wait_until(moment)

    monkeypatch.setattr(emulation, "wait_until", counted)
    pace = Pace()
    layers = emulated_stage(0, [3], [0.05] * 3, [0.1] * 3, [0.0] * 3, LINK, pace)
    value = boundary_rows(1, 4)
    begun = time.perf_counter()
    value = layers[0](value)
    value = layers[1](value)
    # Two layers are on their way, and nobody has waited for them yet.
    assert not waits
    assert pace.free >= begun + 0.1
    value = layers[2](value)
    assert time.perf_counter() >= begun + 0.15
    assert len(waits) == 1
    begun = time.perf_counter()
    value.sum().backward()
    assert time.perf_counter() >= begun + 0.3
    assert len(waits) == 2


def test_a_timed_layer_waits_for_nothing_on_the_meta_device() -> None:
    layer = equal_stage(1000.0, 1000.0).to("meta")
    assert seconds_of(lambda: layer(torch.empty(4, 2, device="meta"))) < 100


@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
def test_the_engine_runs_emulated_layers_and_links_at_their_pace(remat: str) -> None:
    pace = Pace(0.0)
    engine = local_engine([1, 2], 0.001, 0.002, remat, pace, LINK)
    inputs, targets = boundary_rows(4, 64), torch.zeros(4, 1)
    engine.train_step(inputs, targets, batch_counter=0)
    pace.factor = 1.0
    recomputed = {"always": 4, "except_last": 2, "never": 0}[remat]
    # One process runs everything one after the other: rows x layers, and at least one message of two rows each way.
    least = 3 * (4 * 0.003 + recomputed * 0.001)
    assert seconds_of(lambda: engine.train_step(inputs, targets, batch_counter=1)) >= least
    engine.close()


def test_messages_on_a_link_follow_each_other_and_delay_nobody_who_sends() -> None:
    first, last = (emulated_stage(stage, [1, 1], [0, 0], [0, 0], [1e4, 0], LINK, Pace())[stage] for stage in (0, 1))
    sent: list[tuple[Tensor, Tensor]] = []
    # 5 rows of 10 kB over 1 MB/s: 50 ms a message.
    sending = seconds_of(lambda: sent.extend(first(boundary_rows(5, 4)) for _ in range(3)))
    arrivals = [arrival.item() for _, arrival in sent]
    assert sending < arrivals[2] - arrivals[0]
    assert [arrivals[1] - arrivals[0], arrivals[2] - arrivals[1]] == pytest.approx([0.05, 0.05])
    last(sent[1])
    assert time.perf_counter() >= arrivals[1]


def test_the_gradient_brings_the_time_of_its_own_arrival() -> None:
    pace = Pace(1.0)
    first, last = (emulated_stage(stage, [1, 1], [0, 0], [0, 0], [1e4, 0], LINK, pace)[stage] for stage in (0, 1))
    value, arrival = first(boundary_rows(2, 4))
    leaves = (value.detach().requires_grad_(), arrival.detach().requires_grad_())
    outputs = last(leaves)
    begun = time.perf_counter()
    outputs.sum().backward()
    assert leaves[1].grad is not None and leaves[0].grad is not None
    # 20 kB over 1 MB/s and the latency.
    assert leaves[1].grad.item() >= begun + 0.024
    torch.autograd.backward([value, arrival], [leaves[0].grad, leaves[1].grad])
    assert time.perf_counter() >= leaves[1].grad.item()


@pytest.mark.parametrize("nbytes", [0, 2, 4097])
def test_boundaries_hold_whole_values(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"nbytes={nbytes}"):
        boundary_rows(1, nbytes)
