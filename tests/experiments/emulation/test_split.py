from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from repro.experiments.emulation.layers import Pace, boundary_rows, sum_of_outputs
from repro.experiments.emulation.split import SplitLayer
from repro.gpipe import Engine

FORWARD, INPUT, WEIGHT = 1.0, 20.0, 300.0


@dataclass
class Launches(Pace):
    """A device that takes no time and notes what it is given."""

    seconds: list[float] = field(default_factory=list)

    def launch(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("remat", ["never", "always"])
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("1f1b", {"F": [FORWARD], "R": [FORWARD], "B": [INPUT, WEIGHT]}),
        ("zb-h1", {"F": [FORWARD], "R": [FORWARD], "I": [INPUT], "W": [WEIGHT]}),
    ],
)
def test_each_action_waits_for_its_part(schedule: str, expected: dict[str, list[float]], remat: str) -> None:
    """On the first stage too, where nothing needs the input's gradient and W is the whole backward."""
    pace = Launches(0.0)
    engine = Engine(
        {stage: SplitLayer(FORWARD, INPUT, WEIGHT, pace) for stage in range(3)},
        [1] * 3,
        num_micro_batches=4,
        loss=sum_of_outputs,
        schedule=schedule,
        remat=remat,
    )
    seen: list[tuple[str, int, list[float]]] = []
    execute = engine.recorder.running

    class Noting:
        def __init__(self, rank: int, action: object) -> None:
            self.inner, self.action = execute(rank, action), action  # type: ignore[arg-type]

        def __enter__(self) -> object:
            pace.seconds = []
            return self.inner.__enter__()

        def __exit__(self, *raised: object) -> None:
            self.inner.__exit__(*raised)  # type: ignore[arg-type]
            seen.append((self.action.kind.value, self.action.stage, sorted(pace.seconds)))  # type: ignore[attr-defined]

    engine.recorder.running = Noting  # type: ignore[method-assign]
    engine.train_step(boundary_rows(4, 64), torch.zeros(4, 1), batch_counter=0)
    engine.close()
    assert len(seen) == 3 * 4 * (len(expected) - (remat == "never"))
    for kind, stage, launched in seen:
        first = {"I": [], "W": [INPUT, WEIGHT]} if stage == 0 else {}
        assert launched == first.get(kind, expected[kind]), (kind, stage)


def test_it_hands_values_and_gradients_on() -> None:
    layer = SplitLayer(FORWARD, INPUT, WEIGHT, Launches(0.0))
    value = torch.randn(2, 3, requires_grad=True)
    made = layer(value)
    assert torch.equal(made, value)
    gradient = torch.randn(2, 3)
    made.backward(gradient)
    assert value.grad is not None
    assert torch.equal(value.grad, gradient)
