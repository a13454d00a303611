"""One stage by itself, and a chain of stages driven by hand: F of every micro-batch, then R and B in reverse."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.microbatch import BatchError, elements, like, micro_batch_rows, scatter
from repro.gpipe.rng import StepKey
from repro.gpipe.stage import Stage, is_recomputing
from repro.schedules import Remat
from tests.helpers.models import MODELS, Model
from tests.helpers.oracle import pooled_step

CPU = torch.device("cpu")
KEY = StepKey(seed=0, batch=0)


def chain(spec: Model, layers: list[nn.Module], num_stages: int) -> list[Stage]:
    bounds = torch.arange(len(layers)).tensor_split(num_stages)
    return [
        Stage(number, {int(i): layers[i] for i in part}, CPU, loss=spec.loss if number == num_stages - 1 else None)
        for number, part in enumerate(bounds)
    ]


def detached(boundary: Any) -> Any:
    wanted = [
        None if e is None else e.detach().requires_grad_(e.is_floating_point() or e.is_complex())
        for e in elements(boundary)
    ]
    return like(boundary, wanted)


def step(spec: Model, stages: list[Stage], inputs: Any, targets: Any, num_micro_batches: int, remat: Remat) -> None:
    rows = micro_batch_rows(len(elements(inputs)[0]), num_micro_batches)  # type: ignore[arg-type]
    counts = []
    for part, (piece, answer) in enumerate(zip(scatter(inputs, rows), scatter(targets, rows), strict=True)):
        for stage in stages:
            drop = remat.recomputes(part, len(rows))
            given = (lambda answer=answer: answer) if stage.loss else None
            piece, report = stage.forward(part, piece, given, KEY, drop=drop)
            piece = detached(piece)
        assert report is not None
        counts.append(float(report.count))
    for part in reversed(range(len(rows))):
        gradients: tuple[Tensor | None, ...] = (torch.tensor(1 / sum(counts), dtype=torch.float64),)
        for stage in reversed(stages):
            if remat.recomputes(part, len(rows)):
                stage.recompute(part)
            gradients = tuple(None if pair is None else pair[1] for pair in stage.backward(part, gradients))
    for stage in stages:
        stage.batch_norm.update()


@pytest.mark.parametrize("remat", list(Remat))
@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_chain_of_stages_computes_what_the_oracle_computes(name: str, num_stages: int, remat: Remat) -> None:
    spec = MODELS[name]
    inputs, targets = spec.batch(7, 0)
    reference = pooled_step(spec.layers(), inputs, targets, spec.loss, num_micro_batches=3)
    layers = spec.layers()
    step(spec, chain(spec, layers, num_stages), inputs, targets, 3, remat)
    model = nn.Sequential(*layers)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, reference.gradients[key], rtol=0, atol=1e-11, msg=lambda text, key=key: f"{key}: {text}"
        )
    torch.testing.assert_close(dict(model.named_buffers()), reference.buffers, rtol=0, atol=1e-11)


@pytest.mark.parametrize("remat", list(Remat))
def test_activations_live_as_long_as_remat_says(remat: Remat) -> None:
    spec = MODELS["mlp"]
    (stage,) = chain(spec, spec.layers(), 1)
    inputs, targets = spec.batch(8, 0)
    for part, (piece, answer) in enumerate(zip(inputs.split(2), targets.split(2), strict=True)):
        stage.forward(part, piece, lambda answer=answer: answer, KEY, drop=remat.recomputes(part, 4))
    assert stage.in_flight == 4
    assert stage.live_activations == {"always": 0, "except_last": 1, "never": 4}[remat]
    for part in reversed(range(4)):
        if remat.recomputes(part, 4):
            stage.recompute(part)
        assert stage.live_activations == (part + 1 if remat is Remat.NEVER else 1)
        stage.backward(part, (torch.tensor(1.0, dtype=torch.float64),))
        assert stage.live_activations == (part if remat is Remat.NEVER else 0)
    assert stage.in_flight == 0


def test_nothing_is_alive_after_backward_without_the_garbage_collector() -> None:
    """A reference cycle between a stage and its graphs would keep every activation until the collector runs."""
    spec = MODELS["mlp"]
    (stage,) = chain(spec, spec.layers(), 1)
    inputs, targets = spec.batch(2, 0)
    made: list[weakref.ref[Tensor]] = []
    for layer in stage.layers.values():
        layer.register_forward_hook(lambda module, args, output: made.append(weakref.ref(output)))
    gc.collect()
    gc.disable()
    try:
        stage.forward(0, inputs, lambda: targets, KEY, drop=True)
        stage.recompute(0)
        stage.backward(0, (torch.tensor(1.0, dtype=torch.float64),))
        assert len(made) == 14
        assert not [reference for reference in made if reference() is not None]
    finally:
        gc.enable()


def test_hooks_can_ask_whether_this_is_a_recompute() -> None:
    spec = MODELS["mlp"]
    (stage,) = chain(spec, spec.layers(), 1)
    inputs, targets = spec.batch(2, 0)
    seen: list[bool] = []
    stage.layers[0].register_forward_hook(lambda module, args, output: seen.append(is_recomputing()))
    stage.forward(0, inputs, lambda: targets, KEY, drop=True)
    stage.recompute(0)
    assert seen == [False, True]


def test_a_layer_that_returns_something_else_is_named() -> None:
    class Mapping(nn.Module):
        def forward(self, value: Tensor) -> dict[str, Tensor]:
            return {"value": value}

    stage = Stage(1, {4: Mapping()}, CPU)
    with pytest.raises(BatchError, match=r"the output of layer 4 \(Mapping\) is a dict"):
        stage.infer(0, torch.zeros(2), None, KEY)
