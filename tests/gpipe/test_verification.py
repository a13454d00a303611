from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.gpipe import PipelineModule, is_recomputing, verify
from tests.helpers.models import MODELS


class Plain(PipelineModule):
    """A model of the tests as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.spec = MODELS[name]

    def layers(self) -> Any:
        return self.spec.factories

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.spec.loss(outputs, targets)


class Given(PipelineModule):
    """A few layers as they are."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.given = [lambda layer=layer: layer for layer in layers]

    def layers(self) -> Any:
        return self.given

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return (outputs - targets).square().sum(), targets.numel()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 4, generator=generator), torch.randn(7, 4, generator=generator)


@pytest.mark.parametrize("name", ["mlp", "batch_norm_2d", "batch_norm_cumulative", "dropout", "translation", "twice"])
@pytest.mark.parametrize("remat", ["always", "except_last", "never"])
def test_the_engine_passes(name: str, remat: str) -> None:
    outcome = verify(Plain(name), MODELS[name].batch(7, 0), num_stages=3, num_micro_batches=4, remat=remat)
    assert outcome.passed, outcome
    assert outcome.micro_batches == (2, 2, 2, 1)
    assert sum(outcome.partition) == len(MODELS[name].factories)
    parameters = [
        name for layer, make in enumerate(MODELS[name].factories) for name, p in make().named_parameters()
        if p.requires_grad
    ]  # fmt: skip
    assert sum(d.kind == "gradient" for d in outcome.differences) == len(parameters)
    assert (outcome.batch_norm > 0) == name.startswith("batch_norm")
    assert (outcome.dropout > 0) == (name == "dropout")
    if MODELS[name].whole:
        assert outcome.whole_batch is not None
        assert outcome.whole_batch < 1e-10


class WrongWhenRecomputed(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) * (1.001 if is_recomputing() else 1.0)


class Counting(nn.Linear):
    """Keeps a count of its calls, which recomputation disturbs."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return super().forward(value) * self.calls


@pytest.mark.parametrize("broken", [WrongWhenRecomputed, Counting])
def test_a_layer_whose_recomputation_differs_is_found(broken: type[nn.Linear]) -> None:
    torch.manual_seed(0)
    module = Given(nn.Linear(4, 4), nn.Tanh(), broken(4, 4), nn.Tanh(), nn.Linear(4, 4))
    outcome = verify(module, batch(), num_stages=2, num_micro_batches=3, remat="always")
    assert not outcome.passed
    worst = outcome.differences[0]
    assert worst.kind == "gradient"
    assert worst.absolute > outcome.tolerance["gradient"]
    assert worst.absolute == max(d.absolute for d in outcome.differences if d.kind == "gradient")
    assert verify(module, batch(), num_stages=2, num_micro_batches=3, remat="never").passed


def test_a_wrong_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from repro.gpipe.engine import StepResult

    accumulate = StepResult.accumulate
    monkeypatch.setattr(StepResult, "accumulate", lambda self, factor=1.0: accumulate(self, factor * (1 + 1e-6)))
    outcome = verify(Plain("mlp"), MODELS["mlp"].batch(8, 0), num_stages=2, num_micro_batches=4)
    assert not outcome.passed
    assert outcome.loss_error < 1e-10


def test_running_statistics_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from repro.gpipe.batchnorm import PooledBatchNorm

    monkeypatch.setattr(PooledBatchNorm, "update", lambda self, reduce=None: self.forget())
    outcome = verify(Plain("batch_norm_2d"), MODELS["batch_norm_2d"].batch(8, 0), num_stages=2, num_micro_batches=4)
    assert not outcome.passed
    assert {d.kind for d in outcome.differences if d.absolute > 1e-10} == {"buffer"}


def test_float32_has_a_wider_tolerance() -> None:
    torch.manual_seed(0)
    module = Given(*(nn.Linear(4, 4) for _ in range(4)))
    outcome = verify(module, batch(), num_stages=4, num_micro_batches=3, dtype=torch.float32)
    assert outcome.passed
    assert outcome.dtype == "float32"
    assert outcome.tolerance["gradient"] > 1e-8
    assert outcome.whole_batch > 1e-10, "computed in float64"


def test_the_module_stays_as_it_is() -> None:
    module = Plain("batch_norm_2d").eval()
    module.configure_model()
    module.double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    verify(module, MODELS["batch_norm_2d"].batch(6, 0), num_stages=2, num_micro_batches=2)
    assert not module.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"num_stages": 99}, "99"),
        ({"num_stages": 0}, "0"),
        ({"num_micro_batches": 0}, "num_micro_batches=0"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"remat": "often"}, "remat='often'"),
    ],
)
def test_bad_options(options: dict[str, Any], part: str) -> None:
    given: dict[str, Any] = {"num_stages": 2, "num_micro_batches": 2, **options}
    with pytest.raises(UserError, match=part):
        verify(Plain("mlp"), MODELS["mlp"].batch(4, 0), **given)
