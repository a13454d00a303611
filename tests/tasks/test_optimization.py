from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from repro.errors import UserError
from repro.tasks.optimization import learning_rate_factor, make_optimizer

OPTIONS: dict[str, Any] = {
    "learning_rate": 0.1,
    "weight_decay": 0.01,
    "momentum": 0.9,
    "second_momentum": 0.99,
    "epsilon": 1e-8,
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adafactor", torch.optim.Adafactor),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("rmsprop", torch.optim.RMSprop),
        ("sgd", torch.optim.SGD),
    ],
)
def test_matrices_decay_and_vectors_do_not(name: Any, kind: type) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = make_optimizer(name, model.named_parameters(), **OPTIONS)
    assert type(optimizer) is kind
    decayed, free = optimizer.param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 3)]
    assert [tuple(p.shape) for p in free["params"]] == [(2,), (2,), (2,)]
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)


def test_parameters_of_other_ranks_are_grouped_too() -> None:
    optimizer = make_optimizer("adamw", nn.Linear(3, 2, device="meta").named_parameters(), **OPTIONS)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize(("learning_rate", "steps", "expected"), [(0.1, 1, 0.1), (5.0, 1, 1.0), (5.0, 4, 0.5)])
def test_a_step_of_adafactor_is_relative_limited_and_clipped(learning_rate: float, steps: int, expected: float) -> None:
    """With a gradient of all ones the update is one everywhere, times the parameter's size, whatever that is."""
    for scale in (1e2, 1e-2):
        weight = nn.Parameter(torch.full((3, 2), scale, dtype=torch.float64))
        options = OPTIONS | {"learning_rate": learning_rate, "weight_decay": 0.0}
        optimizer = make_optimizer("adafactor", [("weight", weight)], **options)
        for _ in range(steps):
            before = weight.detach().clone()
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        moved = (weight.detach() - before) / before.square().mean().sqrt()
        torch.testing.assert_close(moved, torch.full_like(moved, -expected))
    weight.grad = torch.full_like(weight, 1e6)  # far above the average so far: clipped to a mean square of one
    before = weight.detach().clone()
    optimizer.step()
    size = max(1e-3, before.square().mean().sqrt().item())
    assert (weight.detach() - before).square().mean().sqrt() / size <= min(learning_rate, (steps + 1) ** -0.5) * 1.0001


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"second_momentum": -0.1}, "second_momentum=-0.1"),
    ],
)
def test_numbers_out_of_range(change: dict[str, float], part: str) -> None:
    with pytest.raises(UserError, match=part):
        make_optimizer("adamw", nn.Linear(1, 1).named_parameters(), **{**OPTIONS, **change})


def test_unknown_optimizer() -> None:
    with pytest.raises(UserError, match="optimizer='adem'"):
        make_optimizer("adem", nn.Linear(1, 1).named_parameters(), **OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("one_cycle", [0.25, 0.5, 0.75, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
        ("inverse_sqrt", [0.25, 0.5, 0.75, 1.0, 0.894427, 0.816497, 0.755929, 0.707107]),
        ("exponential", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.5]),
    ],
)
def test_learning_rate(name: Any, expected: list[float]) -> None:
    factors = [
        learning_rate_factor(step, name=name, total_steps=8, warmup_steps=4, decay_rate=0.5, decay_steps=2)
        for step in range(8)
    ]
    assert factors == pytest.approx(expected, abs=1e-6)
